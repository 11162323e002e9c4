"""What does training by solo, majority and exact all-reduces gain, and what does it cost, where ranks are late?

    python benchmarks/partial-collectives/training.py hyperplane --json hyperplane.json
    python benchmarks/partial-collectives/training.py digits --seeds 5 --json digits.json
    python benchmarks/partial-collectives/training.py digits --clock virtual --updates 3200 --seeds 5

``hyperplane`` is figure 10 of Li et al. (PPoPP 2020) with all times divided by 4: 8 processes, a step of 152.5 ms, one
random rank of each step late. ``digits`` is figure 12 with a small ResNet on images of digits: all 8 ranks late by
times that are spread evenly and shifted after each step. Every mode has the same learning rates: 0.05, a tenth of it
after a half of the updates and a hundredth after three quarters, as in He et al. (CVPR 2016) for small images.
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from deeppool.collectives.partial.load_imbalance import random_ranks, rotating
from deeppool.runs.mode_comparison.compare import COMPARED, compare_modes
from deeppool.runs.mode_comparison.record import ModeComparison
from deeppool.runs.mode_comparison.tasks import decay

RANKS = 8
ACCURACIES = (0.75, 0.9, 0.95)
"""To which times are printed."""


def main() -> None:
    """Prints a comparison for each delay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["hyperplane", "digits"])
    parser.add_argument("--delays-ms", type=float, nargs="+", help="longest delays; by default 100, or 160 for digits")
    parser.add_argument("--modes", nargs="+", default=COMPARED)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--updates", type=int, help="of each training; by default 768, or 320 for digits")
    parser.add_argument("--test-images", type=int, default=1024, help="of digits, which no training sees")
    parser.add_argument("--clock", choices=["wall", "virtual"], default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    regression, found = given.task == "hyperplane", []
    updates = given.updates or (768 if regression else 320)
    for delay in (each / 1000 for each in given.delays_ms or [100 if regression else 160]):
        comparison = compare_modes(
            given.task,
            random_ranks(RANKS, delay) if regression else rotating(RANKS, delay / 8, delay),
            modes=given.modes,
            seeds=range(given.seeds),
            ranks=RANKS,
            updates=updates,
            step=0.1525 if regression else 0.08,
            points=20 if given.clock == "wall" else 50,
            clock=given.clock,
            **({} if regression else {"batch": 64, "decay": decay(updates), "test_images": given.test_images}),
        )
        print(f"delays of up to {delay:g} s, load {os.getloadavg()[0]:.0f}: {comparison}", flush=True)
        if not regression:
            print(*_accuracies(comparison), sep="\n", flush=True)
        found.append({"delay": delay, **asdict(comparison)})
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def _accuracies(comparison: ModeComparison) -> Iterator[str]:
    """Yields a line for each mode: accuracy less than the first mode's, and times to accuracies."""
    for mode in comparison.modes:
        change, half_width = comparison.accuracy_gain(mode)
        times = [comparison.time_to(mode, accuracy) for accuracy in ACCURACIES]
        told = ", ".join(
            f"to {accuracy:.0%} {'not by all seeds' if seconds is None else f'{seconds:.0f} s'}"
            for accuracy, seconds in zip(ACCURACIES, times, strict=True)
        )
        spread = "" if half_width is None else f" ± {100 * half_width:.1f}"
        yield f"  {mode:<15} {100 * change:+.1f}{spread} points, {told}"


if __name__ == "__main__":
    main()
