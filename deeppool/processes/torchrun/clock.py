"""How far another machine's clock is from this one's.

As NTP does it: a message there and back; the answer was written somewhere between, and half of the way is taken.
The fastest of the last few round trips has the smallest error, at most half of it.
"""

from collections import deque
from dataclasses import dataclass, field

REMEMBERED = 8
"""Round trips: clocks drift apart, by some 20 microseconds a second if nobody corrects them."""


@dataclass(slots=True)
class ClockOffset:
    """Seconds that the other clock is ahead."""

    _found: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def add(self, sent: float, there: float, received: float) -> None:
        """A round trip: sent and received by this clock, answered at ``there`` by the other."""
        self._found.append((received - sent, there - (sent + received) / 2))

    @property
    def seconds(self) -> float:
        """By the fastest round trip; 0 before the first one."""
        return min(self._found)[1] if self._found else 0.0

    @property
    def error(self) -> float:
        """It is at most so wrong."""
        return min(self._found)[0] / 2 if self._found else 0.0
