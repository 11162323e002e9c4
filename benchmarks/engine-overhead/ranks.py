"""What does it cost two ranks of a foreground that they govern as one, with no background beside them?

Two processes train by gloo: the first half of the layers on both, the second on rank 0. The engine is on or off for a
block of iterations, on both ranks, in an order drawn for each pair of blocks: what is lost by a rank that was ahead of
the other one shows in the next iteration. Each adjacent pair is one difference, as in main.py.

    python benchmarks/engine-overhead/ranks.py -o results.json            four minutes of an idle machine
    python benchmarks/engine-overhead/ranks.py -o check.json --quick      seconds, no number worth keeping
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import deeppool as dp
from deeppool.base import serialization
from deeppool.cluster.cluster import find_cluster
from deeppool.device.cpu import CpuDevice, pin_to_core
from deeppool.evaluation.experiments.half_and_half_plan import half_and_half_plan
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.foreground_control import ForegroundControl
from deeppool.execution.iteration_record import IterationRecord
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import synthetic_task
from deeppool.job import Job
from deeppool.planning.plan import Plan

sys.path.insert(0, str(Path(__file__).parent))
from main import CONFIDENCE, EVERYTHING, summarise

PLAN, FOUND = "plan.json", "found.json"
BLOCK = 8
"""Iterations with the engine, or without."""
MODEL, SHAPE, BATCH = "resnet18", (3, 64, 64), 8


def main() -> None:
    """Measures, prints a line, saves the seconds of each block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--pairs", type=int, default=120, help="of blocks")
    parser.add_argument("--quick", action="store_true", help="three pairs")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    # As deeppool's own ranks: heard by this machine alone.
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        profile = dp.profile(MODEL, SHAPE, device="cpu", batch_sizes=[BATCH // 2, BATCH])
        plan = half_and_half_plan(profile, find_cluster("loopback", 2), BATCH)
        serialization.write(plan, Path(folder) / PLAN)
        mp.spawn(rank, (Path(folder), 3 if arguments.quick else arguments.pairs), nprocs=plan.gpus)
        off, on = json.loads((Path(folder) / FOUND).read_text())
    found = summarise(off, on, [0.0] * len(on))
    print(
        f"engine on against off: {100 * found.median:+.2f} % of an iteration of {1e3 * found.iteration:.2f} ms "
        f"({100 * CONFIDENCE:.0f} % confidence: {100 * found.low:+.2f} to {100 * found.high:+.2f}, "
        f"{found.pairs} pairs of {BLOCK} iterations)"
    )
    differences = {name: value for name, value in asdict(found).items() if name != "own_calls"}
    entry = {"environment": serialization.to_json(dp.environment()), "found": differences, "off": off, "on": on}
    serialization.write_text(json.dumps(entry), arguments.output)


def rank(number: int, folder: Path, pairs: int) -> None:
    """One of the two; rank 0 writes down what it found."""
    torch.set_num_threads(1)
    pin_to_core(sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))])
    plan = serialization.read(folder / PLAN, Plan)
    store = dist.FileStore(str(folder / "store"), plan.gpus)
    dist.init_process_group("gloo", store=store, rank=number, world_size=plan.gpus)
    try:
        block = blocks(plan, number, folder)
        draw = random.Random(0)
        block(False)
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(pairs):
            first = draw.random() < 0.5
            for engine in (first, not first):
                found[engine].append(block(engine))
        if number == 0:
            (folder / FOUND).write_text(json.dumps([found[False], found[True]]))
    finally:
        dist.destroy_process_group()


def blocks(plan: Plan, number: int, folder: Path) -> Callable[[bool], float]:
    """A training that runs a block with the engine or without, and tells the seconds of an iteration."""
    communicator = ProcessGroup(CpuDevice())
    work = synthetic_task(Job(MODEL, SHAPE, plan.global_batch), torch.device("cpu"), folder, plan)
    trainer = Trainer(work.captured, stages_of(plan), communicator, work.training)
    foreground_control = ForegroundControl(EVERYTHING, folder, number, communicator)

    def block(engine: bool) -> float:
        started, record = time.perf_counter(), IterationRecord(trainer)
        for _ in range(BLOCK):
            if engine:
                foreground_control.begin(trainer)
            trainer.iterate([lambda shard: work.samples(0, shard)])
            record.lap()
            if engine:
                foreground_control.end(record)
        if engine:
            foreground_control.pause(trainer, record)
        return (time.perf_counter() - started) / BLOCK

    return block


if __name__ == "__main__":
    main()
