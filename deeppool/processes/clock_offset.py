"""Offset between another machine's clock and this one's.

As in NTP: a message goes there and back, and the answer is taken to be written halfway between. The error is at most
half of the round trip, so the fastest of the last few counts.
"""

import platform
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

REMEMBERED = 8
"""Round trips that count: uncorrected clocks drift apart by some 20 microseconds a second."""


@dataclass(slots=True)
class ClockOffset:
    """Estimates by how many seconds the other clock is ahead."""

    _round_trips: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def add(self, sent: float, there: float, received: float) -> None:
        """Adds a round trip, sent and received by this clock and answered at ``there`` by the other."""
        self._round_trips.append((received - sent, there - (sent + received) / 2))

    @property
    def seconds(self) -> float:
        """Returns the offset by the fastest round trip; 0 before the first."""
        return min(self._round_trips)[1] if self._round_trips else 0.0


def clock_identity() -> str:
    """Identifies this process's clock: equal for processes that read the same one, as those of one machine do."""
    found = [platform.node()]
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(str(Path("/proc/self/ns/time").readlink()))
    return " ".join(found)
