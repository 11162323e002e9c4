"""Which controller holds a bound on the foreground's slowdown? Three of them on synthetic plants, a virtual clock.

A plant says what a share of the device costs the foreground; iteration times are noisy. Prints, per plant and
controller, the true mean slowdown of the second half of a run and the share that the background had.

    python benchmarks/controller/main.py
"""

import argparse
import itertools
import math
import random
from statistics import fmean, pstdev

from deeppool.scheduling.controller import LEAST, Controller
from deeppool.scheduling.governor import Governor
from deeppool.sharing import Sharing

BOUND = 0.03
ITERATIONS = 600
HALF = ITERATIONS // 2
PLANTS = {
    "free: -0.5 %": lambda i, share: -0.005,
    "2 % x share": lambda i, share: 0.02 * share,
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
    def at_ease(self):
        return self.share == 1

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
            self.share = max(LEAST, self.share / 2) if broken else min(1.0, self.share + 0.05)
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
        self.share = max(LEAST, (self._holds + self._breaks) / 2)


CONTROLLERS = {"additive increase": AdditiveIncrease, "bisection": Bisection, "trials and a fit (ours)": Controller}


def wandering(seed):
    """A speed that wanders by 3 %."""
    draw, level, kept = random.Random(seed), 0.0, math.exp(-1 / MEMORY)
    while True:
        level = kept * level + math.sqrt(1 - kept**2) * draw.gauss(0, 0.03)
        yield 1 + level


def run(controller, name, noise, seed):
    """True slowdowns and shares in the collocated iterations of the second half."""
    plant, draw = PLANTS[name], random.Random(seed)
    speed = wandering(seed) if name == WANDERING else itertools.repeat(1.0)
    governor = Governor(Sharing(max_slowdown=BOUND))
    governor._controller = controller(BOUND)
    slowdowns, shares = [], []
    for iteration in range(ITERATIONS):
        orders = governor.begin(iteration)
        slowdown = plant(iteration, orders.share) if orders.open else 0.0
        governor.end(0.1 * (1 + slowdown) * next(speed) * draw.lognormvariate(0, noise), {})
        if orders.open and iteration >= HALF:
            slowdowns.append(slowdown)
            shares.append(orders.share)
    return slowdowns, shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    for noise in (0.02, 0.05, 0.15):
        print(f"\nnoise {100 * noise:.0f} %, bound {100 * BOUND:.0f} %: slowdown, share ± its spread over time\n")
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


if __name__ == "__main__":
    main()
