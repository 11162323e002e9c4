"""What does training by solo, majority and exact all-reduces gain, and what does it cost, where ranks are late?

    python benchmarks/partial-collectives/training.py hyperplane --json hyperplane.json
    python benchmarks/partial-collectives/training.py digits --seeds 5 --json digits.json

``hyperplane`` is figure 10 of Li et al. (PPoPP 2020) with all times divided by 4: 8 processes, a step of 152.5 ms, one
random rank of each step late. ``digits`` is figure 12 with a small ResNet on images of digits: all 8 ranks late by
times that are spread evenly and shifted after each step.
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from deeppool.collectives.partial.load_imbalance import random_ranks, rotating
from deeppool.runs.mode_comparison.compare import COMPARED, compare_modes

RANKS = 8


def main() -> None:
    """Prints a comparison for each delay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["hyperplane", "digits"])
    parser.add_argument("--delays-ms", type=float, nargs="+", help="longest delays; by default 100, or 160 for digits")
    parser.add_argument("--modes", nargs="+", default=COMPARED)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    regression, found = given.task == "hyperplane", []
    for delay in (each / 1000 for each in given.delays_ms or [100 if regression else 160]):
        comparison = compare_modes(
            given.task,
            random_ranks(RANKS, delay) if regression else rotating(RANKS, delay / 8, delay),
            modes=given.modes,
            seeds=range(given.seeds),
            ranks=RANKS,
            updates=given.updates or (768 if regression else 320),
            step=0.1525 if regression else 0.08,
            **({} if regression else {"batch": 64}),
        )
        print(f"delays of up to {delay:g} s, load {os.getloadavg()[0]:.0f}: {comparison}", flush=True)
        found.append({"delay": delay, **asdict(comparison)})
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
