"""Load imbalance: how much longer each rank computes in each step, for runs and for simulations.

    delays = random_ranks(ranks=8, delay=0.2, seed=0)
    time.sleep(delays(rank, step))

The three distributions are the batch times that Li et al. (PPoPP 2020, section 2) report: range, mean and standard
deviation. They do not report the shape; here it is a beta distribution of that range, mean and deviation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deeppool.errors import InvalidValueError

Delays = Callable[[int, int], float]
"""Returns the seconds that a rank is delayed by in a step; the same on all ranks."""


@dataclass(frozen=True, slots=True)
class ReportedTimes:
    """Batch times of one training, as reported."""

    shortest: float
    longest: float
    mean: float
    deviation: float

    def draw(self, rank: int, step: int, seed: int = 0) -> float:
        """Draws the seconds of one batch."""
        spread = self.longest - self.shortest
        mean, variance = (self.mean - self.shortest) / spread, (self.deviation / spread) ** 2
        weight = mean * (1 - mean) / variance - 1
        drawn = _generator(seed, step, rank).beta(mean * weight, (1 - mean) * weight)
        return self.shortest + spread * float(drawn)


REPORTED = {
    "ucf101-lstm": ReportedTimes(0.201, 3.410, 1.235, 0.706),
    "wmt16-transformer": ReportedTimes(0.179, 3.482, 0.475, 0.144),
    "cloud-resnet50": ReportedTimes(0.399, 1.892, 0.454, 0.116),
}
"""LSTM on UCF101 and Transformer on WMT16, each on a P100; ResNet-50 on ImageNet on cloud machines with 2 V100."""


def fixed(delays: list[float]) -> Delays:
    """Delays each rank by the same time in every step."""
    return lambda rank, step: delays[rank]


def rotating(ranks: int, shortest: float, longest: float) -> Delays:
    """Delays all ranks by times spread evenly over a range, shifted by one rank after each step."""
    _check(ranks, shortest, longest)
    return lambda rank, step: shortest + (longest - shortest) * ((rank + step) % ranks) / max(ranks - 1, 1)


def random_ranks(ranks: int, delay: float, count: int = 1, seed: int = 0) -> Delays:
    """Delays some ranks by the same time, drawn anew for each step."""
    _check(ranks, delay, delay)
    if not 0 <= count <= ranks:
        raise InvalidValueError(f"0 to {ranks} ranks are late, got {count}")
    return lambda rank, step: delay * (rank in _generator(seed, step).permutation(ranks)[:count])


def drawn(name: str, seed: int = 0, scale: float = 1.0) -> Delays:
    """Delays by a reported distribution: what a batch takes longer than the shortest one, times a factor."""
    if name not in REPORTED:
        raise InvalidValueError(f"load imbalance is one of {', '.join(REPORTED)}, got {name!r}")
    times = REPORTED[name]
    return lambda rank, step: scale * (times.draw(rank, step, seed) - times.shortest)


def step_times(step: float, delays: Delays) -> Delays:
    """Returns whole compute times: the same for all ranks, plus delays."""
    return lambda rank, number: step + delays(rank, number)


def _generator(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def _check(ranks: int, shortest: float, longest: float) -> None:
    if ranks < 1 or not 0 <= shortest <= longest:
        raise InvalidValueError(
            f"load imbalance is of at least 1 rank and from 0 s up, got {ranks} ranks and {shortest} to {longest} s"
        )
