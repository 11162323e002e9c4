"""How far from the optimum may plans from measured layers be? The claim of each search as a plan runs, and its time.

Layer times are those of shipped profiles, on nodes of eight GPUs.
"""

import argparse
import itertools
import os
import time

# One thread; set before NumPy loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deeppool as dp
from benchmarks.planner.models import priced
from deeppool.planning.search.overlap import search_overlapping
from deeppool.profiling.table import Profile

GPUS = (8, 64, 1024)
SAMPLES = (1, 4, 32)
"""A GPU."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", nargs="+", help="names or files of profiles")
    parser.add_argument("--limit", type=float, help="amplification limit of each layer; default: none")
    arguments = parser.parse_args()
    cells = list(itertools.product(GPUS, SAMPLES))
    print("| profile |", " | ".join(f"{gpus} GPUs, {samples}" for gpus, samples in cells), "|")
    print("|---" * (1 + len(cells)) + "|")
    for name in arguments.profiles:
        profile = dp.find_profile(name)
        print(f"| {name} |", " | ".join(cell(profile, *each, arguments.limit) for each in cells), "|", flush=True)


def cell(profile: Profile, gpus: int, samples: int, limit: float | None) -> str:
    costs = priced(profile, gpus, samples)
    started = time.process_time()
    found = search_overlapping(costs, limit)
    return f"{found.optimality.removeprefix('bound ')}, {time.process_time() - started:.2f} s"


if __name__ == "__main__":
    main()
