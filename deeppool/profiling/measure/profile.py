"""A captured model → :class:`Profile`, measured on the device at hand.

Whole iterations run, with a stamp of the time between the layers; see ``iteration``. They alternate with
iterations without stamps, which the layers must add up to; see ``spread`` for how often, ``check`` for the bound.
On CUDA both kinds are captured as graphs first, as a job runs there.
"""

import datetime
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from deeppool.base import serialization
from deeppool.base.run_registry import registered
from deeppool.device.environment import package_versions
from deeppool.device.find import find_device
from deeppool.device.heap import memory_kept
from deeppool.device.protocol import AUTOCAST, Device, Precision
from deeppool.errors import InvalidValueError, ProfileError
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.layer import LayerGraph
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.measure.bench import Bench, DeviceMemory
from deeppool.profiling.measure.concurrent_ranks import ConcurrentRanks, check_ranks
from deeppool.profiling.measure.sampling import MAXIMUM_SECONDS, faster_half, spread, typical
from deeppool.profiling.store import MeasurementLog, ResumeState, Runs, read_resume_state
from deeppool.profiling.table import Measurement, Profile
from deeppool.units import format_bytes

METHOD = (
    "whole iterations, {mode}, with a stamp between the layers, in turns with whole iterations without; "
    "mean of the faster half of the runs, and of the layers of equal signature"
)

SHORTEST = 1e-9
"""Seconds; a layer that only shows its input otherwise takes none by the clock, and amplification divides by it."""


@registered
def profile(
    model: CapturedModel | torch.nn.Module | str,
    input_shape: Shapes | None = None,
    *,
    device: str = "auto",
    batch_sizes: Sequence[int] = (1, 2, 4, 8),
    precision: Precision = "fp32",
    graphs: bool | None = None,
    threads: int = 1,
    ranks: int = 1,
    seconds: float = MAXIMUM_SECONDS,
    output: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Profile:
    """Measures every layer at several per-GPU batch sizes, and the whole iteration beside it.

    Args:
        model: a captured model, or what :func:`deeppool.capture` takes.
        input_shape: of one sample, when the model is not captured yet.
        device: ``auto``, ``cpu`` or ``cuda``.
        batch_sizes: per-GPU batch sizes to measure; a plan interpolates between them.
        precision: ``bf16`` and ``fp16`` run under autocast; ``tf32`` shortens the mantissa of products and
            convolutions in 32 bits, on CUDA.
        graphs: whether iterations are CUDA graphs; None: on CUDA they are.
        threads: CPU threads per GPU's worth of work; live runs on a CPU give each rank one core.
        ranks: CPU cores that train at the same time, of which one is measured, as one rank of a plan for as many: they
            share memory, caches and power. 1 measures a core that has all of these to itself.
        seconds: to spend on a batch size whose iterations are not steady before; a few iterations are measured however
            long they take.
        output: where to save the profile. Until it is whole, finished iterations are kept in
            ``<output>.partial``, and the same call goes on from there.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        ProfileError: the model cannot run at a batch size, or does not fit into memory.
        InvalidValueError: no such batch size, ranks, seconds, device, or precision there.
    """
    sizes = tuple(sorted(set(batch_sizes)))
    if not sizes or sizes[0] < 1:
        raise InvalidValueError(f"batch_sizes must be positive numbers, got {list(batch_sizes)} (for example 1,2,4,8)")
    if not 0 < seconds < math.inf:
        raise InvalidValueError(f"seconds must be positive and finite, got {seconds:g}")
    place = find_device(device)
    graphs = place.kind == "cuda" if graphs is None else graphs
    if graphs and place.kind != "cuda":
        raise InvalidValueError(f"graphs are CUDA graphs, got device {place.kind} (leave graphs out)")
    check_ranks(ranks, place.kind, threads)
    log_path = None if output is None else _log_path(serialization.check_writable(output))
    with place.arithmetic(precision):  # refused before minutes of capturing
        pass
    report = on_progress or (lambda what, share: None)
    if isinstance(model, CapturedModel):
        captured = model
    else:
        captured = capture(model, input_shape, on_progress=lambda what, _: report(what, 0.0))
    versions = package_versions("deeppool", "torch")
    method = _method(graphs)
    conditions = json.dumps([captured.graph.fingerprint, *_circumstances(place, precision, threads, graphs, ranks)])
    _check_memory(captured, sizes[-1], place, precision, ranks)
    log = MeasurementLog(log_path, conditions)
    memory: dict[int, DeviceMemory] = {}
    # As in the processes that train.
    with (
        memory_kept() if place.kind == "cpu" else nullcontext(),
        _threads(threads),
        place.arithmetic(precision),
        nullcontext() if ranks == 1 else ConcurrentRanks(captured, precision, ranks - 1) as concurrent_ranks,
    ):
        bench = Bench(captured, place, precision, graphs, concurrent_ranks)
        for index, batch in enumerate(sizes):
            # Larger batches take longer, about as their number of samples.
            start, end = (sum(sizes[:n]) / sum(sizes) for n in (index, index + 1))
            for part in bench.measure(batch, log.runs[batch], log, seconds):
                report(f"{captured.graph.model} at batch {batch}", start + part * (end - start))
            memory[batch] = bench.memory(batch)
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
    ranks: int = 1,
    graphs: bool | None = None,
) -> ResumeState | None:
    """What :func:`profile` with these arguments would go on from; None: it would begin anew.

    Args:
        output: as of :func:`profile`.
        graph: of the model; None: whichever it is.
        device: as of :func:`profile`.
        precision: as of :func:`profile`.
        threads: as of :func:`profile`.
        ranks: as of :func:`profile`.
        graphs: as of :func:`profile`.

    Raises:
        InvalidValueError: no such device here.
    """
    kept = read_resume_state(_log_path(Path(output)))
    if kept is None:
        return None
    place = find_device(device)
    graphs = place.kind == "cuda" if graphs is None else graphs
    now = json.dumps(_circumstances(place, precision, threads, graphs, ranks))
    try:
        fingerprint, *circumstances = json.loads(kept.conditions)
    except ValueError:
        return None
    same = circumstances == json.loads(now) and (graph is None or graph.fingerprint == fingerprint)
    return kept if same else None


def _log_path(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def _method(graphs: bool) -> str:
    return METHOD.format(mode="CUDA graphs" if graphs else "eager")


def _circumstances(place: Device, precision: Precision, threads: int, graphs: bool, ranks: int) -> list[object]:
    """What must be the same for times to belong together, beside the model."""
    return [place.kind, place.name, precision, threads, ranks, _method(graphs), package_versions("deeppool", "torch")]


def _measurements(
    captured: CapturedModel, runs: Sequence[Runs], memory: Sequence[DeviceMemory]
) -> tuple[Measurement, ...]:
    """One per signature, over its layers and runs at each batch size."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(captured.graph.layers):
        places[layer.signature].append(index)
    # Of layers and of runs the mean: it keeps the sum, and so what the whole iteration is compared with.
    counting = [[at.layered[run] for run in faster_half(at.seconds[0])] for at in runs]
    found = []
    for signature, layers in places.items():
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
    """Refuses what cannot fit before it takes the machine's memory: weights and gradients, and what layers keep."""
    layers = captured.graph.layers
    kept = [x.autocast_activation_bytes if precision in AUTOCAST else x.activation_bytes for x in layers]
    needed = ranks * (batch * sum(size or 0 for size in kept) + 2 * captured.graph.parameter_bytes)
    free = device.free_memory()
    if needed > free:
        raise ProfileError(
            f"an iteration of {captured.graph.model} at batch {batch} keeps {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free on {device.name} (smaller --batch-sizes; a plan continues the line above "
            "them)"
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The thread count of the run, for the time of the measurement."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
