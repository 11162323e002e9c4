"""Decides inside the background, before each piece, whether it may be launched."""

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import COMPUTING
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.pacing import Pacer, TokenBucket


class Gate:
    """The mechanisms of a :class:`~deeppool.base.sharing.Sharing` that delay launches. The time is an argument."""

    def __init__(self, sharing: Sharing) -> None:
        """Starts without pieces in flight."""
        self._gaps_only = sharing.gaps_only
        self._pacer = Pacer(sharing.pieces, sharing.in_flight)
        self._bucket = TokenBucket()

    @property
    def in_flight(self) -> tuple[float, ...]:
        """Expected seconds of the pieces that were launched and have not finished."""
        return self._pacer.in_flight

    def admits(self, now: float, limits: BackgroundLimits, doing: Operator | None, expected: float) -> bool:
        """Whether a piece may be launched now.

        Args:
            now: seconds, on a clock that never goes back.
            limits: limits of the foreground's present iteration.
            doing: current operator of the foreground; None: it is idle.
            expected: seconds that the piece will hold the device.
        """
        gap = doing is None or doing[0] not in COMPUTING
        # Also while the gate is closed: the share accrues with time, whatever else delays the piece.
        earned = self._bucket.admits(now, limits.share, expected, gap=gap)
        if not (earned and limits.open) or doing in limits.banned or (self._gaps_only and not gap):
            return False
        return self._pacer.admits(expected)

    def launched(self, expected: float) -> None:
        """Records a launch; ``expected`` as in :meth:`admits`."""
        self._pacer.launched(expected)
        self._bucket.spend(expected)

    def finished(self, seconds: float) -> None:
        """Records that the oldest piece in flight has ended after ``seconds`` on the device."""
        self._bucket.spend(seconds - self._pacer.finished())
