"""What does a background at the lowest priority get of a foreground's waits, by their length?

ResNet-50 trains on one core and rests for a while after some layers; ResNet-18 trains beside it on the same core at the
lowest priority. Short waits find the background's caches cold. By turns in several rounds, each against the background
alone just before; the table has medians with the smallest and the largest round.

    python benchmarks/simulator/gaps.py -o gaps.json
    python benchmarks/simulator/gaps.py -o check.json --quick      seconds, no number worth keeping
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torchvision

import deeppool as dp
from deeppool import documents
from deeppool.device.cpu import LOWEST, lower_priority, pin_to_core, usable_cores
from deeppool.device.heap import keep_memory

WAITS = ((2e-4, 2e-3), (5e-4, 5e-3), (1e-3, 1e-2), (2e-3, 2e-2), (5e-3, 5e-2), (2e-2, 5e-2))
"""Seconds of a wait, and of the work before it."""
T = TypeVar("T")
COLD = 5
"""Steps before anything is measured."""


class Beside(NamedTuple):
    """What both processes see of the background."""

    works: "Synchronized[int]"
    ready: "Synchronized[int]"
    steps: "Synchronized[int]"
    cpu: "Synchronized[float]"
    """Seconds that it has used by the end of its last step."""


def main() -> None:
    """Measures, prints the table, saves all rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="beside the background, of each length and round")
    parser.add_argument("--quick", action="store_true", help="one length, one round, a second")
    arguments = parser.parse_args()
    documents.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    waits, rounds, seconds = (WAITS, arguments.rounds, arguments.seconds)
    if arguments.quick:
        waits, rounds, seconds = WAITS[-1:], 1, 1.0
    found = measure(waits, rounds, seconds)
    print(table(found))
    documents.write_text(
        json.dumps({"environment": documents.to_json(dp.environment()), "rounds": found}), arguments.output
    )


def measure(waits: Sequence[tuple[float, float]], rounds: int, seconds: float) -> list[dict[str, float]]:
    """Each length in each round, in processes of their own: they keep to one core and the memory that they free."""
    context = multiprocessing.get_context("spawn")
    beside = Beside(*(context.Value(kind, 0) for kind in "iiid"))
    background = context.Process(target=train_beside, args=(beside,))
    results = context.SimpleQueue()
    foreground = context.Process(target=train_with_waits, args=(beside, waits, rounds, seconds, results))
    try:
        background.start()
        while not beside.ready.value:
            assert background.is_alive(), "the background has died"
            time.sleep(0.1)
        foreground.start()
        while foreground.is_alive():
            assert background.is_alive(), "the background has died"
            foreground.join(0.1)
        assert foreground.exitcode == 0, "the foreground has died"
        return results.get()
    finally:
        for process in (background, foreground):
            if process.pid is not None:
                process.kill()
                process.join()


def train_with_waits(
    beside: Beside, waits: Sequence[tuple[float, float]], rounds: int, seconds: float, results: "SimpleQueue"
) -> None:
    """The foreground's process."""
    resting = Resting()
    step = training("resnet50", 8, resting)
    for _ in range(COLD):
        step()
    found = []
    for _ in range(rounds):
        for wait, work in waits:
            resting.wait, resting.work = wait, work
            found.append({"wait": wait, **compared(step, beside, seconds)})
    results.put(found)


class Resting:
    """Called after a layer: waits if there was enough work since the last time."""

    def __init__(self) -> None:
        """Never, until it is told how long."""
        self.wait, self.work, self._last = 0.0, float("inf"), 0.0

    def __call__(self, *_: object) -> None:
        """A hook of a module."""
        if time.perf_counter() - self._last > self.work:
            time.sleep(self.wait)
            self._last = time.perf_counter()


def training(name: str, batch: int, rest: Callable[..., None] | None = None) -> Callable[[], None]:
    """One step of a model's training on 3x64x64 images, in this process, on the first core."""
    keep_memory()
    torch.set_num_threads(1)
    pin_to_core(usable_cores()[0])
    model = getattr(torchvision.models, name)()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    samples, labels = torch.randn(batch, 3, 64, 64), torch.zeros(batch, dtype=torch.long)
    for module in model.modules():
        if rest is not None and isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(rest)
            module.register_full_backward_pre_hook(rest)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()

    return step


def train_beside(beside: Beside) -> None:
    """The background's process."""
    step = training("resnet18", 4)
    for _ in range(COLD):
        step()
    assert lower_priority("lowest") == LOWEST, "the lowest priority is not to be had here"
    beside.ready.value = 1
    while True:
        if not beside.works.value:
            time.sleep(0.01)
            continue
        step()
        beside.cpu.value = time.process_time()
        beside.steps.value += 1


def compared(step: Callable[[], None], beside: Beside, seconds: float) -> dict[str, float]:
    """The background alone, and beside the foreground."""
    alone, own_step, _ = harvested(beside, lambda: stand_back(beside, seconds / 3))
    rate, a_step, idle = harvested(beside, lambda: idle_share(step, seconds))
    return {
        "idle": idle,
        "harvest of idle": rate / alone / idle,
        "cpu of idle": rate * a_step / idle,
        "cpu of a step": a_step / own_step,
    }


def stand_back(beside: Beside, seconds: float) -> None:
    """Until the background has done a step, and so long at least."""
    before = beside.steps.value
    time.sleep(seconds)
    while beside.steps.value == before:
        time.sleep(0.1)


def idle_share(step: Callable[[], None], seconds: float) -> float:
    """Of the time, in which the foreground used no CPU."""
    started, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        step()
    return 1 - (time.process_time() - used) / (time.perf_counter() - started)


def harvested(beside: Beside, meanwhile: Callable[[], T]) -> tuple[float, float, T]:
    """Steps a second of the background, CPU seconds of one, and what ``meanwhile`` says."""
    beside.works.value = 1
    time.sleep(0.3)
    steps, cpu, started = beside.steps.value, beside.cpu.value, time.perf_counter()
    told = meanwhile()
    done, elapsed = beside.steps.value - steps, time.perf_counter() - started
    used = beside.cpu.value - cpu
    beside.works.value = 0
    time.sleep(0.3)
    return done / elapsed, used / max(done, 1), told


def table(found: list[dict[str, float]]) -> str:
    """A row for each length."""
    columns = ["idle", "harvest of idle", "cpu of idle", "cpu of a step"]
    lines = ["| wait, ms | idle | harvest of idle | CPU of idle | CPU of a step, alone 100 |", "|---|---|---|---|---|"]
    for wait in dict.fromkeys(one["wait"] for one in found):
        own = [one for one in found if one["wait"] == wait]
        cells = [spread([100 * one[what] for one in own]) for what in columns]
        lines.append(f"| {1e3 * wait:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} … {max(values):.0f})"


if __name__ == "__main__":
    main()
