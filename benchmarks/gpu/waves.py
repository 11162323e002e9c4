"""One wave, two waves and one of twice the batch on one device: throughput, and memory over time."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

import deeppool as dp
from deeppool.device.emulated.device import new_device
from deeppool.device.find import find_device
from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Device
from deeppool.evaluation.experiments.tick_tock import train_waves

SETTINGS = {"resnet50": (32, 128, 512), "vgg16": (16, 64, 256)}
"""Batches by model; two waves compete with one of twice the batch."""
QUICK = {"benchmarks.gpu.collocation:tiny": (8,)}
SAMPLES = 400
"""Of the memory, in each run at most."""


def measure(model: str, batch: int, kind: str) -> list[dict[str, Any]]:
    """Runs the three settings, each on a device whose allocator has reserved nothing yet."""
    settings = ((1, batch), (2, batch), (1, 2 * batch))
    if find_kind(kind).name == "emulated":
        gpu = kind.partition(":")[2] or "h200"
        return [run(model, samples, new_device(gpu), waves) for waves, samples in settings]
    if kind == "cuda":
        # Any other keeps what one wave's stream frees from the other's; read when a process first uses the GPU.
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    found = []
    for waves, samples in settings:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            found.append(process.submit(run_alone, model, samples, kind, waves).result())
    return found


def run_alone(model: str, batch: int, kind: str, waves: int) -> dict[str, Any]:
    """Runs a setting in a new process."""
    return run(model, batch, find_device(kind), waves)


def run(model: str, batch: int, device: Device, waves: int) -> dict[str, Any]:
    """Returns one setting's throughput and memory."""
    captured = dp.capture(model)
    with sampled_memory(device) as samples:
        found, _ = train_waves(captured, device, batch, waves=waves)
    step = max(1, len(samples) // SAMPLES)
    return {
        "model": model,
        **asdict(found),
        "throughput": found.throughput,
        "peak": max(used for _, used in samples),
        "memory_timeline": samples[::step],
    }


@contextmanager
def sampled_memory(device: Device, interval: float = 1e-3) -> Iterator[list[tuple[float, int]]]:
    """Samples seconds on the device's clock and bytes in use, in a thread, during the block."""
    samples: list[tuple[float, int]] = []
    clock = device.clock
    stop, stopped = clock.signal(), clock.signal()

    def sample() -> None:
        started = clock.now()
        while not stop.is_set():
            use = device.memory_use()
            samples.append((clock.now() - started, use[0] if use else 0))
            clock.sleep(interval)
        stopped.set()

    thread = clock.start_thread(sample, "memory")
    try:
        yield samples
    finally:
        stop.set()
        stopped.wait()
        thread.join()
