"""A captured model → :class:`Profile`, measured layer by layer on the device at hand.

Each distinct layer runs alone on random activations: forward, then the gradients of its inputs and
parameters, as in training. One run warms up; then runs repeat until ``MINIMUM_RUNS`` are done and
``MINIMUM_SECONDS`` have passed. The median is kept with its spread:

    warm-up │ run  run  run … │ median of forward, median of backward
"""

import copy
import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from deeppool import documents
from deeppool.device.common import Device, find_device
from deeppool.env import package_versions
from deeppool.errors import InvalidValueError, ProfileError
from deeppool.graph.capture import CapturedModel, capture
from deeppool.graph.extract import Segment, example_inputs, extract
from deeppool.profiling.store import MeasurementLog, Times
from deeppool.profiling.table import Measurement, Profile

MINIMUM_RUNS = 3
MAXIMUM_RUNS = 50
MINIMUM_SECONDS = 0.1
METHOD = "each distinct layer alone, eager, forward and backward; one warm-up, median of at least 3 runs"

Precision = Literal["fp32", "bf16", "fp16"]
Progress = Callable[[int, int, str], None]
"""Called with measurements done, of how many, and what is next."""


def profile(
    model: CapturedModel | torch.nn.Module | str,
    input_shape: tuple[int, ...] | None = None,
    *,
    device: str = "auto",
    batch_sizes: Sequence[int] = (1, 2, 4, 8),
    precision: Precision = "fp32",
    threads: int = 1,
    output: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Profile:
    """Measures every distinct layer at several per-GPU batch sizes.

    Args:
        model: a captured model, or what :func:`deeppool.capture` takes.
        input_shape: of one sample, when the model is not captured yet.
        device: ``auto``, ``cpu`` or ``cuda``.
        batch_sizes: per-GPU batch sizes to measure; a plan interpolates between them.
        precision: ``bf16`` and ``fp16`` run under autocast.
        threads: CPU threads per GPU's worth of work; live runs on a CPU give each rank one core.
        output: where to save the profile. Until it is whole, finished measurements are kept in
            ``<output>.partial``, and the same call goes on from there.
        on_progress: see :data:`Progress`.

    Raises:
        ProfileError: a layer cannot run at a batch size.
    """
    sizes = tuple(sorted(set(batch_sizes)))
    if not sizes or sizes[0] < 1:
        raise InvalidValueError(f"batch_sizes must be positive numbers, got {list(batch_sizes)} (for example 1,2,4,8)")
    place = find_device(device)
    log_path = None
    if output is not None:
        log_path = documents.check_writable(output).with_name(Path(output).name + ".partial")
    captured = model if isinstance(model, CapturedModel) else capture(model, input_shape)
    versions = package_versions("deeppool", "torch")
    conditions = json.dumps([captured.graph.fingerprint, place.kind, place.name, precision, threads, METHOD, versions])
    log = MeasurementLog(log_path, conditions)
    representatives = {layer.signature: index for index, layer in reversed(list(enumerate(captured.graph.layers)))}
    pending = [(signature, index, batch) for signature, index in representatives.items() for batch in sizes]
    with _threads(threads):
        for done, (signature, index, batch) in enumerate(pending):
            if on_progress is not None:
                on_progress(done, len(pending), f"{captured.graph.layers[index].name} at batch {batch}")
            if (signature, batch) not in log.times:
                log.add((signature, batch), _measure(captured, index, batch, place, precision))
    if on_progress is not None:
        on_progress(len(pending), len(pending), "done")
    result = Profile(
        graph=captured.graph,
        batch_sizes=sizes,
        measurements=tuple(_gather(signature, sizes, log) for signature in representatives),
        device=place.kind,
        device_name=place.name,
        precision=precision,
        threads=threads,
        provenance="measured",
        method=METHOD,
        date=datetime.date.today().isoformat(),
        versions=versions,
        origin=captured,
    )
    if output is not None:
        documents.write(result, output)
        log.remove()
    return result


def _gather(signature: str, sizes: tuple[int, ...], log: MeasurementLog) -> Measurement:
    times = [log.times[signature, batch] for batch in sizes]
    forward, backward, spread = zip(*times, strict=True)
    return Measurement(signature, forward, backward, spread)


def _measure(captured: CapturedModel, layer: int, batch: int, device: Device, precision: Precision) -> Times:
    segment = extract(captured, [layer])
    place = device.torch_device()
    try:
        segment = replace(segment, module=copy.deepcopy(segment.module).to(place))
        inputs = example_inputs(segment, batch, place)
        return _repeat(lambda: _run_once(segment, batch, inputs, device, precision))
    except (RuntimeError, ValueError) as error:
        raise ProfileError(
            f"layer '{captured.graph.layers[layer].name}' of {captured.graph.model} cannot run at batch {batch}: "
            f"{str(error).splitlines()[0]} (try other --batch-sizes)"
        ) from error


def _repeat(run: Callable[[], tuple[float, float]]) -> Times:
    """Warm-up, then runs until both minima are reached."""
    run()
    runs: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(runs) < MINIMUM_RUNS or (time.perf_counter() - started < MINIMUM_SECONDS and len(runs) < MAXIMUM_RUNS):
        runs.append(run())
    totals = [forward + backward for forward, backward in runs]
    lower, middle, upper = statistics.quantiles(totals, n=4)
    forward, backward = (statistics.median(times) for times in zip(*runs, strict=True))
    return forward, backward, (upper - lower) / 2 / middle if middle else 0.0


def _run_once(
    segment: Segment, batch: int, inputs: list[torch.Tensor], device: Device, precision: Precision
) -> tuple[float, float]:
    """Seconds of one forward and one backward."""
    wanted = [x for x in (*inputs, *segment.module.parameters()) if x.requires_grad]
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    device.synchronize()
    started = time.perf_counter()
    with torch.autocast(device.kind, dtype, enabled=precision != "fp32"):
        outputs = segment.module(batch, *inputs)
    device.synchronize()
    forward = time.perf_counter() - started
    outputs = [x for x in outputs if x.requires_grad]
    if not outputs or not wanted:
        return forward, 0.0
    gradients = [torch.ones_like(x) for x in outputs]
    device.synchronize()
    started = time.perf_counter()
    torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
    device.synchronize()
    return forward, time.perf_counter() - started


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The thread count of the run, for the time of the measurement."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
