"""Waiting for what a panel's run does in its own thread."""

from deeppool.widgets.run_row import RunRow
from tests.waiting import wait_until


def ended(row: RunRow) -> str:
    """Waits until a row's run has ended and its result is shown; how it ended."""
    wait_until(lambda: row.run is not None and row.run.state != "running" and not row.start.disabled)
    return row.run.state
