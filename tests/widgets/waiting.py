"""Waiting for what a panel's run does in its own thread."""

import time
from collections.abc import Callable

from deeppool.widgets.run_row import RunRow

TIMEOUT = 300
"""Seconds for what takes a moment on an idle machine."""


def ended(row: RunRow) -> str:
    """Waits until a row's run has ended and its result is shown; how it ended."""
    until(lambda: row.run is not None and row.run.state != "running" and not row.start.disabled)
    return row.run.state


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT} s"
        time.sleep(0.02)
