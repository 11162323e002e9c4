"""Output of commands: records on standard output, progress on standard error."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deeppool.errors import RunError

if TYPE_CHECKING:
    from deeppool.base.serialization import Record


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
    """Shows a progress bar on standard error if it is a terminal.

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
    task = bar.add_task("", total=1.0)
    with bar:
        try:
            yield lambda what, share: bar.update(task, description=what, completed=share)
        except KeyboardInterrupt:
            raise RunError(interrupted) from None
