"""Launch pacing: how much of the background may be in flight, and how much of the time it may hold the device.

A device finishes what was launched, so the foreground waits for what is in flight: DeepPool keeps that little
(section 5). The share of the time is what a controller turns.
"""

from collections import deque

BURST = 0.01
"""Seconds of unused share that are kept for later."""


class Pacer:
    """Counts the pieces in flight, in the order of their launches."""

    def __init__(self, pieces: int | None, seconds: float | None) -> None:
        """Takes the limits; None: there is none."""
        self._pieces = pieces
        self._seconds = seconds
        self._flying: deque[float] = deque()

    @property
    def in_flight(self) -> int:
        """Pieces."""
        return len(self._flying)

    def admits(self, expected: float) -> bool:
        """Whether one more piece of so many seconds keeps the limits; a lone one may be longer."""
        if not self._flying:
            # Or a long piece would never run.
            return True
        if self._pieces is not None and len(self._flying) >= self._pieces:
            return False
        return self._seconds is None or sum(self._flying) + expected <= self._seconds

    def launched(self, expected: float) -> None:
        """One more is in flight."""
        self._flying.append(expected)

    def finished(self) -> float:
        """The oldest has ended; returns the seconds that were expected of it."""
        return self._flying.popleft()


class Duty:
    """A token bucket: seconds of the device that the background has earned and not used.

    In any stretch of time it launches at most ``share x stretch + BURST`` seconds, or one piece more than
    ``share x stretch`` where a piece is longer than the burst.
    """

    def __init__(self) -> None:
        """Starts with a full bucket."""
        self._earned = BURST
        self._now: float | None = None

    def admits(self, now: float, share: float, expected: float) -> bool:
        """Whether a piece is earned; one longer than the burst waits for a full bucket, and leaves a debt."""
        if self._now is not None:
            self._earned = min(BURST, self._earned + share * max(0.0, now - self._now))
        self._now = now
        return share >= 1 or self._earned >= min(expected, BURST)

    def spend(self, seconds: float) -> None:
        """A piece was launched, or, if negative, was shorter than expected."""
        self._earned = min(BURST, self._earned - seconds)
