"""Deviations of a cluster from what a plan assumes: slow GPUs, stragglers, slow links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from deeppool.base.arguments import check_fields, typed
from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.cluster import MAXIMUM_GPUS
from deeppool.errors import InvalidValueError
from deeppool.profiling.measure.sampling import MINIMUM_RUNS
from deeppool.profiling.table import Profile

NORMAL = NormalDist()
MOST_RELATIVE = 1e6
"""Largest speed, bandwidth and delay, and the inverse of the smallest speed and bandwidth: times stay finite."""
MOST_JITTER = 10.0
"""A standard deviation makes an iteration 22,000 times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Speeds of GPUs and links while a plan runs; the defaults are those planned with.

    In each iteration the computing time of each GPU is multiplied independently by

        exp(jitter x N(0, 1)) / speed,  and with probability ``straggling`` also by  1 + delay x Exp(1).
    """

    speeds: tuple[float, ...] = ()
    """Relative speed per GPU, from GPU 0 on: 0.5 computes half as fast as planned. Further GPUs: 1."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of a GPU's computing time, from iteration to iteration."""
    straggling: float = 0.0
    """Probability that a GPU is a straggler in an iteration."""
    delay: float = 1.0
    """Mean relative delay of a straggler: 1.0 computes twice as long."""
    inside_bandwidth: float = 1.0
    """Bandwidth of the links inside a node relative to the plan's; latency grows accordingly."""
    between_bandwidth: float = 1.0
    """Bandwidth of the links between nodes relative to the plan's."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "speeds", tuple(real_number("speeds", speed) for speed in self.speeds))
        for name in ("jitter", "straggling", "delay", "inside_bandwidth", "between_bandwidth"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        for name, values in (
            ("speeds", self.speeds),
            ("inside_bandwidth", (self.inside_bandwidth,)),
            ("between_bandwidth", (self.between_bandwidth,)),
        ):
            wrong = next((value for value in values if not 0 < value < math.inf), None)
            if wrong is not None:
                raise InvalidValueError(f"{name} must be positive, got {wrong:g} (1 is as planned)")
            wrong = next((value for value in values if not 1 / MOST_RELATIVE <= value <= MOST_RELATIVE), None)
            if wrong is not None:
                raise InvalidValueError(
                    f"{name} must be from {1 / MOST_RELATIVE:g} to {MOST_RELATIVE:g}, got {wrong:g} (1 is as planned)"
                )
        for name, value, most in (("jitter", self.jitter, MOST_JITTER), ("delay", self.delay, MOST_RELATIVE)):
            if not 0 <= value < math.inf:
                raise InvalidValueError(f"{name} must not be negative, got {value:g} (0 is none)")
            if value > most:
                raise InvalidValueError(f"{name} must be at most {most:g}, got {value:g} (0 is none)")
        if not 0 <= self.straggling <= 1:
            raise InvalidValueError(f"straggling is a probability, from 0 to 1, got {self.straggling:g}")
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0))

    @property
    def random(self) -> bool:
        """Whether iterations differ from one another."""
        return self.jitter > 0 or (self.straggling > 0 and self.delay > 0)

    @property
    def as_planned(self) -> bool:
        """Whether everything is as planned."""
        return not self.random and {*self.speeds, self.inside_bandwidth, self.between_bandwidth} <= {1.0}

    def check_gpus(self, gpus: int, where: str) -> None:
        """Checks that no speed is of a GPU beyond those of a plan or cluster, as ``where`` names it.

        Raises:
            InvalidValueError: there is one.
        """
        if len(self.speeds) > gpus:
            raise InvalidValueError(
                f"speeds are given up to GPU {len(self.speeds) - 1}, {where} has {gpus} GPUs, the last of which is "
                f"{gpus - 1}"
            )

    def speed(self, gpu: int) -> float:
        """Returns the relative speed of a GPU, without random effects."""
        return self.speeds[gpu] if gpu < len(self.speeds) else 1.0

    def on(self, gpus: Sequence[int]) -> "Conditions":
        """Returns the conditions for a plan whose rank i is GPU ``gpus[i]``."""
        speeds = tuple(self.speed(gpu) for gpu in gpus)
        return replace(self, speeds=speeds if set(speeds) - {1.0} else ())

    def slowness(self, iterations: int, gpus: int) -> NDArray[np.float64]:
        """Draws the factor by which each GPU computes slower in each iteration, reproducibly for a seed.

        Returns:
            Array of shape (iterations, gpus).
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
        slow = ", ".join(f"GPU {gpu} at {speed:.3g}" for gpu, speed in list(named.items())[:4])
        parts = {
            f"speed of {slow}{' …' if len(named) > 4 else ''}": bool(named),
            f"jitter {self.jitter:.3g}": self.jitter > 0,
            f"stragglers {self.straggling:g} of the time, {1 + self.delay:g} times as slow": self.straggling > 0,
            f"bandwidth in a node x {self.inside_bandwidth:g}": self.inside_bandwidth != 1,
            f"between nodes x {self.between_bandwidth:g}": self.between_bandwidth != 1,
        }
        description = ", ".join(compress(parts, parts.values()))
        return f"{description}; seed {self.seed}" if description and self.random else description or "as planned"


@typed
def profiled_conditions(profile: Profile, gpus: int, *, seed: int = 0) -> Conditions:
    """Returns conditions under which all GPUs are as noisy as the one on which a profile was measured.

    A profile's times are means of the faster half of its iterations (see ``profiling/measure/sampling.py``), so the
    median iteration is slower than the profile, the more the noisier the device was.

    Args:
        profile: profile with measured whole iterations.
        gpus: number of GPUs of the plan.
        seed: random seed.

    Raises:
        InvalidValueError: the profile has no whole iterations, as an estimate, or too few at every batch size.
    """
    if not profile.checks:
        raise InvalidValueError(
            f"the profile of {profile.graph.model} holds no noise: it was {profile.provenance}, and no whole iteration "
            "was measured beside its layers (measure it: deeppool profile)"
        )
    spreads = [check.spread for check in profile.checks if check.runs >= MINIMUM_RUNS]
    if not spreads:
        most = max(check.runs for check in profile.checks)
        raise InvalidValueError(
            f"the profile of {profile.graph.model} holds no noise: no batch size has more than {most} whole "
            f"iterations, and noise shows in {MINIMUM_RUNS} (measure longer: deeppool profile --seconds 30)"
        )
    # Half the interquartile range of exp(jitter x N(0, 1)), and the mean of its lower half.
    jitter = math.asinh(fmean(spreads)) / NORMAL.inv_cdf(0.75)
    if jitter > MOST_JITTER:
        raise InvalidValueError(
            f"the profile of {profile.graph.model} is too noisy to simulate: iterations spread by "
            f"{100 * fmean(spreads):.3g} %, which is a jitter of {jitter:.3g}, and {MOST_JITTER:g} is the most "
            "(profile it again on an idle machine)"
        )
    typical = 2 * math.exp(jitter**2 / 2) * NORMAL.cdf(-jitter)
    return Conditions(speeds=(typical,) * whole_number("gpus", gpus, most=MAXIMUM_GPUS), jitter=jitter, seed=seed)
