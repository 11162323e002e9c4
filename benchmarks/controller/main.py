"""Which controller holds a bound on the foreground's slowdown? Three of them on synthetic plants, a virtual clock.

A plant says what a share of the device costs the foreground; iteration times are noisy. Prints, per plant and
controller, the true mean slowdown of the second half of a run and the share that the background had.

    python benchmarks/controller/main.py
"""

import argparse
import itertools
import json
import math
import random
from functools import cache
from pathlib import Path
from statistics import fmean, median, pstdev

from deeppool.base.sharing import Sharing
from deeppool.runs.interleaved_measurement import ROUND_STEPS
from deeppool.scheduling.controller import MIN_SHARE, Controller
from deeppool.scheduling.governor import DENSE, Governor

BOUND = 0.03
RECORDED = {
    "as recorded on a machine with other virtual machines": "shared-machine.json",
    "as recorded there in a busier hour": "busy-hour.json",
}
"""Noise that is neither independent nor small."""
ITERATIONS = 600
HALF = ITERATIONS // 2
PARTS = range(24, 150), range(150, 600), range(600, 3000)
PLANTS = {
    "free: -0.5 %": lambda i, share: -0.005,
    "2 % x share": lambda i, share: 0.02 * share,
    "6 % x share": lambda i, share: 0.06 * share,
    "10 % x share": lambda i, share: 0.1 * share,
    "120 % x share": lambda i, share: 1.2 * share,
    "30 % from share 0.4 on": lambda i, share: 0.75 * min(share, 0.4),
    "50 % x share, from the middle on": lambda i, share: 0.5 * share if i >= HALF else 0.0,
    "50 % x share, until the middle": lambda i, share: 0.5 * share if i < HALF else 0.0,
}


WANDERING = "free, and the machine's speed wanders by 3 %"
PLANTS[WANDERING] = lambda i, share: 0.0
MEMORY = 50
"""Iterations in which a wandering speed forgets where it was."""


class Plain:
    """A controller that takes every slowdown for the background's."""

    drift = 0.0

    @property
    def is_settled(self):
        return self.share == 1

    @property
    def needs_baseline(self):
        return self.share < 1

    def alone(self, shift):
        """There are new iterations alone, against which slowdowns are."""

    def forget(self):
        """Only with bans of operators, which there are none of here."""


class AdditiveIncrease(Plain):
    """As TGS: a little more while the bound holds, half where it does not."""

    def __init__(self, bound):
        self.share, self._bound, self._seen = 1.0, bound, []

    def collocated(self, share, slowdown, alone, noise):
        self._seen.append(slowdown)
        if len(self._seen) >= 5 and alone >= 2:
            broken = fmean(self._seen) > self._bound
            self.share = max(MIN_SHARE, self.share / 2) if broken else min(1.0, self.share + 0.05)
            self._seen = []


class Bisection(Plain):
    """As Orion: every ten iterations, the middle between what holds the bound and what breaks it."""

    def __init__(self, bound):
        self.share, self._bound, self._seen = 1.0, bound, []
        self._holds, self._breaks = 0.0, 1.0

    def collocated(self, share, slowdown, alone, noise):
        self._seen.append(slowdown)
        if len(self._seen) < 10 or alone < 2:
            return
        broken = fmean(self._seen) > self._bound
        self._seen = []
        if self.share == 1 and not broken:
            return
        self._holds, self._breaks = (self._holds, self.share) if broken else (self.share, self._breaks)
        if self._breaks - self._holds < 0.02:
            # Found; look again whether it has moved.
            self._holds, self._breaks = self.share / 2, min(1.0, 2 * self.share)
        self.share = max(MIN_SHARE, (self._holds + self._breaks) / 2)


CONTROLLERS = {"additive increase": AdditiveIncrease, "bisection": Bisection, "trials and a fit (ours)": Controller}


def wandering(seed):
    """A speed that wanders by 3 %."""
    draw, level, kept = random.Random(seed), 0.0, math.exp(-1 / MEMORY)
    while True:
        level = kept * level + math.sqrt(1 - kept**2) * draw.gauss(0, 0.03)
        yield 1 + level


@cache
def runs_of(name):
    return json.loads(Path(__file__).with_name(RECORDED[name]).read_text())["milliseconds"]


def recorded(name, seed):
    """Speeds of one of the recorded runs, from a place that the seed decides on."""
    runs = runs_of(name)
    times = runs[seed % len(runs)]
    start = random.Random(seed).randrange(len(times))
    middle = median(times)
    return (time / middle for time in itertools.cycle([*times[start:], *times[:start]]))


def run(controller, name, noise, seed, *, bound=BOUND, part=range(HALF, ITERATIONS), turns=False):
    """True slowdowns and shares in a part of the iterations, those alone left out.

    ``noise`` is a part of an iteration, or a recording; by ``turns`` the governor also learns from a run's turns alone.
    """
    plant, draw = PLANTS[name], random.Random(seed)
    speed = wandering(seed) if name == WANDERING else itertools.repeat(1.0)
    if noise in RECORDED:
        speed, noise = (a * b for a, b in zip(speed, recorded(noise, seed), strict=False)), 0.0
    governor = Governor(Sharing(max_slowdown=bound))
    governor._controller = controller(bound)
    slowdowns, shares = [], []
    for iteration in range(part.stop):
        orders = governor.begin(iteration)
        slowdown = plant(iteration, orders.share) if orders.open else 0.0
        governor.end(0.1 * (1 + slowdown) * next(speed) * draw.lognormvariate(0, noise), {})
        if orders.open and iteration in part:
            slowdowns.append(slowdown)
            shares.append(orders.share)
        if turns and iteration >= DENSE and iteration % ROUND_STEPS == ROUND_STEPS - 1:
            # On cores that sleep, then on cores that are awake, of which the first one is not warm.
            alone = [0.1 * next(speed) for _ in range(2 * ROUND_STEPS)]
            governor.alone(alone[ROUND_STEPS + 1 :])
    return slowdowns, shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    for noise in (0.02, 0.05, 0.15, *RECORDED):
        told = noise if noise in RECORDED else f"{100 * noise:.0f} %"
        print(f"\nnoise {told}, bound {100 * BOUND:.0f} %: slowdown, share ± its spread over time\n")
        print(f"| plant | {' | '.join(CONTROLLERS)} |\n|---{'|---' * len(CONTROLLERS)}|")
        for name in PLANTS:
            cells = []
            for controller in CONTROLLERS.values():
                found = [run(controller, name, noise, seed) for seed in range(arguments.seeds)]
                slowdown = fmean(fmean(slowdowns) for slowdowns, _ in found)
                share = fmean(fmean(shares) for _, shares in found)
                spread = fmean(pstdev(shares) for _, shares in found)
                cells.append(f"{100 * slowdown:.1f} %, {share:.2f} ± {spread:.2f}")
            print(f"| {name} | {' | '.join(cells)} |")
    for noise in RECORDED:
        for turns in (False, True):
            over_time(noise, turns=turns)


def over_time(noise, *, turns):
    """Prints what ours gives backgrounds by a tight bound, soon and in the long run."""
    beside = ", learning from a run's turns alone, too" if turns else ""
    print(f"\nnoise {noise}, bound 1 %{beside}: share, true slowdown, in iterations\n")
    print(f"| plant | {' | '.join(f'{part.start} to {part.stop}' for part in PARTS)} |")
    print(f"|---{'|---' * len(PARTS)}|")
    for name in ("free: -0.5 %", "2 % x share", "6 % x share", "10 % x share", "120 % x share"):
        cells = []
        for part in PARTS:
            found = [run(Controller, name, noise, seed, bound=0.01, part=part, turns=turns) for seed in range(24)]
            slowdown, share = (fmean(fmean(values) for values in column) for column in zip(*found, strict=True))
            cells.append(f"{share:.2f}, {100 * slowdown:.1f} %")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
