"""Launch pacing: how much of the background may be in flight, and how much of the time it may hold the device.

A device finishes what was launched, so the foreground waits for what is in flight: DeepPool keeps that little
(section 5). The share of the time is what a controller turns.
"""

from collections import deque

WINDOW = 0.1
"""Seconds whose unused share is kept for later."""


class Pacer:
    """Counts the pieces in flight, in the order of their launches."""

    def __init__(self, pieces: int | None, seconds: float | None) -> None:
        """Takes the limits; None: there is none."""
        self._pieces = pieces
        self._seconds = seconds
        self._in_flight: deque[float] = deque()

    @property
    def in_flight(self) -> int:
        """Pieces."""
        return len(self._in_flight)

    def admits(self, expected: float) -> bool:
        """Whether one more piece of so many seconds keeps the limits; a lone one may be longer."""
        if not self._in_flight:
            # Or a long piece would never run.
            return True
        if self._pieces is not None and len(self._in_flight) >= self._pieces:
            return False
        return self._seconds is None or sum(self._in_flight) + expected <= self._seconds

    def launched(self, expected: float) -> None:
        """One more is in flight."""
        self._in_flight.append(expected)

    def finished(self) -> float:
        """The oldest has ended; returns the seconds that were expected of it."""
        return self._in_flight.popleft()


class TokenBucket:
    """A token bucket: seconds of the device that the background has earned and not used.

    It is spent in the gaps of the foreground first: beside the foreground's computing goes only what the bucket
    cannot keep for the next gap. The background launches at most ``share x WINDOW`` seconds and two pieces more than
    ``share`` of any stretch of time with one share.
    """

    def __init__(self) -> None:
        """Starts with nothing earned."""
        self._earned = 0.0
        self._share = 1.0
        self._now: float | None = None

    def admits(self, now: float, share: float, expected: float, *, gap: bool) -> bool:
        """Whether a piece may start; it leaves a debt where it is longer than what was earned."""
        if self._now is not None:
            self._earned += share * max(0.0, now - self._now)
        if share != self._share:
            # What another share had earned would hide for a while what this one costs.
            self._earned = min(self._earned, 0.0)
        self._now, self._share = now, share
        kept = share * WINDOW
        # A piece above what is kept, or whoever asks now and then would lose what overflows between.
        self._earned = min(self._earned, kept + expected)
        return share >= 1 or (self._earned > 0 if gap else self._earned >= kept)

    def spend(self, seconds: float) -> None:
        """A piece was launched, or, if negative, was shorter than expected."""
        self._earned -= seconds
