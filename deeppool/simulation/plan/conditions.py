"""What a cluster is really like, against what a plan takes it for: slow GPUs, stragglers, slow links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from deeppool.errors import InvalidValueError
from deeppool.profiling.measure.sampling import MINIMUM_RUNS
from deeppool.profiling.table import Profile

NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Of a cluster while a plan runs. As they stand, everything goes as planned.

    In each iteration each GPU computes as many times slower as

        exp(jitter x N(0, 1)) / speed,  and with probability ``straggling`` once more  1 + delay x Exp(1)

    times slower, each GPU and each iteration by itself.
    """

    speeds: tuple[float, ...] = ()
    """Per GPU, from the first one on: 0.5 computes half as fast as planned. Those beyond the last: 1."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of a GPU's computing time, from iteration to iteration."""
    straggling: float = 0.0
    """Probability that a GPU is a straggler in an iteration."""
    delay: float = 1.0
    """By which a straggler is slower on average: 1.0 computes twice as long."""
    inside_bandwidth: float = 1.0
    """Of the links inside a node, as a part of what was planned with; latency suffers with it."""
    between_bandwidth: float = 1.0
    """Of the links between nodes."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, values in (
            ("speeds", self.speeds),
            ("inside_bandwidth", (self.inside_bandwidth,)),
            ("between_bandwidth", (self.between_bandwidth,)),
        ):
            wrong = next((value for value in values if not 0 < value < math.inf), None)
            if wrong is not None:
                raise InvalidValueError(f"{name} must be positive, got {wrong:g} (1 is as planned)")
        for name, value in (("jitter", self.jitter), ("delay", self.delay)):
            if not 0 <= value < math.inf:
                raise InvalidValueError(f"{name} must not be negative, got {value:g} (0 is none)")
        if not 0 <= self.straggling <= 1:
            raise InvalidValueError(f"straggling is a probability, from 0 to 1, got {self.straggling:g}")

    @property
    def random(self) -> bool:
        """Whether one iteration differs from another."""
        return self.jitter > 0 or (self.straggling > 0 and self.delay > 0)

    @property
    def as_planned(self) -> bool:
        """Whether nothing is other than planned."""
        return not self.random and {*self.speeds, self.inside_bandwidth, self.between_bandwidth} <= {1.0}

    def speed(self, gpu: int) -> float:
        """Of a GPU, without what is drawn."""
        return self.speeds[gpu] if gpu < len(self.speeds) else 1.0

    def on(self, gpus: Sequence[int]) -> "Conditions":
        """For a plan whose rank i is GPU ``gpus[i]``."""
        speeds = tuple(self.speed(gpu) for gpu in gpus)
        return replace(self, speeds=speeds if set(speeds) - {1.0} else ())

    def slowness(self, iterations: int, gpus: int) -> NDArray[np.float64]:
        """Draws how many times slower each GPU computes in each iteration; the same seed draws the same.

        Returns:
            (iterations, gpus).
        """
        draw = np.random.default_rng(self.seed)
        slow = np.tile(1 / np.array([self.speed(gpu) for gpu in range(gpus)]), (iterations, 1))
        if self.jitter:
            slow *= np.exp(draw.normal(0, self.jitter, slow.shape))
        if self.straggling:
            late = draw.random(slow.shape) < self.straggling
            slow *= np.where(late, 1 + self.delay * draw.exponential(1, slow.shape), 1)
        return slow

    def __str__(self) -> str:
        named = {gpu: speed for gpu, speed in enumerate(self.speeds) if speed != 1}
        slow = ", ".join(f"GPU {gpu} at {speed:g}" for gpu, speed in list(named.items())[:4])
        parts = {
            f"speed of {slow}{' …' if len(named) > 4 else ''}": bool(named),
            f"jitter {self.jitter:g}": self.jitter > 0,
            f"stragglers {self.straggling:g} of the time, {self.delay:g} slower": self.straggling > 0,
            f"bandwidth in a node x {self.inside_bandwidth:g}": self.inside_bandwidth != 1,
            f"between nodes x {self.between_bandwidth:g}": self.between_bandwidth != 1,
        }
        description = ", ".join(compress(parts, parts.values()))
        return f"{description}; seed {self.seed}" if description and self.random else description or "as planned"


def profiled_conditions(profile: Profile, gpus: int, *, seed: int = 0) -> Conditions:
    """GPUs that differ from one iteration to the next as the one did on which a profile was measured.

    A profile's times are means of the faster half of its iterations (see ``profiling/spread.py``); a GPU
    computes slower than that in the middle, the more the noisier it is.

    Args:
        profile: whose whole iterations say how noisy the device was.
        gpus: that the plan has.
        seed: of what is drawn.

    Raises:
        InvalidValueError: the profile has no whole iterations, as an estimate, or too few at every batch size.
    """
    if not profile.checks:
        raise InvalidValueError(
            f"the profile of {profile.graph.model} knows no noise: it was {profile.provenance}, and no whole iteration "
            "was measured beside its layers (measure it: deeppool profile)"
        )
    spreads = [check.spread for check in profile.checks if check.runs >= MINIMUM_RUNS]
    if not spreads:
        most = max(check.runs for check in profile.checks)
        raise InvalidValueError(
            f"the profile of {profile.graph.model} knows no noise: no batch size has more than {most} whole "
            f"iterations, and noise shows in {MINIMUM_RUNS} (measure longer: deeppool profile --seconds 30)"
        )
    # Half the distance of the quartiles of exp(jitter x N(0, 1)), and the mean of its lower half.
    jitter = math.asinh(fmean(spreads)) / NORMAL.inv_cdf(0.75)
    typical = 2 * math.exp(jitter**2 / 2) * NORMAL.cdf(-jitter)
    return Conditions(speeds=(typical,) * gpus, jitter=jitter, seed=seed)
