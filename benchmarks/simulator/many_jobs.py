"""Processor time of a simulation with many jobs: 100,000 on 10,000 GPUs.

Jobs of the four shipped profiles arrive at random. Every third is a background on 1 to 8 GPUs, the others plan for 1 to
64 GPUs; they train about 50 iterations each (log-normal).
"""

import argparse
import random
import time

import deeppool as dp

PROFILES = ("resnet50-cpu", "vgg16-cpu", "wide_resnet101_2-cpu", "inception_v3-cpu")
FOREGROUND_GPUS = (1, 2, 4, 8, 8, 8, 16, 32, 64)


def draw_trace(jobs: int, interval: float, seed: int) -> dp.WorkloadTrace:
    """Jobs with exponential times between arrivals, in the mean ``interval`` seconds."""
    draw = random.Random(seed)
    now, drawn = 0.0, []
    for number in range(jobs):
        foreground = number % 3 != 2
        gpus = draw.choice(FOREGROUND_GPUS if foreground else (1, 2, 4, 8))
        drawn.append(
            dp.TraceJob(
                name=f"job {number}",
                role="foreground" if foreground else "background",
                source=draw.choice(PROFILES),
                arrival=now,
                iterations=max(1, round(draw.lognormvariate(4, 1))),
                gpus=gpus,
                batch=4 * gpus if foreground else 4,
                amplification_limit=2.0 if foreground else None,
            )
        )
        now += draw.expovariate(1 / interval)
    return dp.WorkloadTrace(f"{jobs} jobs", f"drawn at random, seed {seed}", tuple(drawn))


def main() -> None:
    """Simulates the jobs and prints the processor time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=0.1, help="mean seconds between arrivals")
    parser.add_argument("--strategy", default="collocated")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    trace = draw_trace(args.jobs, args.interval, args.seed)
    began, began_wall = time.process_time(), time.perf_counter()
    found = dp.simulate_cluster(trace, dp.Cluster(args.gpus), strategy=args.strategy)
    seconds, wall = time.process_time() - began, time.perf_counter() - began_wall
    print(
        f"{args.jobs} jobs on {args.gpus} GPUs, {args.strategy}: {seconds:.1f} s of a processor ({wall:.1f} s of time)"
    )
    print(found)


if __name__ == "__main__":
    main()
