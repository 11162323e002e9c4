"""Slowdown feedback: which operators of the foreground suffer so much that nothing may run beside them.

DeepPool (section 5) times each operator and pauses collocation during those that suffer, all-reduces above all.
A ban ends by itself and the operator is tried again; each further ban lasts twice as long, and a good trial
halves the next. A ban that does not help ends early: an operator that waits for a slow rank elsewhere is slow
whatever runs beside it.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from deeppool.scheduling.background_limits import Operator
from deeppool.scheduling.slowdown import spread

KEPT = 9
"""Times of an operator of each kind; the latest count."""
ENOUGH = 3
"""Times of each kind before anything is concluded; one, where it looks like what the last ban was for."""
TRIAL = 8
"""Times beside the background, without harm, that make a good trial."""
FLOOR = 50e-6
"""Seconds of slowdown that ban nothing: short operators are as noisy as that."""
CONFIDENCE = 3.0
"""Standard errors by which two medians differ clearly."""
STRIKING = 2.0
"""Standard deviations of a time alone by which a single one must be longer to look like what the last ban was for."""
FIRST_BAN, LONGEST_BAN = 32, 4096
"""Iterations."""


def _times() -> deque[float]:
    return deque(maxlen=KEPT)


@dataclass(slots=True)
class _History:
    """What is known of one operator."""

    alone: deque[float] = field(default_factory=_times)
    typical: float = math.inf
    """Median of those."""
    noise: float = 0.0
    """Standard deviation of one of them, seconds."""
    collocated_times: deque[float] = field(default_factory=_times)
    """With a background that was free to run beside it; since the last ban."""
    banned_times: deque[float] = field(default_factory=_times)
    """With a background, but banned; since this ban began."""
    banned_until: int = 0
    trial_until: int = 0
    """First seen beside the background, or its ban has ended: before this iteration not much is known of it."""
    slowed_time: float | None = None
    """Seconds beside the background that the last ban was for."""
    exempt_until: int = 0
    """A ban has not helped; no other before this iteration."""
    length: int = FIRST_BAN
    """Of the next ban."""


class Feedback:
    """Learns from every iteration, and names the operators that are banned."""

    def __init__(self, tolerance: float) -> None:
        """Takes the slowdown of an operator from which on it is banned: 0.1 is 10 %."""
        self._tolerance = tolerance
        self._known: dict[Operator, _History] = {}

    def banned(self, iteration: int) -> frozenset[Operator]:
        """Operators beside which nothing may run in this iteration."""
        return frozenset(operator for operator, known in self._known.items() if iteration < known.banned_until)

    def trying(self, iteration: int) -> bool:
        """Whether some operator is on trial: its slowdown may be over soon, when it is banned."""
        return any(iteration < known.trial_until for known in self._known.values())

    def alone(self, operators: Mapping[Operator, float]) -> None:
        """What each operator took in an iteration without a background."""
        for operator, seconds in operators.items():
            known = self._known.setdefault(operator, _History())
            known.alone.append(seconds)
            known.typical, known.noise = median(known.alone), spread(known.alone)

    def collocated(self, iteration: int, operators: Mapping[Operator, float]) -> None:
        """What each took in an iteration with one, banned or not as :meth:`banned` says of it."""
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
        """Bans an operator that suffers."""
        if len(known.alone) < ENOUGH or iteration < known.exempt_until:
            return
        if len(known.collocated_times) == TRIAL:
            known.slowed_time = None
            known.length = max(known.length // 2, FIRST_BAN)
        # Most of the time nothing suffers, and this runs between two iterations.
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
            # Once the ban has ended, a fresh trial.
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
        return seconds > (1 + self._tolerance) * known.typical + FLOOR


def _differ(these: deque[float], those: deque[float]) -> bool:
    """Whether two medians differ by more than noise explains; a median's variance is pi/2 that of a mean."""
    error = math.sqrt(math.pi / 2 * (spread(these) ** 2 / len(these) + spread(those) ** 2 / len(those)))
    return abs(median(these) - median(those)) > CONFIDENCE * error
