"""Which curve through four measured batch sizes is nearest to the sizes between? On the authors' A100 layer times.

The candidates: a straight line, in the times or in their logarithms, and Fritsch and Carlson's monotone cubic
(PCHIP, with three-point ends), also in both. Sizes {1, 4, 16, 64} and others; where a file ends at 32, 32 for 64.
"""

import argparse
import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.planner.a100_profiles import MODELS, read_profile
from deeppool.profiling.table import Profile

CHOICES = ((1, 4, 16, 64), (1, 8, 64), (1, 2, 8, 64), (1, 6, 16, 64), (2, 8, 16, 64), (1, 3, 8, 32, 64))
Curve = Callable[[Sequence[float], Sequence[float]], Callable[[float], float]]


def straight(xs: Sequence[float], ys: Sequence[float]) -> Callable[[float], float]:
    def at(x: float) -> float:
        i = min(max(bisect_left(xs, x), 1), len(xs) - 1)
        return ys[i - 1] + (x - xs[i - 1]) / (xs[i] - xs[i - 1]) * (ys[i] - ys[i - 1])

    return at


def monotone_cubic(xs: Sequence[float], ys: Sequence[float]) -> Callable[[float], float]:
    steps = [b - a for a, b in pairwise(xs)]
    slopes = [(b - a) / h for (a, b), h in zip(pairwise(ys), steps, strict=True)]

    def end(h: float, next_h: float, slope: float, next_slope: float) -> float:
        tangent = ((2 * h + next_h) * slope - h * next_slope) / (h + next_h)
        if tangent * slope <= 0:
            return 0.0
        return 3 * slope if slope * next_slope < 0 and abs(tangent) > 3 * abs(slope) else tangent

    tangents = [end(steps[0], steps[1], slopes[0], slopes[1])]
    for i in range(1, len(xs) - 1):
        if slopes[i - 1] * slopes[i] <= 0:
            tangents.append(0.0)
        else:
            left, right = 2 * steps[i] + steps[i - 1], steps[i] + 2 * steps[i - 1]
            tangents.append((left + right) / (left / slopes[i - 1] + right / slopes[i]))
    tangents.append(end(steps[-1], steps[-2], slopes[-1], slopes[-2]))

    def at(x: float) -> float:
        i = min(max(bisect_left(xs, x), 1), len(xs) - 1) - 1
        h, t = steps[i], (x - xs[i]) / steps[i]
        return (
            (2 * t**3 - 3 * t**2 + 1) * ys[i]
            + (t**3 - 2 * t**2 + t) * h * tangents[i]
            + (3 * t**2 - 2 * t**3) * ys[i + 1]
            + (t**3 - t**2) * h * tangents[i + 1]
        )

    return at


def in_logarithms(curve: Curve) -> Curve:
    def through(xs: Sequence[float], ys: Sequence[float]) -> Callable[[float], float]:
        inside = curve([math.log(x) for x in xs], [math.log(y) for y in ys])
        return lambda x: math.exp(inside(math.log(x)))

    return through


CURVES: dict[str, Curve] = {
    "straight line": straight,
    "PCHIP": monotone_cubic,
    "straight line, log-log": in_logarithms(straight),
    "PCHIP, log-log": in_logarithms(monotone_cubic),
}


def errors(profile: Profile, sizes: Sequence[int], curve: Curve) -> list[float]:
    """Of every measured layer's forward and backward together at every size in between, as a share."""
    largest = profile.batch_sizes[-1]
    known = sorted({min(size, largest) for size in sizes})
    between = [size for size in profile.batch_sizes if size not in known and size > known[0]]
    found = []
    for x in profile.measurements:
        if "concat" in x.signature:  # estimated, and on a line by construction
            continue
        total = {size: f + b for size, f, b in zip(profile.batch_sizes, x.forward, x.backward, strict=True)}
        at = curve(known, [total[size] for size in known])
        found += [abs(at(size) / total[size] - 1) for size in between]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=Path, required=True, help="folder of the A100 files")
    profiles = [read_profile(parser.parse_args().profiles, model) for model in MODELS]
    print(f"| sizes | curve | median error | mean | {' | '.join(f'{model}, median' for model in MODELS)} |")
    print("|---|---|---|---|" + "---|" * len(MODELS))
    for sizes in CHOICES:
        for name, curve in CURVES.items():
            each = [errors(profile, sizes, curve) for profile in profiles]
            every = [error for one in each for error in one]
            cells = [statistics.median(every), statistics.fmean(every), *map(statistics.median, each)]
            print(f"| {', '.join(map(str, sizes))} | {name} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
