"""When a piece of the background may be launched: asked before each piece, inside the background."""

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import COMPUTING
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.pacing import Pacer, TokenBucket


class Gate:
    """The mechanisms of a :class:`~deeppool.base.sharing.Sharing` that hold launches back. The time is an argument."""

    def __init__(self, sharing: Sharing) -> None:
        """Nothing is in flight."""
        self._gaps_only = sharing.gaps_only
        self._pacer = Pacer(sharing.pieces, sharing.in_flight)
        self._bucket = TokenBucket()

    @property
    def in_flight(self) -> int:
        """Pieces that were launched and have not finished."""
        return self._pacer.in_flight

    def admits(self, now: float, limits: BackgroundLimits, doing: Operator | None, expected: float) -> bool:
        """Whether a piece may be launched now.

        Args:
            now: seconds, on a clock that never goes back.
            limits: the foreground's, for its present iteration.
            doing: what the foreground does now; None: nothing.
            expected: seconds that the piece will hold the device.
        """
        gap = doing is None or doing[0] not in COMPUTING
        # Asked even of a closed gate: the share is earned with time, whatever else holds the piece back.
        earned = self._bucket.admits(now, limits.share, expected, gap=gap)
        if not (earned and limits.open) or doing in limits.banned or (self._gaps_only and not gap):
            return False
        return self._pacer.admits(expected)

    def launched(self, now: float, expected: float) -> None:
        """A piece was launched; ``expected`` as it was admitted."""
        self._pacer.launched(expected)
        self._bucket.spend(expected)

    def finished(self, now: float, seconds: float) -> None:
        """The oldest piece in flight has ended; it held the device for so many seconds."""
        self._bucket.spend(seconds - self._pacer.finished())
