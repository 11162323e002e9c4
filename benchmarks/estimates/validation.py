"""How far off are iteration times estimated from a data sheet, beside throughputs that others published?

The only coefficient that is fitted to these is ``depthwise_weight``, to every second model on the RTX 3090: the other
models, the A100 and the V100, TF32 and fp32 were not seen.

    python -m benchmarks.estimates.validation            # half an hour on two busy cores
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.estimates.naive import naive_seconds
from benchmarks.estimates.public import Iteration, Throughput, iterations, throughputs
from deeppool.device.datasheet import find_gpu
from deeppool.device.roofline import FITTED, Columns, Efficiency
from deeppool.profiling.update_estimate import ACCESSES
from deeppool.units import format_seconds

RATES = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 2.0, 2.5)
"""Values of ``depthwise_weight`` among which the fit chooses."""


def main() -> None:
    """Prints the tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = throughputs()
    found = [Estimate.of(iteration, seen=iteration.published in fitted_on(rows)) for iteration in iterations(rows)]
    for table in (accuracy_table, model_table):
        print("\n".join(table(found)), end="\n\n")
    rates = fit_depthwise([estimate for estimate in found if estimate.seen])
    print("mean of |log(estimated / measured)| on what was fitted, by depthwise_weight:", rates)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of an iteration: published, and estimated."""

    iteration: Iteration
    seen: bool
    """Whether a coefficient was fitted to it."""
    seconds: float
    naive: float
    """Seconds by the naive roofline, a lower bound for these kernels."""

    @classmethod
    def of(cls, iteration: Iteration, *, seen: bool, efficiency: Efficiency = FITTED) -> "Estimate":
        """Estimates an iteration, its update included."""
        published = iteration.published
        gpu, tf32 = find_gpu(published.gpu), published.precision == "tf32"
        columns = Columns.of(iteration.kernels)
        update = ACCESSES * iteration.parameter_bytes / gpu.bandwidth
        seconds = float(efficiency.seconds(columns, gpu, tf32=tf32).sum())
        naive = float(naive_seconds(columns, gpu, tf32=tf32).sum())
        return cls(iteration, seen, seconds + update, naive + update)

    @property
    def published(self) -> Throughput:
        """The row of the table."""
        return self.iteration.published

    @property
    def possible(self) -> bool:
        """Whether these kernels could have run as fast as was published."""
        return self.published.seconds >= self.naive


def fitted_on(rows: Iterable[Throughput]) -> set[Throughput]:
    """Returns the rows that a coefficient is fitted to: every second model on the RTX 3090, by name."""
    names = sorted({row.model for row in rows})[::2]
    return {row for row in rows if row.gpu == "rtx3090" and row.model in names}


def fit_depthwise(seen: Sequence[Estimate]) -> dict[float, float]:
    """Returns the error on what is fitted to, by the rate of depthwise convolutions' weight gradients."""
    found = {}
    for rate in RATES:
        efficiency = replace(FITTED, depthwise_weight=rate)
        again = [Estimate.of(x.iteration, seen=True, efficiency=efficiency) for x in seen]
        found[rate] = float(np.mean([abs(np.log(x.seconds / x.published.seconds)) for x in again]))
    return found


def accuracy_table(found: Sequence[Estimate]) -> Iterator[str]:
    """Yields errors per precision and GPU, of what was not fitted to."""
    yield "| rows | number | error, median / 90th percentile | naive roofline | rank correlation | naive roofline |"
    yield "|---" * 6 + "|"
    kept = [x for x in found if x.possible]
    held_out = [x for x in kept if not x.seen]
    groups = {"fitted to": [x for x in kept if x.seen], "not seen, all": held_out}
    for precision in ("fp16", "tf32", "fp32"):
        groups[f"not seen, {precision}"] = [x for x in held_out if x.published.precision == precision]
    for gpu in ("rtx3090", "a100-80", "v100"):
        for precision in ("fp16", "tf32", "fp32"):
            title = f"{gpu}, {precision}"
            groups[title] = [x for x in held_out if (x.published.gpu, x.published.precision) == (gpu, precision)]
    for title, rows in groups.items():
        if len(rows) > 1:
            yield f"| {title} | {len(rows)} | {_cells(rows)} |"


def _cells(rows: Sequence[Estimate]) -> str:
    measured, batch = (np.array([getattr(x.published, name) for x in rows]) for name in ("seconds", "batch"))
    errors, ranks = [], []
    for name in ("seconds", "naive"):
        estimated = np.array([getattr(x, name) for x in rows])
        error = np.abs(estimated / measured - 1)
        errors.append("{:.1f} / {:.1f} %".format(*(100 * np.quantile(error, [0.5, 0.9]))))
        ranks.append(f"{spearman(estimated / batch, measured / batch):.3f}")
    return " | ".join([*errors, *ranks])


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Returns the rank correlation of numbers that all differ."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def model_table(found: Sequence[Estimate]) -> Iterator[str]:
    """Yields every row."""
    yield "| GPU | precision | model | batch | published | estimated / published | naive roofline / published |"
    yield "|---" * 7 + "|"
    for x in sorted(found, key=lambda x: (x.published.gpu, x.published.precision, x.published.model)):
        row = x.published
        name = f"{row.model}, {row.size}{', ' + row.layout if row.layout.endswith('last') else ''}"
        note = " (fitted to)" if x.seen else "" if x.possible else " (not counted)"
        yield (
            f"| {row.gpu} | {row.precision} | {name} | {row.batch} | {format_seconds(row.seconds)} | "
            f"{x.seconds / row.seconds:.2f}{note} | {x.naive / row.seconds:.2f} |"
        )


if __name__ == "__main__":
    main()
