"""Workload traces drawn at random."""

import random
from dataclasses import replace

from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace


def random_trace(kinds: list[TraceJob], *, jobs: int, interval: float, seed: int) -> WorkloadTrace:
    """Jobs of the given kinds with exponential times between arrivals and log-normal numbers of iterations."""
    draw = random.Random(seed)
    now, drawn = 0.0, []
    for number in range(jobs):
        kind = draw.choice(kinds)
        count = kind.iterations and max(1, round(kind.iterations * draw.lognormvariate(0, 1)))
        drawn.append(replace(kind, name=f"{kind.name} {number}", arrival=now, iterations=count))
        now += draw.expovariate(1 / interval)
    return WorkloadTrace(f"{jobs} jobs, seed {seed}", "drawn at random", tuple(drawn))
