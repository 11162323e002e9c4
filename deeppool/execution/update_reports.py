"""Reports of a rank's updates to the launcher, each once the update is complete: made, or known to be skipped.

By a plan of transfers the next iteration completes an update. A GPU that trains in fp16 may decide by itself whether
one is made (see ``training.update``), and the host knows in the next iteration. If it asked at once, it would wait for
the device, which would then have nothing to do until the host has launched more.
"""

from collections.abc import Callable
from typing import Any

from deeppool.training.update import Update

Report = dict[str, Any]


class UpdateReports:
    """Sends the reports of some updates in a row."""

    def __init__(self, update: Update, send: Callable[[Report, bool, float | None], None]) -> None:
        """Starts with the next update.

        Args:
            update: makes the updates; the last one is decided.
            send: sends a report, whether the update was skipped because of an overflow, and the learning rate after it.
        """
        self._update, self._send = update, send
        self._skips = update.skips
        self._held: Report | None = None
        """That of an update which is not complete or not decided."""

    def add(self, report: Report, *, complete: bool = True) -> None:
        """Sends the report of the update before, if it was held back, and of this one, if it is decided.

        Args:
            report: that of the last iteration.
            complete: whether its update is, apart from an outcome that the device knows; else the next iteration, or
                what is called before :meth:`close`, completes it.
        """
        ended = complete and self._update.decided
        # The schedule may have stepped for this update, too, since the one before was complete.
        self._send_held(self._update.learning_rate_before if ended else self._update.learning_rate)
        self._held = report
        if ended:
            self._send_held(self._update.learning_rate)

    def close(self) -> None:
        """Sends what is held back; waits for the last update."""
        self._update.decide()
        self._send_held(self._update.learning_rate)

    def _send_held(self, learning_rate: float | None) -> None:
        if self._held is not None:
            report, self._held = self._held, None
            before, self._skips = self._skips, self._update.skips
            self._send(report, self._skips > before, learning_rate)
