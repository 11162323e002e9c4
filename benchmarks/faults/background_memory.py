"""Does a background job that runs out of memory harm its foreground?

    python benchmarks/faults/background_memory.py -o memory.json --pairs 200     # Linux

Each pair is a training of one model on two ranks, with a training of another one in the background of a random rank.
Both models are drawn, and so is how the background runs out of memory: over the budget that it was given, or unable to
map more (``RLIMIT_AS``) from a random moment on. The losses of the foreground must be those of the same training
without a background.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil
import torch
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parent))

from faults import apply
from left_behind import wait_for

import deeppool as dp
from deeppool.base import serialization
from deeppool.errors import DeeppoolError
from deeppool.planning.plan import Plan

MODELS = ("alexnet", "mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1")
SHAPE, BATCH, STEPS = (3, 64, 64), 4, 200
BUDGETS = (250e6, 600e6)
"""Bounds of a budget in bytes: what a background has before its model, and more than most need."""
EARLIEST, LATEST = 0.0, 6.0
"""When a background can map no more, in seconds after its process is there."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What became of one pair."""

    number: int
    foreground: str
    background: str
    how: str
    """``budget``, or ``limit``."""
    failed: str
    """Error of the foreground; empty: it made all updates."""
    same_losses: bool
    restarts: int
    ended: str
    """How the background ended."""
    steps: int
    """Steps that the background made."""


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


@cache
def losses_alone(model: str) -> tuple[float | None, ...]:
    """Losses of a training without a background."""
    return tuple(update.loss for update in dp.train(plan_of(model), job_of(model), steps=STEPS).metrics)


def run(number: int, seed: int) -> Pair:
    """Trains one pair."""
    draw = random.Random(f"{seed} {number}")
    front, back = draw.choice(MODELS), draw.choice(MODELS)
    rank, how = draw.randrange(2), draw.choice(("budget", "limit"))
    expected, over = losses_alone(front), threading.Event()
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        other = dp.BackgroundJob(
            job_of(back),
            batch=BATCH,
            checkpoints=Path(folder) / "kept",
            checkpoint_every=10,
            memory=draw.uniform(*BUDGETS) if how == "budget" else None,
        )
        limiting = threading.Thread(target=_limit, args=(over, draw.uniform(EARLIEST, LATEST)))
        if how == "limit":
            limiting.start()
        try:
            record = dp.train(plan_of(front), job_of(front), steps=STEPS, background={rank: [other]})
        except DeeppoolError as error:
            return Pair(number, front, back, how, str(error), same_losses=False, restarts=0, ended="", steps=0)
        finally:
            over.set()
            if how == "limit":
                limiting.join()
    (outcome,) = record.background
    same = tuple(update.loss for update in record.metrics) == expected
    return Pair(number, front, back, how, "", same, record.restarts, outcome.ended, outcome.steps)


def _limit(over: threading.Event, after: float) -> None:
    """Forbids the background's process to map more, some seconds after it was started."""

    def found() -> list[psutil.Process]:
        return [one for one in psutil.Process().children(recursive=True) if _is_background(one)]

    wait_for(lambda: over.is_set() or bool(found()), 120.0)
    over.wait(after)
    for process in found():
        apply("out of memory", process, Path(), random.Random())


def _is_background(process: psutil.Process) -> bool:
    try:
        return "deeppool.collocation.background" in " ".join(process.cmdline())
    except psutil.Error:
        return False


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
    for number in range(len(pairs), arguments.pairs):
        pairs.append(run(number, arguments.seed))
        print(pairs[-1], file=sys.stderr, flush=True)
        serialization.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1), arguments.output)
    print(f"{len(pairs)} pairs, {sum(bool(pair.failed) for pair in pairs)} foregrounds failed,", end=" ")
    print(f"{sum(not pair.same_losses for pair in pairs)} with other losses; backgrounds:")
    for (how, ended), count in Counter((pair.how, pair.ended.partition(":")[0][:80]) for pair in pairs).items():
        print(f"| {how} | {ended} | {count} |")


if __name__ == "__main__":
    main()
