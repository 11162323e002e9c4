"""What does memory cost? The fastest plan found under a memory limit, its claim, and the processor time of its search.

Layer times are those of shipped profiles, on nodes of eight GPUs. The limit lies between what data parallelism holds on
all GPUs, which is mostly the least, and what the fastest plan of all holds.
"""

import argparse
import itertools
import os
import time
from dataclasses import replace

# One thread; set before NumPy loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deeppool as dp
from benchmarks.planner.models import priced
from deeppool.errors import PlanError
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.search.memory_constrained import search_fitting
from deeppool.profiling.table import Profile

CELLS = ((8, 16), (64, 4))
"""GPUs, and samples of each."""
SHARES = (0.7, 0.3, 0.05)
"""Of the memory between the least and that of the fastest plan."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", nargs="+", help="names or files of profiles")
    profiles = parser.parse_args().profiles
    print("| profile, GPUs, samples of each | no limit |", " | ".join(f"{share:.0%}" for share in SHARES), "|")
    print("|---" * (2 + len(SHARES)) + "|")
    for name, (gpus, samples) in itertools.product(profiles, CELLS):
        found = cells(dp.find_profile(name), gpus, samples)
        print(f"| {name}, {gpus}, {samples} |", " | ".join(found), "|", flush=True)


def cells(profile: Profile, gpus: int, samples: int) -> list[str]:
    costs, memory = priced(profile, gpus, samples), memory_model(profile, gpus * samples)
    network = costs.network
    free = replace(costs, network=replace(network, cluster=replace(network.cluster, memory=None)))
    fastest = search_fitting(free, None, "layer", memory)
    least = memory.peak([range(gpus)] * len(costs.graph.layers))
    most = memory.peak(Placement(costs, fastest.choices, fastest.starts).gpus)
    found = [f"{1e3 * fastest.iteration_time:.3f} ms, {fastest.optimality}"]
    if most <= least:
        return [*found, *["fits"] * len(SHARES)]
    for share in SHARES:
        limit = least + share * (most - least)
        limited = replace(costs, network=replace(network, cluster=replace(network.cluster, memory=limit)))
        started = time.process_time()
        try:
            made = search_fitting(limited, None, "layer", memory)
            text = f"{1e3 * made.iteration_time:.3f} ms, {made.optimality}"
        except PlanError:
            text = "none"
        found.append(f"{text}, {time.process_time() - started:.1f} s")
    return found


if __name__ == "__main__":
    main()
