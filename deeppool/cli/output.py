"""Output of commands: records on standard output, progress on standard error."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deeppool.errors import RunError

if TYPE_CHECKING:
    from deeppool.base.serialization import Record

LINE_SECONDS = 30.0
"""Least seconds from one line of progress to the next where standard error is no terminal."""


def show(record: "Record", as_json: bool, text: Callable[[], str] | None = None, *, output: Path | None = None) -> None:
    """Prints a record as JSON or as text, then saves it if there is an output file: a full disk loses no result."""
    from deeppool.base import serialization

    try:
        print(json.dumps(serialization.to_json(record)) if as_json else text() if text else str(record), flush=True)
    finally:
        # Nor does a closed pipe.
        if output is not None:
            serialization.write(record, output)


@contextmanager
def progress(interrupted: str = "interrupted") -> Iterator[Callable[[str, float], None]]:
    """Shows a progress bar on standard error; a line of text now and then if it is no terminal, as in a log.

    Args:
        interrupted: message of the RunError that an interrupt becomes.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )
    task, printed = bar.add_task("", total=1.0), time.monotonic()

    def report(what: str, share: float) -> None:
        nonlocal printed
        bar.update(task, description=what, completed=share)
        if not console.is_terminal and time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            print(f"{share:.0%} {what}", file=sys.stderr, flush=True)

    with bar:
        try:
            yield report
        except KeyboardInterrupt:
            raise RunError(interrupted) from None
