"""One GPU, in parts that each fill a call: profiles of the evaluation's models, collocation, pairs of kernels.

``profiles``: in every mode, each with its check against the whole iteration. ``ranks``: the first and the last rank of
plans for eight GPUs, alone and beside a background, one mechanism more at a time. ``ladder``: the same with whole
models. ``pairs``: which kernel disturbs which, and whose priority a graph has.
``launches``: a background in the rank's process and in one of its own, by ``dp.launch``. ``memory``: random pairs that
may not both fit. ``waves``: one wave, two waves, and one of twice the batch.

Writes small JSON files: ``summary.json`` (environment, and per part what was measured) and one profile per model.
Starts no measurement after ``--minutes``; what was left out is named in the summary. Nothing here is a result until it
ran on a GPU: ``--device cpu --quick`` only tries the script. ``--device emulated`` runs all of it on any machine, with
launches, streams, graphs and priorities as on a GPU; its numbers are emulated, and say nothing about a GPU's speed.
``--device emulated:h200`` takes times and multiprocessors from a data sheet, in all parts but `launches` and `ranks`.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import deeppool as dp
from benchmarks.gpu import collocation, memory, placements, ranks, waves
from benchmarks.held_out import held_out
from deeppool.base import serialization
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Precision
from deeppool.errors import DeeppoolError
from deeppool.evaluation.experiments.stream_priorities import stream_priorities
from deeppool.graph.capture.capture import CapturedModel
from deeppool.profiling.table import Profile

MODELS = ("vgg16", "wide_resnet101_2", "inception_v3", "resnet50", "bert_base")
SIZES = (1, 4, 16, 64, 256)
HELD_OUT = (2, 8, 32, 128)
FEW = (1, 16)
"""Batch sizes of modes that are compared in launch costs alone."""
SECONDS = 1.5
"""For each batch size at most: the times of a GPU are steady."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How a model is measured."""

    precision: Precision
    graphs: bool

    @property
    def name(self) -> str:
        return f"{self.precision}-{'graphs' if self.graphs else 'eager'}"


# Those with graphs are saved.
ON_CUDA = (Mode("fp16", True), Mode("tf32", True), Mode("fp16", False), Mode("tf32", False))
ON_CPU = (Mode("fp32", False),)
MODES = {"cuda": ON_CUDA, "cpu": ON_CPU, "emulated": (Mode("fp32", True),)}
"""By kind of device."""
PAIRS = {"durations": [2e-4, 2e-3], "seconds": 0.05, "rounds": 2}
QUICK_PAIRS = {"matrices": [16], "durations": [2e-4], "seconds": 0.05, "rounds": 1}


@all_hardware_queues()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the JSON files")
    parser.add_argument("--device", default="cuda", help="cuda, cpu, emulated, or emulated:GPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["profiles"], help="each fills a call")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="of the parts profiles and ranks"
    )
    parser.add_argument("--rows", nargs="+", choices=placements.PLACEMENTS, help="of the part launches; default: all")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no measurement starts")
    parser.add_argument("--quick", action="store_true", help="a small model at two sizes: does the script run?")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * arguments.minutes
    results: dict[str, Any] = {
        "environment": serialization.to_json(dp.environment()),
        "device": arguments.device,
        "quick": arguments.quick,
    }
    for part in arguments.parts:
        # After each entry: a run that is cut short has what it measured.
        for found in PARTS[part](arguments, end):
            results[part] = found
            serialization.write_text(json.dumps(results, indent=1) + "\n", arguments.output / "summary.json")


def profiles(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """What is known so far, again and again; so do all parts."""
    modes = MODES[find_kind(arguments.device).name]
    found: dict[str, Any] = {"measurements": [], "left_out": []}
    yield found
    for name in ["resnet18"] if arguments.quick else arguments.models:
        if time.monotonic() > end:
            found["left_out"] += [f"{name} {mode.name}" for mode in modes]
            yield found
            continue
        try:
            model = capture(name, arguments.quick)
        except DeeppoolError as error:
            found["measurements"].append({"model": name, "mode": None, "error": str(error)})
            yield found
            continue
        for mode in modes:
            if time.monotonic() > end:
                found["left_out"].append(f"{name} {mode.name}")
            else:
                sizes, tried = ((1, 2, 4), (2,)) if arguments.quick else (SIZES, HELD_OUT)
                saved = mode.graphs or mode == modes[0]
                found["measurements"].append(
                    measure(model, mode, arguments.device, sizes, tried, arguments.output, saved=saved)
                )
            yield found


def ladder(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Collocation, one mechanism more at a time."""
    device = find_device(arguments.device)
    found: dict[str, Any] = {"measurements": [], "left_out": []}
    yield found
    for setting in collocation.QUICK if arguments.quick else collocation.SETTINGS:
        if time.monotonic() > end:
            found["left_out"].append(setting.jobs.foreground)
            yield found
            continue
        others = found["measurements"]
        try:
            for entry in collocation.measure(setting, device, end):
                found["measurements"] = [*others, entry]
                yield found
        except (DeeppoolError, RuntimeError) as error:
            entry["error"] = str(error).splitlines()[0]
            yield found


def plan_ranks(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """The first and the last rank of plans for eight GPUs, alone and beside a background."""
    setting = ranks.Setting()
    chosen = tuple(model for model in setting.models if model in arguments.models)
    setting = ranks.QUICK if arguments.quick else replace(setting, models=chosen)
    device = find_device(arguments.device)
    yield from ranks.measure(setting, device, _find_profile(arguments), lambda: time.monotonic() < end)


def pairs(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Which kernel disturbs which, and whose priority a graph has; a minute."""
    found: dict[str, Any] = {"left_out": []}
    for name in ("priorities", "interference"):
        if time.monotonic() > end:
            found["left_out"].append(name)
        elif name == "priorities":
            found[name] = [asdict(effect) for effect in stream_priorities(find_device(arguments.device))]
        else:
            measured = dp.measure_interference(
                device=arguments.device, waits=(), **(QUICK_PAIRS if arguments.quick else PAIRS)
            )
            found[name] = serialization.to_json(measured)
        yield found


def launches(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """A background in the rank's process and in its own, by ``dp.launch``."""
    found: dict[str, Any] = {"rows": [], "left_out": []}
    yield found
    setting = placements.QUICK if arguments.quick else placements.Setting()
    profile = _find_profile(arguments)(setting.foreground)
    for name, sharing in placements.rows_for(arguments.device).items():
        if arguments.rows and name not in arguments.rows:
            continue
        if time.monotonic() > end:
            found["left_out"].append(name)
        else:
            found["rows"] += placements.measure(setting, profile, {name: sharing})
        yield found


def _find_profile(arguments: argparse.Namespace) -> Callable[[str], Profile]:
    return ranks.saved_or_measured(arguments.output, arguments.device, quick=arguments.quick)


def random_pairs(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Random pairs of trainings that may not both fit into the device's memory."""
    device = find_device(arguments.device)
    setting = memory.QUICK if arguments.quick else memory.Setting()
    with device.times_only():
        yield from memory.measure(setting, device, lambda: time.monotonic() < end)


def tick_tock(arguments: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Memory over time and throughput of one wave, two waves, and one of twice the batch."""
    found: dict[str, Any] = {"rows": [], "left_out": []}
    yield found
    for model, batches in (waves.QUICK if arguments.quick else waves.SETTINGS).items():
        for batch in batches:
            if time.monotonic() > end:
                found["left_out"].append(f"{model} {batch}")
                continue
            try:
                found["rows"] += waves.measure(model, batch, arguments.device)
            except (DeeppoolError, RuntimeError) as error:
                found["rows"].append({"model": model, "batch": batch, "error": str(error).splitlines()[0]})
            yield found


PARTS = {
    "profiles": profiles,
    "ranks": plan_ranks,
    "ladder": ladder,
    "pairs": pairs,
    "launches": launches,
    "memory": random_pairs,
    "waves": tick_tock,
}


def capture(name: str, quick: bool) -> CapturedModel:
    if name != "bert_base":
        return dp.capture(name, input_shape=(3, 32, 32) if quick else None)
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return dp.capture(BertForSequenceClassification(BertConfig()), (128,), input_dtype=torch.int64)


def measure(
    model: CapturedModel,
    mode: Mode,
    device: str,
    sizes: tuple[int, ...],
    tried: tuple[int, ...],
    output: Path,
    *,
    saved: bool,
) -> dict[str, Any]:
    """One entry of the summary; an error is an entry too, so that one model does not end the others."""
    entry: dict[str, Any] = {"model": model.graph.model, "mode": mode.name}
    started = time.monotonic()
    try:
        asked = tuple(sorted({*sizes, *tried})) if saved else FEW
        profile = dp.profile(
            model, device=device, batch_sizes=asked, precision=mode.precision, graphs=mode.graphs, seconds=SECONDS
        )
    except (DeeppoolError, RuntimeError) as error:
        return entry | {"error": str(error).splitlines()[0], "seconds": time.monotonic() - started}
    print(f"{mode.name}: {profile.explain()}", flush=True)
    if saved:
        path = output / f"{profile.graph.model}-{profile.device}-{mode.name}.json"
        serialization.write(profile, path)
        entry["held_out"] = [
            {"batch": size.batch, "median_error": size.median, "iteration_error": size.iteration}
            for size in held_out(profile, tried)
        ]
    return entry | {
        "checks": [asdict(check) | {"deviation": check.deviation} for check in profile.checks],
        "caveats": list(profile.caveats()),
        "extrapolation_error": profile.extrapolation_error,
        "peak_layer": peak_layer(profile),
        "seconds": time.monotonic() - started,
    }


def peak_layer(profile: Profile) -> dict[str, Any] | None:
    """The layer that needs most memory beyond what was held when it began, at the largest batch."""
    known = [x for x in profile.measurements if x.peak_bytes]
    if not known:
        return None
    most = max(known, key=lambda x: x.peak_bytes[-1])
    name = next(layer.name for layer in profile.graph.layers if layer.signature == most.signature)
    return {"name": name, "batch": profile.batch_sizes[-1], "bytes": most.peak_bytes[-1]}


if __name__ == "__main__":
    main()
