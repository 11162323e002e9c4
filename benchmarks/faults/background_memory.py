"""Does a background job that runs out of memory harm its foreground?

    python benchmarks/faults/background_memory.py -o memory.json --pairs 200     # Linux

Each start is a training of one model on two ranks, with a queue of background jobs beside each rank, one after another:
each makes a pair with the foreground. All models are drawn, and so is how a background runs out of memory: over the
budget that it was given, or unable to map more (``RLIMIT_AS``) from a random moment on. The losses of the foreground
must be those of the same training without a background, and it must make updates after the last one has ended.
"""

import argparse
import contextlib
import itertools
import json
import math
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parent))

from faults import apply

import deeppool as dp
from deeppool.base import serialization
from deeppool.collocation.helper_processes import BACKGROUND
from deeppool.errors import DeeppoolError
from deeppool.planning.plan import Plan
from deeppool.records.training_record import BackgroundOutcome

MODELS = ("alexnet", "mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1")
FOREGROUNDS = MODELS[1:]
"""Each update of alexnet sends 244 MB."""
SHAPE, BATCH, STEPS = (3, 64, 64), 2, 1000
"""Of a foreground, which makes fewer updates if its backgrounds have ended."""
QUEUE = 10
"""Background jobs beside each of the two ranks."""
BACKGROUND_STEPS = 30
"""After which a background that does not run out of memory ends."""
IDLE = 0.1
"""Seconds for which each rank waits before it computes an update, so that few updates suffice."""
AFTER = 5
"""Updates of the foreground after its last background has ended."""
BUDGETS = (250e6, 600e6)
"""Bounds of a budget in bytes: what a background has before its model, and more than most need."""
EARLIEST, LATEST = 0.0, 4.0
"""When a background can map no more, in seconds after its process is there."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What became of one pair."""

    foreground: str
    background: str
    how: str
    """``budget``, or ``limit``."""
    failed: str
    """Error of the foreground; empty: it made all updates."""
    same_losses: bool
    ended: str
    """How the background ended."""
    steps: int
    """Steps that the background made."""


class OverError(Exception):
    """Raised when all backgrounds of a start have ended, and the foreground has gone on."""


@dataclass(slots=True)
class Background:
    """A drawn background, and what became of it."""

    model: str
    limit_after: float | None
    """When it can map no more, in seconds; None: it has a budget."""
    budget: float | None
    outcome: BackgroundOutcome | None = None

    def job(self, folder: Path) -> dp.BackgroundJob:
        """Returns the job, with its own folder of checkpoints."""
        return dp.BackgroundJob(
            job_of(self.model),
            batch=BATCH,
            steps=BACKGROUND_STEPS,
            checkpoints=folder,
            checkpoint_every=10,
            memory=self.budget,
            on_end=self._note,
        )

    def _note(self, outcome: BackgroundOutcome) -> str:
        self.outcome = outcome
        return ""


def job_of(model: str) -> dp.TrainingJob:
    """Returns a training of a model on random images."""

    def images() -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(32, *SHAPE, generator=generator), torch.arange(32))

    return dp.TrainingJob(
        model=model,
        input_shape=SHAPE,
        dataset=images,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.001),
    )


@cache
def plan_of(model: str) -> Plan:
    """Returns a plan for two ranks."""
    profile = dp.profile(job_of(model).capture(), device="cpu", batch_sizes=[BATCH // 2, BATCH])
    return dp.plan(profile, dp.find_cluster("loopback", 2), BATCH)


def losses_alone(model: str, steps: int, known: dict[str, list[float | None]]) -> list[float | None]:
    """Losses of the first updates of a training without a background; ``known`` has the longest such training."""
    if len(known.get(model, ())) < steps:
        known[model] = [update.loss for update in dp.train(plan_of(model), job_of(model), steps=steps).metrics]
    return known[model][:steps]


def run(number: int, seed: int, known: dict[str, list[float | None]]) -> list[Pair]:
    """Trains one foreground with its queues of backgrounds."""
    draw = random.Random(f"{seed} {number}")
    front = draw.choice(FOREGROUNDS)
    queues = {rank: [_drawn(draw) for _ in range(QUEUE)] for rank in range(2)}
    backgrounds = [one for queue in queues.values() for one in queue]
    losses, since, failed = [], [], ""

    def on_metrics(metrics: Any) -> None:
        losses.append(metrics.loss)
        if all(one.outcome is not None for one in backgrounds):
            since.append(metrics.update)
        if len(since) > AFTER:
            raise OverError

    over = threading.Event()
    limiting = threading.Thread(target=_limit, args=(over, queues))
    limiting.start()
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        jobs = {
            rank: [one.job(Path(folder) / f"{rank}-{place}") for place, one in enumerate(queue)]
            for rank, queue in queues.items()
        }
        try:
            dp.train(plan_of(front), job_of(front), steps=STEPS, background=jobs, policy="naive", on_metrics=on_metrics)
        except OverError:
            pass
        except DeeppoolError as error:
            failed = str(error)
        finally:
            over.set()
            limiting.join()
    same = not failed and losses == losses_alone(front, len(losses), known)
    pairs = []
    for one in backgrounds:
        how = "budget" if one.limit_after is None else "limit"
        if one.outcome is not None or failed:
            ended, steps = (one.outcome.ended, one.outcome.steps) if one.outcome is not None else ("", 0)
            pairs.append(Pair(front, one.model, how, failed, same, ended, steps))
    return pairs


def _drawn(draw: random.Random) -> Background:
    model, how = draw.choice(MODELS), draw.choice(("budget", "limit"))
    after, budget = draw.uniform(EARLIEST, LATEST), draw.uniform(*BUDGETS)
    return Background(model, after, None) if how == "limit" else Background(model, None, budget)


def _limit(over: threading.Event, queues: Mapping[int, Sequence[Background]]) -> None:
    """Forbids processes of backgrounds to map more, some seconds after each was started."""
    waiting = {rank: deque(queue) for rank, queue in queues.items()}
    known: dict[int, tuple[psutil.Process, float]] = {}
    while not over.wait(0.05):
        for process, rank in _backgrounds():
            if process.pid not in known:
                after = waiting[rank].popleft().limit_after
                known[process.pid] = process, math.inf if after is None else time.monotonic() + after
        for pid, (process, when) in known.items():
            if time.monotonic() > when:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    apply("out of memory", process, Path(), random.Random())
                known[pid] = process, math.inf


def _backgrounds() -> Iterator[tuple[psutil.Process, int]]:
    """Yields the processes of background jobs, and their ranks."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            # A process that it has forked has its title.
            if BACKGROUND in title and BACKGROUND not in " ".join(process.parent().cmdline()):
                yield process, int(title.split("rank ")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the pairs")
    parser.add_argument("--pairs", type=int, default=200, help="pairs in all, those in the file included")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # What runs ends its processes, and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pairs = [Pair(**each) for each in json.loads(arguments.output.read_text())] if arguments.output.exists() else []
    numbers, known = itertools.count(len(pairs)), {}
    while len(pairs) < arguments.pairs:
        pairs += run(next(numbers), arguments.seed, known)
        print(f"{len(pairs)} pairs: {pairs[-1]}", file=sys.stderr, flush=True)
        serialization.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1), arguments.output)
    print(f"{len(pairs)} pairs, {sum(bool(pair.failed) for pair in pairs)} foregrounds failed,", end=" ")
    print(f"{sum(not pair.same_losses for pair in pairs)} with other losses; backgrounds:")
    for (how, ended), count in Counter((pair.how, pair.ended.partition(":")[0][:80]) for pair in pairs).items():
        print(f"| {how} | {ended} | {count} |")


if __name__ == "__main__":
    main()
