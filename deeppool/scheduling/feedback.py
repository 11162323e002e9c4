"""Slowdown feedback: bans background launches during operators of the foreground that they slow too much.

DeepPool (section 5) times each operator and pauses collocation during those that are slowed most, above all
all-reduces. A ban expires and the operator is tried again; each further ban lasts twice as long, and a good trial
halves the next. A ban that does not help ends early: an operator that waits for a slow rank elsewhere is slow
with or without a background.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from deeppool.scheduling.background_limits import Operator
from deeppool.scheduling.slowdown import spread

KEPT = 9
"""Latest times of an operator that are kept, of each kind."""
ENOUGH = 3
"""Times of each kind before a decision; one is enough where it resembles the cause of the last ban."""
TRIAL = 8
"""Collocated times without slowdown that make a good trial."""
FLOOR, EVENT_FLOOR = 50e-6, 2e-6
"""Seconds of slowdown that are ignored, the noise of short operators: where the host's clock times them, and where
events of the device do, which tell times apart by about half a microsecond. A GPU's operators take 100 microseconds."""
CONFIDENCE = 3.0
"""Standard errors by which two medians differ significantly."""
STRIKING = 2.0
"""Standard deviations of a time alone by which a single time must be longer to repeat the last ban."""
FIRST_BAN, LONGEST_BAN = 32, 4096
"""Length of a ban in iterations."""


def _times() -> deque[float]:
    return deque(maxlen=KEPT)


@dataclass(slots=True)
class _History:
    """Measurements and bans of one operator."""

    alone: deque[float] = field(default_factory=_times)
    typical: float = math.inf
    """Median of the times alone."""
    noise: float = 0.0
    """Standard deviation of one of them, seconds."""
    collocated_times: deque[float] = field(default_factory=_times)
    """Times with a background that may launch, since the last ban."""
    banned_times: deque[float] = field(default_factory=_times)
    """Times with a background that is banned, since the ban began."""
    banned_until: int = 0
    trial_until: int = 0
    """End of the trial after the first collocated time or the end of a ban."""
    slowed_time: float | None = None
    """Collocated seconds that caused the last ban."""
    exempt_until: int = 0
    """Iteration before which it is not banned again, because the last ban did not help."""
    length: int = FIRST_BAN
    """Length of the next ban."""


class Feedback:
    """Learns from every iteration which operators to ban."""

    def __init__(self, tolerance: float, *, floor: float = FLOOR) -> None:
        """Takes the slowdown above which an operator is banned: 0.1 is 10 %; and the seconds that are ignored."""
        self._tolerance, self._floor = tolerance, floor
        self._known: dict[Operator, _History] = {}

    def banned(self, iteration: int) -> frozenset[Operator]:
        """Returns the operators during which nothing may run in this iteration."""
        return frozenset(operator for operator, known in self._known.items() if iteration < known.banned_until)

    def trying(self, iteration: int) -> bool:
        """Whether some operator is on trial, so that its slowdown may soon end by a ban."""
        return any(iteration < known.trial_until for known in self._known.values())

    def alone(self, operators: Mapping[Operator, float]) -> None:
        """Records the operators' times in an iteration without a background."""
        for operator, seconds in operators.items():
            known = self._known.setdefault(operator, _History())
            known.alone.append(seconds)
            known.typical, known.noise = median(known.alone), spread(known.alone)

    def collocated(self, iteration: int, operators: Mapping[Operator, float]) -> None:
        """Records the operators' times in an iteration with a background, under the bans of :meth:`banned`."""
        for operator, seconds in operators.items():
            known = self._known.setdefault(operator, _History())
            if iteration < known.banned_until:
                known.banned_times.append(seconds)
                self._consider_lifting(known, iteration)
            else:
                if not known.collocated_times:
                    known.trial_until = iteration + ENOUGH
                known.collocated_times.append(seconds)
                self._consider_ban(known, iteration)

    def _consider_ban(self, known: _History, iteration: int) -> None:
        """Bans an operator that is slowed."""
        if len(known.alone) < ENOUGH or iteration < known.exempt_until:
            return
        if len(known.collocated_times) == TRIAL:
            known.slowed_time = None
            known.length = max(known.length // 2, FIRST_BAN)
        # Usually nothing is slowed, and this runs between two iterations.
        if not self._is_slowed(known, known.collocated_times[-1]):
            return
        collocated_times = median(known.collocated_times)
        again = (
            known.slowed_time is not None
            and collocated_times > (known.typical + known.slowed_time) / 2
            and collocated_times > known.typical + STRIKING * known.noise
        )
        sure = again or (len(known.collocated_times) >= ENOUGH and _differ(known.collocated_times, known.alone))
        if sure and self._is_slowed(known, collocated_times):
            known.slowed_time = collocated_times
            known.banned_until = iteration + 1 + known.length
            known.length = min(2 * known.length, LONGEST_BAN)
            known.trial_until = 0
            # A new trial follows the ban.
            known.collocated_times.clear()
            known.banned_times.clear()

    def _consider_lifting(self, known: _History, iteration: int) -> None:
        """Lifts a ban that does not help."""
        if len(known.banned_times) == ENOUGH and known.slowed_time is not None:
            banned_times = median(known.banned_times)
            if self._is_slowed(known, banned_times) and banned_times > (known.typical + known.slowed_time) / 2:
                known.banned_until = iteration + 1
                known.exempt_until = iteration + 1 + known.length

    def _is_slowed(self, known: _History, seconds: float) -> bool:
        return seconds > (1 + self._tolerance) * known.typical + self._floor


def _differ(these: deque[float], those: deque[float]) -> bool:
    """Whether two medians differ by more than noise; a median's variance is pi/2 that of a mean."""
    error = math.sqrt(math.pi / 2 * (spread(these) ** 2 / len(these) + spread(those) ** 2 / len(those)))
    return abs(median(these) - median(those)) > CONFIDENCE * error
