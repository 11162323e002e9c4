"""How long does a whole frontier take, and how far from the optimum may its points be?

Claims are factors: no plan with as few GPU-seconds as a point is so many times faster than it (*in time*), and every
plan has a point of at most so many times its iteration time and GPU-seconds (*in both*). Of models with made-up layer
times, 32 samples on each GPU, in the paper's model and as plans run; and of profiles as plans run.

    python -m benchmarks.planner.frontiers vgg16-h200
"""

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace

# One thread; set before NumPy loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deeppool as dp
from benchmarks.planner.models import MODELS, priced, prices
from deeppool.costs.table import CostTable
from deeppool.planning.search.efficient_plans import efficient_plans

GPUS = (8, 64, 1024)
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", help="names or files of profiles")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS), help="with made-up layer times")
    parser.add_argument("--samples", type=int, nargs="+", default=(4, 32), help="of each GPU, of profiles")
    arguments = parser.parse_args()
    print(dp.environment(), end="\n\n")
    print("| whole frontier |", " | ".join(f"{gpus} GPUs" for gpus in GPUS), "|")
    print("|---" * (1 + len(GPUS)) + "|")
    for name in arguments.models:
        as_run = [prices(MODELS[name](), gpus) for gpus in GPUS]
        print(row(f"{name}, paper's model", (replace(costs, overlap=False) for costs in as_run)), flush=True)
        print(row("… as it runs", as_run), flush=True)
    for name, samples in itertools.product(arguments.profiles, arguments.samples):
        profile = dp.find_profile(name)
        print(row(f"{name}, {samples} samples a GPU", (priced(profile, gpus, samples) for gpus in GPUS)), flush=True)


def row(name: str, tables: Iterator[CostTable] | list[CostTable]) -> str:
    return f"| {name} | {' | '.join(map(cell, tables))} |"


def cell(costs: CostTable) -> str:
    least = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        found = efficient_plans(costs)
        least = min(least, time.process_time() - started)
    in_time = found.optimality.removeprefix("bound ")
    return f"{least:.2g} s, {len(found.time)} points; {in_time} in time, {found.pareto_factor:.3f} in both"


if __name__ == "__main__":
    main()
