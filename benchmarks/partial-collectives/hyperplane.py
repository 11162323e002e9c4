"""Hyperplane regression with one late rank per step (Li et al., PPoPP 2020, figure 10), by dp.EagerSGD.

    python benchmarks/partial-collectives/hyperplane.py --json results.json

8 processes learn the 8,192 coefficients of a hyperplane and a bias; in each step one random rank is delayed. Times are
those of the paper divided by 20: a step of 30.5 ms, mostly slept, and delays of 10, 15 and 20 ms. The predicted
speed-up is what the delay alone gives: (step + delay) / step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import deeppool as dp
from deeppool.collectives.partial.load_imbalance import random_ranks

RANKS, FEATURES, BATCH, POINTS = 8, 8_192, 2_048, 32_768
STEP = 0.0305
"""Seconds of a step without delay: compute, then sleep."""


def batch_of(step: int, rank: int, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a rank's share of a global batch: the same points in every epoch, made from their number."""
    share, places = BATCH // RANKS, POINTS // BATCH
    generator = torch.Generator().manual_seed((step % places) * RANKS + rank)
    inputs = torch.randn(share, FEATURES, generator=generator)
    return inputs, inputs @ weights + 2 * torch.randn(share, generator=generator)


def run_rank(rank: int, file: str, mode: str, delay: float, steps: int, rate: float) -> None:
    """Trains; rank 0 prints seconds and validation loss."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    weights = torch.randn(FEATURES, generator=torch.Generator().manual_seed(99))
    batches = [batch_of(step, rank, weights) for step in range(POINTS // BATCH)]
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    delays = random_ranks(RANKS, delay)
    with dp.EagerSGD(mode=mode).wrap(model, optimizer) as eager:
        dist.barrier()
        began = time.perf_counter()
        while eager.updates < steps:
            started = time.perf_counter()
            inputs, targets = batches[eager.updates % len(batches)]
            (model(inputs).squeeze(1) - targets).square().mean().backward()
            late = delays(rank, eager.updates)
            time.sleep(max(0.0, STEP + late - (time.perf_counter() - started)))
            eager.step()
        seconds, updates = time.perf_counter() - began, eager.updates
    generator = torch.Generator().manual_seed(12345)
    inputs = torch.randn(2048, FEATURES, generator=generator)
    targets = inputs @ weights + 2 * torch.randn(2048, generator=generator)
    with torch.no_grad():
        loss = float((model(inputs).squeeze(1) - targets).square().mean())
    counts = [0] * RANKS
    dist.all_gather_object(counts, eager.gradients)
    if rank == 0:
        print(json.dumps({"updates_per_second": updates / seconds, "loss": loss, "gradients": sum(counts)}))
    dist.destroy_process_group()


def measure(mode: str, delay: float, steps: int, rate: float) -> dict:
    """Runs all ranks; returns rank 0's answer."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(Path(folder) / "store"), mode, str(delay), str(steps), str(rate)]
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *arguments], stdout=subprocess.PIPE)
            for rank in range(RANKS)
        ]
        answers = [process.communicate()[0] for process in ranks]
    return json.loads(answers[0])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=48)
    parser.add_argument("--delays-ms", type=float, nargs="+", default=[10, 15, 20])
    parser.add_argument("--modes", nargs="+", default=["full", "solo", "majority"])
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for delay in (each / 1000 for each in given.delays_ms):
        full = None
        for mode in given.modes:
            found = measure(mode, delay, given.epochs * POINTS // BATCH, given.rate)
            full = full or found
            row = {"delay": delay, "mode": mode, **found, "load_average": os.getloadavg()[0]}
            row |= {"speedup": found["updates_per_second"] / full["updates_per_second"], "predicted": 1 + delay / STEP}
            rows.append(row)
            print(row, flush=True)
    if given.json:
        given.json.write_text(json.dumps({"numpy": np.__version__, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank, file, mode, delay, steps, rate = sys.argv[2:]
        run_rank(int(rank), file, mode, float(delay), int(steps), float(rate))
    else:
        main()
