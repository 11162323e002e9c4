"""Measurement of a captured model's layer times on this machine's device.

Iterations with a time stamp between layers (``iteration``) alternate with iterations without stamps, whose time the
layers must add up to: ``sampling`` decides how often, ``iteration_check`` holds the bound. On CUDA both kinds are
captured as CUDA graphs first, as jobs run there.
"""

import datetime
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.base.run_registry import registered
from deeppool.device.environment import package_versions
from deeppool.device.find import find_device
from deeppool.device.heap import memory_kept
from deeppool.device.kinds import DeviceName, check_precision, find_kind, graphs_name
from deeppool.device.protocol import AUTOCAST, Device, Precision
from deeppool.device.threads import torch_threads
from deeppool.errors import InvalidValueError, ProfileError
from deeppool.graph.capture.capture import CapturedModel, Model, capture
from deeppool.graph.layer import LayerGraph
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.measure.bench import Bench, DeviceMemory
from deeppool.profiling.measure.concurrent_ranks import ConcurrentRanks, check_ranks
from deeppool.profiling.measure.sampling import MAXIMUM_SECONDS, faster_half, spread, typical
from deeppool.profiling.store import MeasurementLog, ResumeState, Runs, read_resume_state
from deeppool.profiling.table import BatchSizes, Measurement, Profile, distinct_sizes
from deeppool.units import format_bytes

METHOD = (
    "whole iterations, {mode}, with a stamp between the layers, in turns with whole iterations without; "
    "mean of the faster half of the runs, and of the layers of equal signature"
)
LESS_STAMPS = "; less what a stamp adds between two short kernels"
"""Where a GPU runs graphs."""

SHORTEST = 1e-9
"""Minimum seconds of a layer: a layer of views takes no measurable time, and amplification divides by it."""


@interruptible
@typed
@registered
def profile(
    model: CapturedModel | Model,
    input_shape: Shapes | None = None,
    *,
    device: DeviceName = "auto",
    batch_sizes: BatchSizes = (1, 2, 4, 8),
    precision: Precision = "fp32",
    graphs: bool | None = None,
    threads: int = 1,
    ranks: int = 1,
    seconds: float = MAXIMUM_SECONDS,
    output: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Profile:
    """Measures every layer and the whole iteration at several per-GPU batch sizes, and the optimizer's update.

    Args:
        model: a captured model, or what :func:`deeppool.capture` takes.
        input_shape: shape of one sample, for a model that is not captured yet.
        device: ``auto``, ``cpu``, ``cuda``, ``emulated``, or ``emulated:h200`` and so for other GPUs with a data sheet,
            whose kernels compute no values here.
        batch_sizes: per-GPU batch sizes to measure; a plan interpolates between them.
        precision: ``bf16`` and ``fp16`` run under autocast; ``tf32`` shortens the mantissa of products and
            convolutions in 32 bits, on CUDA.
        graphs: whether iterations run as CUDA graphs; None: on CUDA and on emulated devices they do.
        threads: CPU threads of the measured rank; live runs on a CPU give each rank one core.
        ranks: CPU cores that train at the same time, of which one is measured, as in a plan for as many ranks that
            share memory bandwidth, caches and power. With 1 a single core is measured alone.
        seconds: time limit per batch size, reached if iterations are not steady before; a few iterations are measured
            however long they take.
        output: file to save the profile to. Finished iterations are logged in ``<output>.partial``, from which
            the same call resumes after an interruption.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        ProfileError: the model cannot run at a batch size, or does not fit into memory.
        InvalidValueError: invalid batch sizes, ranks, seconds, device or precision.
        DocumentError: ``output`` cannot be written; once everything is measured, the profile is its ``record``.
    """
    sizes = distinct_sizes(batch_sizes)
    seconds = positive_number("seconds", seconds)
    threads, ranks = whole_number("threads", threads), whole_number("ranks", ranks)
    place = find_device(device)
    graphs = place.asynchronous if graphs is None else bool(graphs)
    if graphs and not place.asynchronous:
        raise InvalidValueError(f"graphs are CUDA graphs, got device {place.kind} (leave graphs out)")
    check_precision(precision)
    check_ranks(ranks, place.kind, threads)
    log_path = None if output is None else _log_path(serialization.check_writable(output))
    with place.arithmetic(precision):  # raises before minutes of capturing
        pass
    report = on_progress or (lambda what, share: None)
    if isinstance(model, CapturedModel):
        captured = model
    else:
        captured = capture(model, input_shape, on_progress=lambda what, _: report(what, 0.0))
    versions = package_versions("deeppool", "torch")
    method = _method(place, graphs)
    conditions = json.dumps([captured.graph.fingerprint, *_conditions(place, precision, threads, graphs, ranks)])
    with place.times_only():
        _check_memory(captured, sizes[-1], place, precision, ranks)
    log = MeasurementLog(log_path, conditions)
    memory: dict[int, DeviceMemory] = {}
    # As in the processes that train.
    with (
        nullcontext() if place.asynchronous else memory_kept(),
        torch_threads(threads),
        place.arithmetic(precision),
        place.times_only(),
        nullcontext() if ranks == 1 else ConcurrentRanks(captured, precision, ranks - 1) as concurrent_ranks,
    ):
        bench = Bench(captured, place, precision, graphs, concurrent_ranks)
        for index, batch in enumerate(sizes):
            # Larger batches take longer, about as their number of samples.
            start, end = (sum(sizes[:n]) / sum(sizes) for n in (index, index + 1))
            for part in bench.measure(batch, log.runs[batch], log, seconds):
                report(f"{captured.graph.model} at batch {batch}", start + part * (end - start))
            memory[batch] = bench.memory(batch)
        update_per_byte = bench.update_per_byte(sizes[0])
    report("done", 1.0)
    made = Profile(
        graph=captured.graph,
        batch_sizes=sizes,
        measurements=_measurements(captured, [log.runs[batch] for batch in sizes], [memory[batch] for batch in sizes]),
        device=place.kind,
        device_name=place.name,
        precision=precision,
        threads=threads,
        ranks=ranks,
        provenance="measured",
        method=method,
        date=datetime.date.today().isoformat(),
        versions=versions,
        graphs=graphs,
        update_per_byte=update_per_byte,
        origin=captured,
    )
    checks = tuple(_check(made, batch, log.runs[batch], memory[batch]) for batch in sizes)
    result = replace(made, checks=checks)
    if output is not None:
        serialization.write(result, output)
        log.remove()
    return result


def resumable(
    output: str | Path,
    graph: LayerGraph | None = None,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    threads: int = 1,
) -> ResumeState | None:
    """Returns the interrupted measurement that :func:`profile` would resume with these arguments; None: there is none.

    Args:
        output: as of :func:`profile`.
        graph: graph of the model; None: of any model.
        device: as of :func:`profile`.
        precision: as of :func:`profile`.
        threads: as of :func:`profile`, whose other arguments have their defaults.

    Raises:
        InvalidValueError: no such device here.
    """
    state = read_resume_state(_log_path(Path(output)))
    if state is None:
        return None
    place = find_device(device)
    now = json.dumps(_conditions(place, precision, threads, place.asynchronous, ranks=1))
    try:
        fingerprint, *recorded = json.loads(state.conditions)
    except ValueError:
        return None
    same = recorded == json.loads(now) and (graph is None or graph.fingerprint == fingerprint)
    return state if same else None


def _log_path(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def _method(place: Device, graphs: bool) -> str:
    method = METHOD.format(mode=graphs_name(place.kind) if graphs else "eager")
    return method + LESS_STAMPS if graphs and not find_kind(place.kind).emulated else method


def _conditions(place: Device, precision: Precision, threads: int, graphs: bool, ranks: int) -> list[object]:
    """Conditions other than the model under which times may be combined."""
    return [
        place.kind,
        place.name,
        precision,
        threads,
        ranks,
        _method(place, graphs),
        package_versions("deeppool", "torch"),
    ]


def _measurements(
    captured: CapturedModel, runs: Sequence[Runs], memory: Sequence[DeviceMemory]
) -> tuple[Measurement, ...]:
    """Computes one measurement per signature, over its layers and runs at each batch size."""
    indices: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(captured.graph.layers):
        indices[layer.signature].append(index)
    # Means over layers and runs keep the sum, which is compared with the whole iteration.
    counting = [[at.layered[run] for run in faster_half(at.seconds[0])] for at in runs]
    found = []
    for signature, layers in indices.items():
        forward, backward = (
            [statistics.fmean(run[i][direction] for run in these for i in layers) for these in counting]
            for direction in (0, 1)
        )
        totals = [[statistics.fmean(sum(run[i]) for i in layers) for run in at.layered] for at in runs]
        found.append(
            Measurement(
                signature,
                forward=tuple(max(time, SHORTEST) for time in forward),
                backward=tuple(backward),
                spread=tuple(map(spread, totals)),
                peak_bytes=tuple(max(use.layers[i] for i in layers) for use in memory if use.layers),
            )
        )
    return tuple(found)


def _check(made: Profile, batch: int, runs: Runs, memory: DeviceMemory) -> IterationCheck:
    layered, whole = runs.seconds
    return IterationCheck(
        batch=batch,
        layers=made.iteration_time(batch),
        iteration=typical(whole),
        spread=max(spread(layered), spread(whole)),
        runs=len(whole),
        peak_memory=memory.peak,
    )


def _check_memory(captured: CapturedModel, batch: int, device: Device, precision: Precision, ranks: int) -> None:
    """Raises where weights, gradients and activations cannot fit, before they exhaust the machine's memory."""
    layers = captured.graph.layers
    kept = [x.autocast_activation_bytes if precision in AUTOCAST else x.activation_bytes for x in layers]
    needed = ranks * (batch * sum(size or 0 for size in kept) + 2 * captured.graph.parameter_bytes)
    free = device.free_memory()
    if needed > free:
        raise ProfileError(
            f"an iteration of {captured.graph.model} at batch {batch} needs {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free on {device.name} (give smaller --batch-sizes; plans extrapolate "
            "beyond them)"
        )
