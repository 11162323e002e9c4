"""What does it gain a training on a CPU that its process keeps the memory that it frees?

Each process trains one model, uncut, on one core: with glibc's default, with freed memory kept (see
``deeppool.device.heap``), and with every other allocator that is named. Processes are interleaved over rounds; the
table has medians with the smallest and the largest process.

    python benchmarks/kept-memory/main.py -o results.json --preload /usr/lib/x86_64-linux-gnu/libjemalloc.so.2
    python benchmarks/kept-memory/main.py -o check.json --quick      seconds, no number worth keeping
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import deeppool as dp
from deeppool.base import serialization
from deeppool.collocation.pieces import single_stage
from deeppool.device.cpu import pin_to_core, usable_cores
from deeppool.device.heap import keep_memory
from deeppool.execution.communicator import SingleRank
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import synthetic_task
from deeppool.job import Job

JOBS = {"vgg16": ((3, 32, 32), 8), "resnet50": ((3, 64, 64), 4), "resnet18": ((3, 64, 64), 4)}
COLD = 5
"""Iterations before anything is measured."""
GLIBC, KEPT = "glibc", "glibc, freed memory kept"


def main() -> None:
    """Measures, prints the table, saves all processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--preload", type=Path, action="append", default=[], help="library of another allocator")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a process")
    parser.add_argument("--quick", action="store_true", help="one model, one round, half a second")
    parser.add_argument("--train", nargs=2, metavar=("MODEL", "HOW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        model, how = arguments.train
        print(json.dumps(train(model, arguments.seconds, kept=how == KEPT)))
        return
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    rounds, seconds = (1, 0.5) if arguments.quick else (arguments.rounds, arguments.seconds)
    ways = {GLIBC: None, KEPT: None} | {path.name: path for path in arguments.preload}
    found = [
        {"model": model, "how": how, **process(model, how, seconds, preload)}
        for _ in range(rounds)
        for model in (["resnet18"] if arguments.quick else JOBS)
        for how, preload in ways.items()
    ]
    print(table(found))
    serialization.write_text(
        json.dumps({"environment": serialization.to_json(dp.environment()), "processes": found}), arguments.output
    )


def process(model: str, how: str, seconds: float, preload: Path | None) -> dict[str, float]:
    """Of one process: milliseconds and page faults of an iteration, and the most memory that it held."""
    command = [sys.executable, __file__, "-o", os.devnull, "--seconds", str(seconds), "--train", model, how]
    environment = os.environ | ({} if preload is None else {"LD_PRELOAD": str(preload)})
    answer = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout)


def train(model: str, seconds: float, *, kept: bool) -> dict[str, float]:
    """In this process, as a background without a governor does."""
    torch.set_num_threads(1)
    pin_to_core(usable_cores()[0])
    if kept:
        assert keep_memory(), "this C library cannot be asked to keep memory"
    shape, batch = JOBS[model]
    with tempfile.TemporaryDirectory() as folder:
        work = synthetic_task(Job(model, shape, batch), torch.device("cpu"), Path(folder))
    trainer = Trainer(work.captured, single_stage(work.captured, batch), SingleRank(), work.training)

    def iterate() -> tuple[float, int]:
        started, before = time.perf_counter(), pages()
        trainer.iterate([lambda samples: work.samples(trainer.step.iterations, samples)])
        return time.perf_counter() - started, pages() - before

    for _ in range(COLD):
        iterate()
    found = [iterate()]
    while sum(time for time, _ in found) < seconds:
        found.append(iterate())
    return {
        "milliseconds": 1e3 * statistics.median(time for time, _ in found),
        # As the heap grows once more now and then, in a single iteration, a mean of few would say little.
        "faults": statistics.median(faults for _, faults in found),
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def pages() -> int:
    """That the operating system has handed out so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def table(found: list[dict]) -> str:
    """A row for each model and allocator."""
    lines = ["| model | allocator | ms an iteration | page faults an iteration | MiB |", "|---|---|---|---|---|"]
    for model, how in dict.fromkeys((one["model"], one["how"]) for one in found):
        own = [one for one in found if (one["model"], one["how"]) == (model, how)]
        cells = [spread([one[what] for one in own]) for what in ("milliseconds", "faults", "mebibytes")]
        lines.append(f"| {model} | {how} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} … {max(values):.0f})"


if __name__ == "__main__":
    main()
