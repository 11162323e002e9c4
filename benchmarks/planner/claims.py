"""How good are plans as they run, how far from the optimum may they be, and how long does the search take?

For each profile, on nodes of eight GPUs: how many times as fast the plan is as DDP on as many of the GPUs as it is
fastest on of those that hold it, the claim of the search, and its processor time, in seconds and as a multiple of that
of the exact search on the same prices in the paper's model, in which nothing overlaps. Without a limit, and with an
amplification limit on each layer.

    python -m benchmarks.planner.claims vgg16-h200 resnet50-h200
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace

# One thread; set before NumPy loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deeppool as dp
from benchmarks.planner.models import priced
from deeppool.costs.table import CostTable
from deeppool.planning.evaluate.baselines import DataParallelComparison, data_parallel_times
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.search.overlap import search_overlapping
from deeppool.planning.search.search import SearchResult, search
from deeppool.profiling.table import Profile

LIMITS = (None, 2.0)
REPEATS = 3
SHORT = 0.5
"""Seconds of a search from which it is not repeated."""
COLUMNS = "times as fast as DDP | claim | seconds | times the paper's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="+", help="names or files of profiles")
    parser.add_argument("--gpus", type=int, nargs="+", default=(8, 64, 1024))
    parser.add_argument("--samples", type=int, nargs="+", default=(1, 4, 32), help="of each GPU")
    arguments = parser.parse_args()
    print(dp.environment(), end="\n\n")
    print(f"| profile, GPUs, samples of each | no limit: {COLUMNS} | limit {LIMITS[1]:g}: {COLUMNS} |")
    print("|---" * 9 + "|")
    for name, gpus, samples in itertools.product(arguments.profiles, arguments.gpus, arguments.samples):
        profile = dp.find_profile(name)
        costs = priced(profile, gpus, samples)
        found = " | ".join(cells(profile, costs, limit) for limit in LIMITS)
        print(f"| {costs.graph.model}, {gpus}, {samples} | {found} |", flush=True)


def cells(profile: Profile, costs: CostTable, limit: float | None) -> str:
    found, seconds = timed(lambda: search_overlapping(costs, limit))
    _, alone = timed(lambda: search(replace(costs, overlap=False), limit))
    times = data_parallel_times(profile, costs, memory_model(profile, costs.global_batch))
    gain = DataParallelComparison(found.iteration_time, times, capacity=costs.network.cluster.memory).gain
    return f"{gain:.2f} | {found.optimality.removeprefix('bound ')} | {seconds:.2g} | {seconds / alone:.1f}"


def timed(run: Callable[[], SearchResult]) -> tuple[SearchResult, float]:
    """What a search finds, and the least processor seconds of a few searches; of one where it takes long."""
    least = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        found = run()
        least = min(least, time.process_time() - started)
        if least > SHORT:
            break
    return found, least


if __name__ == "__main__":
    main()
