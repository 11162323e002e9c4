"""What does the engine cost a foreground that has no background beside it?

One process, one training, cut into stages as a plan would. In every other iteration, drawn at random within each pair,
the engine is there: a governor with all mechanisms gives its orders, and every part of the iteration is noted on the
board (on a GPU by stamps of the device). Each adjacent pair is one difference; the answer is their median, with a
confidence interval of 95 % by resampling the pairs. The time that the engine's own calls take is measured beside it: a
lower bound, which no noise hides.

    python benchmarks/engine-overhead/main.py -o results.json            three and a half minutes of an idle machine
    python benchmarks/engine-overhead/main.py -o check.json --quick      seconds, no number worth keeping
"""

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.sharing import POLICIES
from deeppool.collectives.layout import Layout
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.execution.communicator import SingleRank
from deeppool.execution.foreground_control import ForegroundControl
from deeppool.execution.iteration_record import IterationRecord
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import TrainingTask, synthetic_task
from deeppool.job import Job

EVERYTHING = replace(POLICIES["feedback"], max_slowdown=0.01)
COLD = 20
"""Iterations before anything is measured."""
CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Overhead:
    """Shares of an iteration: 0.005 is half a percent."""

    median: float
    low: float
    high: float
    """Ends of the confidence interval."""
    own_calls: float
    """What the engine's calls take by themselves."""
    iteration: float
    """Seconds, median of those without the engine."""
    pairs: int

    def __str__(self) -> str:
        return (
            f"engine on against off: {100 * self.median:+.2f} % of an iteration of {1e3 * self.iteration:.2f} ms "
            f"({100 * CONFIDENCE:.0f} % confidence: {100 * self.low:+.2f} to {100 * self.high:+.2f}, "
            f"{self.pairs} pairs); its calls by themselves {100 * self.own_calls:.2f} %"
        )


def main() -> None:
    """Measures, prints a line, saves the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--input-shape", default="3,64,64", help="of a sample")
    parser.add_argument("--batch", type=int, default=4, help="samples of an iteration: small, as on each of many GPUs")
    parser.add_argument(
        "--stages", type=int, default=8, help="of the plan: each is a part that is noted, forth and back"
    )
    parser.add_argument("--seconds", type=float, default=200.0, help="measuring time")
    parser.add_argument("--quick", action="store_true", help="two seconds")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    device = find_device(arguments.device)
    device.select(0)
    shape = tuple(int(size) for size in arguments.input_shape.split(","))
    print(dp.environment(), file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(arguments.model, shape, arguments.batch)
        work = synthetic_task(job, device.torch_device(), Path(folder))
        iterate = iterations(work, arguments.batch, arguments.stages, device, Path(folder))
        off, on, own = measure(iterate, 2.0 if arguments.quick else arguments.seconds)
    found = summarise(off, on, own)
    print(found)
    entry = {
        "environment": serialization.to_json(dp.environment()),
        "setting": {**vars(arguments)},
        "found": asdict(found),
    }
    entry["setting"]["output"] = str(arguments.output)
    serialization.write_text(json.dumps({**entry, "off": off, "on": on, "own": own}), arguments.output)


def iterations(
    work: TrainingTask, batch: int, stages: int, device: Device, folder: Path
) -> Callable[[bool], tuple[float, float]]:
    """A training whose iterations run with the engine or without; each tells its seconds, and those of the engine."""
    count = len(work.captured.graph.layers)
    edges = sorted({round(edge) for edge in np.linspace(0, count, stages + 1)})
    parts = [
        Stage(f"stage {number}", tuple(range(first, last)), Layout((0,), batch))
        for number, (first, last) in enumerate(itertools.pairwise(edges))
    ]
    data = tuple(tensor.to(device.torch_device()) for tensor in work.samples(0, range(batch)))
    stream = device.stream("high")
    with stream.current():
        trainer = Trainer(work.captured, parts, SingleRank(), work.training)
    foreground_control = ForegroundControl(
        EVERYTHING, folder, 0, SingleRank(), device.torch_device(), by_events=device.asynchronous
    )
    # As beside a background in this process, on a GPU.
    foreground_control.publishes = not device.asynchronous

    def iterate(engine: bool) -> tuple[float, float]:
        own = 0.0
        with stream.current():
            started = time.perf_counter()
            if engine:
                record = IterationRecord(trainer)
                foreground_control.begin(trainer)
                own = time.perf_counter() - started
            trainer.iterate([lambda _: data])
            if engine:
                before = time.perf_counter()
                record.lap()
                foreground_control.end(record)
                foreground_control.pause(trainer, record)
                own += time.perf_counter() - before
            if device.kind == "cuda":
                # Of this stream: what one iteration leaves in flight must not be the next one's.
                torch.cuda.current_stream().synchronize()
            return time.perf_counter() - started, own

    return iterate


def measure(
    iterate: Callable[[bool], tuple[float, float]], seconds: float
) -> tuple[list[float], list[float], list[float]]:
    """Adjacent pairs, one with the engine and one without, in an order drawn for each pair."""
    draw = random.Random(0)
    for number in range(COLD):
        iterate(bool(number % 2))
    off, on, own = [], [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        first = draw.random() < 0.5
        pair = {engine: iterate(engine) for engine in (first, not first)}
        off.append(pair[False][0])
        on.append(pair[True][0])
        own.append(pair[True][1])
    return off, on, own


def summarise(off: Sequence[float], on: Sequence[float], own: Sequence[float]) -> Overhead:
    """The median of the pairs' differences, as shares of a usual iteration, and how sure that is."""
    usual = float(np.median(off))
    differences = (np.asarray(on) - np.asarray(off)) / usual
    generator = np.random.default_rng(0)
    medians = [
        float(np.median(generator.choice(differences, differences.size, replace=True))) for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    median_own = float(np.median(own)) / usual
    return Overhead(float(np.median(differences)), float(low), float(high), median_own, usual, differences.size)


if __name__ == "__main__":
    main()
