"""Prints the tables of the README from the records of one GPU, in ``h200``.

The fp16 profiles are those that come with deeppool. Estimates are made now, from the data sheet.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import deeppool as dp
from deeppool.base import serialization
from deeppool.device.protocol import Precision
from deeppool.graph.capture.capture import CapturedModel
from deeppool.profiling.table import Profile

FOLDER = Path(__file__).with_name("h200")
MODELS = ("vgg16", "wide_resnet101_2", "inception_v3", "resnet50")
SHOWN = (1, 4, 16, 64, 256)
"""Batch sizes in the tables."""
CLUSTERS = ((8, 32), (8, 256), (64, 64), (64, 256))
"""GPUs and global batch of the plans."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for table in (iterations, launches, estimates, plans, beside):
        print("\n".join(table()), end="\n\n")


def profile(model: str, precision: str) -> Profile:
    if precision == "fp16":
        return dp.find_profile(f"{model}-h200")
    return serialization.read(FOLDER / f"{model}-{precision}.json", Profile)


def iterations() -> Iterator[str]:
    """Whole iterations, and what the layers of the profile add up to beyond them."""
    yield _row("model", "", *(f"batch {size}" for size in SHOWN))
    yield _row(*["---"] * (2 + len(SHOWN)))
    for model in MODELS:
        for precision in ("fp16", "tf32"):
            checks = {check.batch: check for check in profile(model, precision).checks}
            shown = [f"{1e3 * checks[n].iteration:.2f} ms ({100 * checks[n].deviation:+.1f} %)" for n in SHOWN]
            yield _row(model, precision, *shown)


def launches() -> Iterator[str]:
    """Whole iterations kernel by kernel and as CUDA graphs."""
    times = {
        (entry["model"], entry["mode"], check["batch"]): check["iteration"]
        for entry in json.loads((FOLDER / "profiles.json").read_text())["profiles"]["measurements"]
        for check in entry["checks"]
    }
    yield _row("model", "", "batch 1, eager", "graphs", "ratio", "batch 16, eager", "graphs", "ratio")
    yield _row(*["---"] * 8)
    for model in MODELS:
        for precision in ("fp16", "tf32"):
            shown = []
            for batch in (1, 16):
                eager, graphs = (times[model, f"{precision}-{how}", batch] for how in ("eager", "graphs"))
                shown += [f"{1e3 * eager:.1f} ms", f"{1e3 * graphs:.1f} ms", f"{eager / graphs:.1f}"]
            yield _row(model, precision, *shown)


def estimates() -> Iterator[str]:
    """Estimated iterations against the measured ones."""
    yield _row("model", "", *(f"batch {size}" for size in SHOWN), "layers, median error")
    yield _row(*["---"] * (3 + len(SHOWN)))
    captured = [dp.capture(model) for model in MODELS]
    for precision in ("fp16", "tf32"):
        errors = []
        for model in captured:
            row, off = estimate(model, precision)
            errors += map(abs, off)
            yield row
        middle, largest = statistics.median(errors), max(errors)
        yield _row(f"all at 9 batches, {precision}", "", f"median {100 * middle:.0f} %, at most {100 * largest:.0f} %")


def estimate(captured: CapturedModel, precision: Precision) -> tuple[str, list[float]]:
    """The row of one model, and the errors of its iterations at all batches."""
    model = captured.graph.model
    measured = profile(model, precision)
    made = dp.estimate(captured, gpu="h200", precision=precision, batch_sizes=measured.batch_sizes)
    off = {x.batch: made.iteration_time(x.batch) / x.iteration - 1 for x in measured.checks}
    layers = statistics.median(layer_errors(made, measured))
    row = _row(model, precision, *(f"{100 * off[n]:+.0f} %" for n in SHOWN), f"{100 * layers:.0f} %")
    return row, list(off.values())


def layer_errors(made: Profile, measured: Profile) -> list[float]:
    """Of each layer that takes more than a microsecond, at each batch."""
    return [
        abs(made.time(layer, batch).total / measured.time(layer, batch).total - 1)
        for layer in range(len(measured.graph.layers))
        for batch in measured.batch_sizes
        if measured.time(layer, batch).total > 1e-6
    ]


def plans(models: Sequence[str] = MODELS) -> Iterator[str]:
    """Plans from the measured layers; the network is predicted.

    Between nodes an all-reduce takes the ports of all their GPUs, as NCCL's do: a single ring would take one.
    """
    yield _row(
        "model", "GPUs", "global batch", "one GPU", "DDP where it is fastest", "fastest plan", "gain", "amplification"
    )
    yield _row(*["---"] * 8)
    for model in models:
        for gpus, batch in CLUSTERS:
            plan = dp.plan(profile(model, "fp16"), dp.find_cluster("dgx-h200", gpus), batch, network_model="best")
            compared = plan.comparison
            ddp = f"{1e3 * compared.fastest.seconds:.1f} ms on {compared.fastest.gpus}"
            alone, fastest = (f"{1e3 * x:.1f} ms" for x in (plan.single_gpu_iteration_time, plan.iteration_time))
            yield _row(
                model, str(gpus), str(batch), alone, ddp, fastest, f"{compared.gain:.2f}", f"{plan.amplification:.2f}"
            )


def beside() -> Iterator[str]:
    """Ranks beside a background, one mechanism more at a time."""
    found = json.loads((FOLDER / "ranks.json").read_text())["ranks"]
    yield _row(
        "foreground", "mechanism", "slower", "p99", "background of alone", "of the idle time", "sum", "wake p50", "p99"
    )
    yield _row(*["---"] * 9)
    for row in found["rows"]:
        if (measured := row.get("ladder")) is not None:
            yield from _rungs(f"{row['model']}, rank {row['rank']}", measured)


def _rungs(name: str, measured: dict[str, Any]) -> Iterator[str]:
    alone, wake = measured["alone"], measured["wake"]
    idle = f"{100 * measured['idle']:.0f} % idle"
    yield _row(name, f"alone: {1e3 * alone['mean']:.1f} ms, {idle}", *[""] * 5, *_microseconds(wake))
    for rung in measured["rungs"]:
        own = rung["background_throughput"] / rung["background_alone"]
        yield _row(
            "",
            rung["rung"],
            f"{100 * rung['slowdown']:.0f} %",
            f"{100 * (rung['foreground']['p99'] / alone['p99'] - 1):+.0f} %",
            f"{100 * own:.0f} %",
            f"{own / measured['idle']:.2f}",
            f"{1 / (1 + rung['slowdown']) + rung['harvest']:.2f}",
            *_microseconds(rung["wake"]),
        )


def _microseconds(wake: dict[str, float]) -> list[str]:
    return [f"{1e6 * wake[key]:.0f} µs" for key in ("p50", "p99")]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
