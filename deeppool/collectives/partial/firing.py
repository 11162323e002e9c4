"""When a round of a partial all-reduce fires, given the ranks that have arrived.

    solo      the first arrival fires
    majority  the arrival of one initiator fires, drawn for each round from a seed that all ranks share; on average
              half of the ranks arrive before it
    quorum    the arrival number ``quorum`` fires
    full      the last arrival fires: a synchronous all-reduce
    straggler-aware  the same, but the ranks that have arrived sum their gradients while they wait for the last one

A grace window delays the first three, but not beyond the arrival of the last rank. Solo and majority are from Li et
al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective Operations", PPoPP 2020, section 4.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from deeppool.base.number_checks import real_number, seed_number, whole_number
from deeppool.errors import InvalidValueError

_64_BITS = 2**64 - 1

Mode = Literal["solo", "majority", "quorum", "full", "straggler-aware"]
MODES: tuple[Mode, ...] = ("solo", "majority", "quorum", "full", "straggler-aware")
EXACT: tuple[Mode, ...] = ("full", "straggler-aware")
"""Modes whose rounds hold a gradient of every rank."""


@dataclass(frozen=True, slots=True)
class FiringRule:
    """When the rounds of some ranks fire."""

    ranks: int
    mode: Mode = "solo"
    quorum: int | None = None
    """Arrivals that fire a round of mode ``quorum``."""
    grace: float = 0.0
    """Seconds for which a round that could fire waits for more ranks."""
    seed: int = 0
    """Seed of the initiators of mode ``majority``, the same on all ranks."""
    staleness_limit: int | None = 32
    """Consecutive rounds that may go without a gradient of a rank; the next one waits for all ranks. None: no limit."""
    synchronous_every: int | None = None
    """The last of every so many rounds waits for all ranks. None: none does for its number."""

    def __post_init__(self) -> None:
        for name, most, note in (
            ("ranks", None, ""),
            ("quorum", self.ranks, f"there are {self.ranks} ranks"),
            ("staleness_limit", None, "None: no limit"),
            ("synchronous_every", None, "None: none"),
        ):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, most=most, note=note))
        object.__setattr__(self, "seed", seed_number(self.seed))
        if self.mode not in MODES:
            raise InvalidValueError(f"mode is one of {', '.join(MODES)}, got {self.mode!r}")
        if (self.quorum is not None) != (self.mode == "quorum"):
            raise InvalidValueError(
                f"mode 'quorum' and a quorum go together, got mode {self.mode!r} and quorum {self.quorum} "
                "(solo is quorum 1, full is all ranks)"
            )
        object.__setattr__(self, "grace", real_number("grace", self.grace))
        if not 0 <= self.grace < math.inf:
            raise InvalidValueError(f"grace is a number of seconds, 0 or more, got {self.grace}")

    def initiator(self, number: int) -> int:
        """Returns the rank whose arrival fires a round of mode ``majority``."""
        return _mixed(_mixed(int(self.seed)) + number) % self.ranks

    def is_synchronous(self, number: int, missed: Collection[int]) -> bool:
        """Returns whether a round waits for all ranks whatever its mode.

        Args:
            number: of the round, from 0.
            missed: for each rank, the rounds since one last had a gradient of it.
        """
        if self.mode in EXACT or (self.synchronous_every and (number + 1) % self.synchronous_every == 0):
            return True
        return self.staleness_limit is not None and max(missed, default=0) >= self.staleness_limit

    def fires_at(self, number: int, arrivals: Mapping[int, float], *, synchronous: bool, members: int) -> float:
        """Returns when a round fires if nobody else arrives; infinity: it does not.

        Args:
            number: of the round, from 0.
            arrivals: when each rank arrived that has.
            synchronous: whether the round waits for all ranks.
            members: number of ranks that can still arrive or have; others have finished.
        """
        times = sorted(arrivals.values())
        if len(times) >= members:
            return times[-1] if times else math.inf
        if synchronous:
            return math.inf
        if self.mode == "majority":
            return arrivals.get(self.initiator(number), math.inf) + self.grace
        needed = self.quorum or 1
        return times[needed - 1] + self.grace if len(times) >= needed else math.inf


def _mixed(number: int) -> int:
    """Returns 64 bits that a number scatters, in any language (splitmix64; Steele et al., OOPSLA 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _64_BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return number ^ (number >> 31)
