"""Reports of a rank's iterations to the launcher, each with the outcome of its update, once this is known.

An iteration may end before its update: by a plan of transfers and in waves the next iteration completes it. A GPU that
trains in fp16 may decide by itself whether one is made (see ``training.update``), and the host knows in the next
iteration. If it asked at once, it would wait for the device, which would then have nothing to do until the host has
launched more. Of eager-SGD a late rank may have made the update before it comes to the iteration.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from deeppool.training.update import Update, UpdateOutcome

Report = dict[str, Any]


class UpdateReports:
    """Sends the reports of some iterations in a row, of which each has one update."""

    def __init__(self, update: Update, send: Callable[[Report, UpdateOutcome], None]) -> None:
        """Starts with the next update.

        Args:
            update: makes the updates; the last one is decided.
            send: sends a report.
        """
        self._update, self._send = update, send
        self._reports, self._outcomes = deque[Report](), deque[UpdateOutcome]()
        update.on_end = self._outcomes.append

    def add(self, report: Report) -> None:
        """Adds the report of the last iteration, and sends those whose updates have ended."""
        self._reports.append(report)
        while self._reports and self._outcomes:
            self._send(self._reports.popleft(), self._outcomes.popleft())

    def close(self) -> None:
        """Sends what is held back, once all updates are complete; waits for the last one."""
        self._update.decide()
        while self._reports:
            self._send(self._reports.popleft(), self._outcomes.popleft())
