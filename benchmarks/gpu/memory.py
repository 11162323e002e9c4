"""Random pairs of two trainings that may not both fit into a device's memory: which of them has to do without.

The foreground is there first. A background is then made in a number of bytes drawn at random beside what the foreground
holds: it must either be refused, or run beside the foreground, which must never be short of memory.
"""

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.collocation import TINY
from deeppool.base.sharing import Sharing
from deeppool.collocation.foreground_memory import ForegroundMemory
from deeppool.collocation.in_process_background import InProcessBackground
from deeppool.device.protocol import Device, Precision
from deeppool.errors import DeeppoolError
from deeppool.evaluation.experiments.stream_foreground import StreamForeground
from deeppool.evaluation.experiments.stream_ladder import stream_background

WARM_UPS = 2
"""Iterations of a foreground before there is a background, as in a run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """From what pairs are drawn."""

    foregrounds: int = 10
    backgrounds: int = 5
    """Of each foreground."""
    models: tuple[str, ...] = ("vgg16", "resnet50", "inception_v3", "wide_resnet101_2")
    batches: tuple[int, ...] = (1, 4, 16, 32, 64)
    precision: Precision = "fp16"
    left: float = 8e9
    """Highest number of bytes left to a background."""
    iterations: int = 10
    """Of the foreground beside each background."""
    seed: int = 0


QUICK = Setting(2, 4, models=(TINY,), batches=(4096,), precision="fp32", left=2e7)


def measure(setting: Setting, device: Device, may_start: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """All pairs so far, again after each."""
    draw = random.Random(setting.seed)
    found: dict[str, Any] = {"pairs": [], "left_out": 0}
    yield found
    for _ in range(setting.foregrounds):
        model, batch = draw.choice(setting.models), draw.choice(setting.batches)
        drawn = [
            (draw.choice(setting.models), draw.choice(setting.batches), draw.uniform(0, setting.left))
            for _ in range(setting.backgrounds)
        ]
        if not may_start():
            found["left_out"] += len(drawn)
            yield found
            continue
        foreground = StreamForeground.of_model(model, batch, setting.precision, device)
        with foreground.current():
            memory = ForegroundMemory(device, device.torch_device())
            foreground.repeat(WARM_UPS)
            held = device.reserved_memory() or 0
            for background, size, left in drawn:
                device.limit_memory(held + left)
                outcome = run_beside(foreground, memory, (background, size), setting, device)
                device.limit_memory(device.memory)
                gc.collect()  # the background: captured models refer to themselves
                pair = {"foreground": [model, batch], "held": held, "background": [background, size], "left": left}
                found["pairs"].append(pair | outcome)
                yield found
        del foreground
        gc.collect()


def run_beside(
    foreground: StreamForeground, memory: ForegroundMemory, job: tuple[str, int], setting: Setting, device: Device
) -> dict[str, Any]:
    """Makes a background, if it fits, and runs both; returns why each of them failed, and steps of the background."""
    found: dict[str, Any] = {"foreground_failed": None, "refused": None, "background_failed": None, "steps": 0.0}
    try:
        with memory.held():
            training = stream_background(*job, Sharing(), device, setting.precision)
            background = InProcessBackground(training, device, foreground.state)
    except (DeeppoolError, RuntimeError) as error:
        found["refused"] = first_line(error)
        device.synchronize()  # as a rank does, before the memory is used again
    try:
        if found["refused"] is None:
            background.begin()
        foreground.repeat(setting.iterations)
    except (DeeppoolError, RuntimeError) as error:
        found["foreground_failed"] = first_line(error)
    if found["refused"] is None:
        done = background.rest()
        found["background_failed"] = done.get("why")
        found["steps"] = sum(steps for steps, _ in done.get("parts", ()))
        background.close()
        device.synchronize()
    return found


def first_line(error: Exception) -> str:
    return f"{'memory: ' if isinstance(error, torch.OutOfMemoryError) else ''}{str(error).splitlines()[0]}"
