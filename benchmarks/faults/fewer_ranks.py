"""How long does a training stand still when a GPU is lost, and when it is back?

    python benchmarks/faults/fewer_ranks.py -o fewer.json --events 20 [--model resnet18]     # Linux, at least two cores

Each event is a training on two ranks, each on a core. At a random moment this process loses the second core, as when a
container's cpuset shrinks, and the rank there is killed; the training goes on with one rank. Two seconds later the core
is back, and the training goes on with two ranks after the next checkpoint.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parent))
# The ranks import the job, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

from job import job as small_job
from torch.utils.data import TensorDataset

import deeppool as dp
from deeppool.base import serialization
from deeppool.device.cpu import usable_cores
from deeppool.planning.plan import Plan

EARLIEST, LATEST = 1.0, 3.0
"""When the GPU is lost, in seconds after the first update."""
AWAY = 2.0
"""Seconds from the first update on one rank to the return of the GPU."""
AFTER = 1.0
"""Seconds from the first update on two ranks again to the end of an event."""
INTERVAL = 300.0
"""Seconds between two losses, for the shares of the time that are kept."""


class OverError(Exception):
    """Raised when an event has shown what it is for."""


@dataclass(frozen=True, slots=True)
class Event:
    """Seconds and updates of one event."""

    number: int
    lost_after: float
    to_fewer: float
    """Seconds from the loss to the end of the first update on one rank."""
    repeated: int
    """Updates that were made again on it."""
    repeating: float
    """Seconds that they took."""
    to_all: float
    """Seconds from the end of the last update on one rank to that of the first on two: a checkpoint, and a start."""
    rates: tuple[float, float, float]
    """Updates per second with two ranks, with one, and with two again."""


class Watch:
    """Follows one training by its updates, takes a core away, and gives it back."""

    def __init__(self, cores: Sequence[int], lost_after: float) -> None:
        """Prepares an event."""
        self._cores, self._lost_after = cores, lost_after
        self._starts: list[list[tuple[float, int]]] = []
        """Of each start of the ranks: when its updates ended, and their numbers."""
        self._lost_at = 0.0

    def on_progress(self, what: str, share: float) -> None:
        """Notices each start of the ranks."""
        if what.startswith("starting on GPUs"):
            self._starts.append([])

    def on_metrics(self, metrics: Any) -> None:
        """Notices each update, and acts when it is time."""
        now, starts = time.perf_counter(), self._starts
        starts[-1].append((now, metrics.update))
        since = now - starts[-1][0][0]
        if len(starts) == 1 and since > self._lost_after and not self._lost_at:
            os.sched_setaffinity(0, self._cores[:1])
            # A rank comes before its own process that loads data.
            victim = next(rank for rank in psutil.Process().children(recursive=True) if _on(rank, self._cores[1]))
            victim.kill()
            self._lost_at = time.perf_counter()
        elif len(starts) == 2 and since > AWAY:
            os.sched_setaffinity(0, self._cores)
        elif len(starts) == 3 and since > AFTER:
            raise OverError

    def event(self, number: int) -> Event:
        """Returns what became of it."""
        whole, fewer, again = self._starts
        furthest = whole[-1][1]
        repeated = [end for end, update in fewer if update <= furthest]
        return Event(
            number=number,
            lost_after=self._lost_after,
            to_fewer=fewer[0][0] - self._lost_at,
            repeated=len(repeated),
            repeating=repeated[-1] - repeated[0] if repeated else 0.0,
            to_all=again[0][0] - fewer[-1][0],
            rates=tuple((len(ends) - 1) / (ends[-1][0] - ends[0][0]) for ends in (whole, fewer, again)),
        )


def _on(process: psutil.Process, core: int) -> bool:
    """Whether a process is the rank on a core."""
    return process.cpu_affinity() == [core] and "deeppool.execution.worker" in " ".join(process.cmdline())


def resnet18_job() -> dp.TrainingJob:
    """Returns a training of ResNet-18 on small images."""
    return dp.TrainingJob(
        model="resnet18",
        input_shape=(3, 64, 64),
        dataset=lambda: TensorDataset(torch.randn(64, 3, 64, 64), torch.arange(64)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.001),
    )


def burst(plan: Plan) -> Plan:
    """Returns a plan with the first half of the layers on both GPUs, and the others on one."""
    half = len(plan.layers) // 2
    gpus = [(0, 1) if number < half else (0,) for number in range(len(plan.layers))]
    layers = [replace(layer, gpus=own, gpu_count=len(own)) for layer, own in zip(plan.layers, gpus, strict=True)]
    return replace(plan, layers=tuple(layers))


def kept(event: Event) -> float:
    """Share of the time that is kept with a loss every :data:`INTERVAL` s: less recovery, and work done again."""
    return 1 - (event.to_fewer + event.repeating) / INTERVAL


def kept_with_return(event: Event) -> float:
    """Share of the time that is kept with a loss and a return every :data:`INTERVAL` seconds."""
    return kept(event) - event.to_all / INTERVAL


def table(events: Sequence[Event]) -> str:
    """Returns median, least and most of the events, as the rows of a table."""
    rows = {
        "to the first update on one rank, s": [event.to_fewer for event in events],
        "updates made again": [float(event.repeated) for event in events],
        "to the first update on two ranks again, s": [event.to_all for event in events],
        f"time kept with a loss every {INTERVAL:.0f} s, %": [100 * kept(event) for event in events],
        f"time kept with a loss and a return every {INTERVAL:.0f} s, %": [
            100 * kept_with_return(event) for event in events
        ],
    }
    return "\n".join(
        f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |"
        for name, values in rows.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the events")
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", choices=["small", "resnet18"], default="small")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # What runs ends its processes, and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cores = usable_cores()[:2]
    # About half a second of updates between two checkpoints.
    job, batch, every = (small_job(), 4, 100) if arguments.model == "small" else (resnet18_job(), 8, 5)
    profile = dp.profile(job.capture(), device="cpu", batch_sizes=[batch // 2, batch])
    plan = burst(dp.plan(profile, dp.find_cluster("loopback", 2), batch))
    events = []
    for number in range(arguments.events):
        watch = Watch(cores, random.Random(f"{arguments.seed} {number}").uniform(EARLIEST, LATEST))
        with tempfile.TemporaryDirectory(prefix="fewer-") as folder:
            try:
                dp.train(
                    plan,
                    job,
                    steps=10**6,
                    checkpoints=folder,
                    checkpoint_every=every,
                    restarts=1,
                    min_ranks=1,
                    profile=profile,
                    on_metrics=watch.on_metrics,
                    on_progress=watch.on_progress,
                )
            except OverError:
                events.append(watch.event(number))
            finally:
                os.sched_setaffinity(0, cores)
        print(events[-1], file=sys.stderr, flush=True)
        serialization.write_text(json.dumps([asdict(event) for event in events], indent=1), arguments.output)
    print(table(events))


if __name__ == "__main__":
    main()
