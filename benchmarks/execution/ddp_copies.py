"""What does DDP take for copying gradients out of its buckets?

    python benchmarks/execution/ddp_copies.py

Two ranks over loopback train the same batches by DDP with and without ``gradient_as_bucket_view=True``, an iteration by
each in turn. Core time is that of rank 0, with the threads of its transfers: other processes hardly change it.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import deeppool as dp
from deeppool.graph.models.workloads import load_model

MODELS = ("vgg16", "resnet50")
BATCH, SIDE = 8, 32
FIRST = 2
"""Iterations that are left out: DDP makes its buckets anew after the first."""


def train(rank: int, model: str, iterations: int, rendezvous: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    ways = []
    for views in (False, True):
        network = load_model(model, 0).train()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        ways.append((DistributedDataParallel(network, gradient_as_bucket_view=views), optimizer))
    inputs, targets = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(1000, (BATCH,))
    found = []
    for _ in range(FIRST + iterations):
        for replica, optimizer in ways:
            dist.barrier()
            core, wall = time.process_time(), time.perf_counter()
            torch.nn.functional.cross_entropy(replica(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            found.append((time.process_time() - core, time.perf_counter() - wall))
    if rank == 0:
        report(model, found[2 * FIRST :: 2], found[2 * FIRST + 1 :: 2])
    dist.destroy_process_group()


def report(model: str, copied: list[tuple[float, float]], viewed: list[tuple[float, float]]) -> None:
    cells = []
    for one, other in zip(zip(*copied, strict=True), zip(*viewed, strict=True), strict=True):
        ratios = [b / a for a, b in zip(one, other, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells += [f"{1e3 * statistics.median(each):.0f}" for each in (one, other)]
        cells.append(f"{middle:.2f} ({low:.2f} … {high:.2f})")
    print(f"| {model} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="classifiers of torchvision")
    parser.add_argument("--iterations", type=int, default=30, help="by each of the two")
    arguments = parser.parse_args()
    print(dp.environment(), file=sys.stderr)
    print("| model | core ms, copied | in buckets | ratio | wall ms, copied | in buckets | ratio |")
    print("|---" * 7 + "|", flush=True)
    for model in arguments.models:
        with TemporaryDirectory() as folder:
            mp.spawn(train, (model, arguments.iterations, (Path(folder) / "rendezvous").as_uri()), nprocs=2)


if __name__ == "__main__":
    main()
