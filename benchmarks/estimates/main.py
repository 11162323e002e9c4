"""How far off are layer times estimated from a data sheet?

Fits the coefficients of deeppool.device.roofline to DeepPool's A100 layer times without one model, and
estimates that model: beside the naive roofline and launch + FLOPs + bytes, fitted to the same layers.

    python -m benchmarks.estimates.main --profiles FOLDER
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.estimates.a100_layers import BLOCKS, MODELS, Sample, read_layers
from benchmarks.estimates.fit import A100, START, Model, Table, fit_three_parameters, fit_tiled, naive, tiled
from benchmarks.planner.a100 import FOLDER_VARIABLE
from deeppool.device.kernel import Kernel
from deeppool.device.roofline import FITTED, Efficiency
from deeppool.units import format_seconds

LONG = 100e-6
"""Seconds; what a layer must take to count as long."""
SUM_BATCHES = (1, 8, 32)

Samples = dict[str, list[Sample]]
"""By model, and those of BLOCKS."""
AllFits = dict[str | None, "Fits"]
"""By the model that was left out."""


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profiles", type=Path, default=os.environ.get(FOLDER_VARIABLE), help=f"folder, or set {FOLDER_VARIABLE}"
    )
    arguments = parser.parse_args()
    if arguments.profiles is None:
        parser.error(f"which folder holds the layer times? (--profiles FOLDER, or {FOLDER_VARIABLE})")
    samples = {model: read_layers(arguments.profiles, model) for model in (*MODELS, BLOCKS)}
    fits = {model: Fits.without(samples, model) for model in (*MODELS, None)}
    for table in (accuracy_table, operator_table, sum_table):
        print("\n".join(table(samples, fits)), end="\n\n")
    print("\n".join(coefficient_table(fits)), end="\n\n")
    print("\n".join(ablation_table(samples)))


@dataclass(frozen=True, slots=True)
class Fits:
    """What was fitted to all layers but those of one model."""

    efficiency: Efficiency
    straight: Model
    """Launch + FLOPs + bytes."""
    straight_convolutions: Model
    """The same, fitted to convolutions alone: its strongest case."""

    @classmethod
    def without(cls, samples: Samples, model: str | None) -> "Fits":
        """Fits to the samples of the other models; None: to all."""
        kept = held_out(samples, model)
        return cls(fit_tiled(kept), fit_three_parameters(kept), fit_three_parameters(convolutions(kept)))

    def models(self, *, only_convolutions: bool = False) -> tuple[Model, Model, Model]:
        """The columns of the tables."""
        return naive, self.straight_convolutions if only_convolutions else self.straight, tiled(self.efficiency)


def held_out(samples: Samples, model: str | None) -> list[Sample]:
    """All samples to fit on, but those of one model and the layers of others that are equal to one of its own."""
    own = {sample.layer for sample in samples[model]} if model else set()
    return [sample for name in MODELS if name != model for sample in samples[name] if sample.layer not in own]


def convolutions(samples: list[Sample]) -> list[Sample]:
    """Those whose layer is a convolution, with its ReLU where the file has one."""
    return [sample for sample in samples if sample.layer.startswith("conv2d")]


def whole(samples: list[Sample]) -> list[Sample]:
    """Layers as one time: forward and backward, or what the file has of them."""
    both = {(sample.row, sample.batch) for sample in samples if sample.part == "both"}
    return [sample for sample in samples if sample.part == "both" or (sample.row, sample.batch) not in both]


def errors(model: Model, samples: list[Sample]) -> tuple[float, float]:
    """Median and 90th percentile of abs(estimated / measured - 1)."""
    table = Table.of(samples)
    found = np.abs(model(table, A100) / table.measured - 1)
    return float(np.median(found)), float(np.quantile(found, 0.9))


def accuracy_table(samples: Samples, fits: AllFits) -> Iterator[str]:
    """Errors per model, fitted without it and with it."""
    yield "| estimated | fitted on | layers x batches | naive roofline | launch + FLOPs + bytes | waves of tiles |"
    yield "|---" * 6 + "|"
    for model in MODELS:
        others = " + ".join(name for name in MODELS if name != model)
        yield from _rows(model, others, samples[model], fits[model])
        if model == "WideResNet-101-2":
            yield from _rows("its blocks, whole", others, samples[BLOCKS], fits[model])
    for model in MODELS:
        yield from _rows(model, "all three", samples[model], fits[None])


def _rows(title: str, fitted_on: str, tested: list[Sample], fits: Fits) -> Iterator[str]:
    layers = whole(tested)
    long = [sample for sample in layers if sample.seconds > LONG]
    for name, kept in (("all", layers), ("over 100 us", long), ("convolutions over 100 us", convolutions(long))):
        if kept:
            models = fits.models(only_convolutions=name.startswith("conv"))
            cells = " | ".join("{:.1f} / {:.1f}".format(*(100 * x for x in errors(model, kept))) for model in models)
            yield f"| {title}, {name} | {fitted_on} | {len(kept)} | {cells} |"


def operator_table(samples: Samples, fits: AllFits) -> Iterator[str]:
    """Errors of each operator's forward and backward, fitted without its model."""
    yield "| held out | operator | part | samples | median / 90th percentile | median estimated / measured |"
    yield "|---" * 6 + "|"
    for model in MODELS:
        estimated = tiled(fits[model].efficiency)
        for operator in ("conv2d", "linear", "maxPool2d", "avgPool2d"):
            for part in ("forward", "backward", "both"):
                kept = [x for x in samples[model] if x.layer.startswith(operator) and x.part == part]
                if kept:
                    table = Table.of(kept)
                    ratio = np.median(estimated(table, A100) / table.measured)
                    cells = "{:.1f} / {:.1f}".format(*(100 * x for x in errors(estimated, kept)))
                    yield f"| {model} | {operator} | {part} | {len(kept)} | {cells} | {ratio:.2f} |"


def sum_table(samples: Samples, fits: AllFits) -> Iterator[str]:
    """All layers of a file together, fitted without its model."""
    yield "| all layers of | batch | measured | naive roofline | launch + FLOPs + bytes | waves of tiles |"
    yield "|---" * 6 + "|"
    for name in (*MODELS, BLOCKS):
        title, fitted = ("WideResNet-101-2, blocks", "WideResNet-101-2") if name == BLOCKS else (name, name)
        for batch in SUM_BATCHES:
            table = Table.of([sample for sample in whole(samples[name]) if sample.batch == batch])
            measured = float(table.measured.sum())
            cells = " | ".join(
                f"{format_seconds(total)} ({100 * (total / measured - 1):+.1f} %)"
                for total in (float(model(table, A100).sum()) for model in fits[fitted].models())
            )
            yield f"| {title} | {batch} | {format_seconds(measured)} | {cells} |"


def ablation_table(samples: Samples) -> Iterator[str]:
    """Errors on long layers of the held-out model, without one part of what is taken to be done."""
    yield "| without | " + " | ".join(MODELS) + " |"
    yield "|---" * (1 + len(MODELS)) + "|"
    for title, change in ABLATIONS.items():
        changed = {
            model: [replace(x, kernels=tuple(k for k in map(change, x.kernels) if k)) for x in samples[model]]
            for model in MODELS
        }
        cells = []
        for model in MODELS:
            fitted = tiled(fit_tiled(held_out(changed, model)))
            long = [sample for sample in whole(changed[model]) if sample.seconds > LONG]
            cells.append("{:.1f} / {:.1f}".format(*(100 * x for x in errors(fitted, long))))
        yield f"| {title} | {' | '.join(cells)} |"


ABLATIONS: dict[str, Callable[[Kernel], Kernel | None]] = {
    "nothing": lambda kernel: kernel,
    "changes of layout": lambda kernel: replace(kernel, layout_bytes=0, weight_bytes=0),
    "weights of size-1 convolutions apart": lambda kernel: replace(kernel, pointwise=False),
    "accumulated gradients": lambda kernel: None if kernel.operator == "add_" else kernel,
    "reads through windows": lambda kernel: replace(kernel, window_reads=0),
}
"""What each takes out of a kernel."""


def coefficient_table(fits: AllFits) -> Iterator[str]:
    """What was fitted, with and without each model."""
    columns = {"in deeppool": FITTED} | {
        f"without {model}" if model else "all three": fits[model].efficiency for model in (None, *MODELS)
    }
    yield "| coefficient | " + " | ".join(columns) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    for name in START:
        cells = " | ".join(f"{getattr(fit, name):.3g}" for fit in columns.values())
        yield f"| {name} | {cells} |"


if __name__ == "__main__":
    main()
