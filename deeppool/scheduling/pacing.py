"""Launch pacing: limits the background's pieces in flight and its share of the time.

A device finishes what was launched, so the foreground waits for pieces in flight: DeepPool keeps them few
(section 5). The controller sets the share of the time.
"""

from collections import deque

WINDOW = 0.1
"""Seconds for which unused share is kept."""


class Pacer:
    """Counts the pieces in flight, in the order of their launches."""

    def __init__(self, pieces: int | None, seconds: float | None) -> None:
        """Takes the limits; None: no limit."""
        self._pieces = pieces
        self._seconds = seconds
        self._in_flight: deque[float] = deque()

    @property
    def in_flight(self) -> tuple[float, ...]:
        """Expected seconds of the pieces in flight."""
        return tuple(self._in_flight)

    def admits(self, expected: float) -> bool:
        """Whether one more piece of ``expected`` seconds keeps the limits; a single piece may be longer."""
        if not self._in_flight:
            # Otherwise a long piece would never run.
            return True
        if self._pieces is not None and len(self._in_flight) >= self._pieces:
            return False
        return self._seconds is None or sum(self._in_flight) + expected <= self._seconds

    def launched(self, expected: float) -> None:
        """Records a launch."""
        self._in_flight.append(expected)

    def finished(self) -> float:
        """Records the end of the oldest piece; returns its expected seconds."""
        return self._in_flight.popleft()


class TokenBucket:
    """Token bucket of device seconds that the background has earned and not used.

    They are spent in the gaps of the foreground first: while the foreground computes, only what the bucket cannot
    keep for the next gap is spent. The background launches at most ``share x WINDOW`` seconds and two pieces more than
    ``share`` of any stretch of time with one share.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._earned = 0.0
        self._share = 1.0
        self._now: float | None = None

    def admits(self, now: float, share: float, expected: float, *, gap: bool) -> bool:
        """Whether a piece may start; one longer than the tokens leaves a debt."""
        if self._now is not None:
            self._earned += share * max(0.0, now - self._now)
        if share != self._share:
            # Tokens earned at another share would hide the cost of this one for a while.
            self._earned = min(self._earned, 0.0)
        self._now, self._share = now, share
        kept = share * WINDOW
        # One piece above the limit, so that infrequent calls lose no tokens to overflow.
        self._earned = min(self._earned, kept + expected)
        return share >= 1 or (self._earned > 0 if gap else self._earned >= kept)

    def spend(self, seconds: float) -> None:
        """Records the seconds of a launch, or, if negative, how much shorter than expected it was."""
        self._earned -= seconds
