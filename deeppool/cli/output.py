"""Output of commands: records on standard output, progress on standard error."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deeppool.base.serialization import Record


def show(record: "Record", as_json: bool, text: Callable[[], str] | None = None) -> None:
    """Prints a record as JSON or as text."""
    from deeppool.base.serialization import to_json

    print(json.dumps(to_json(record)) if as_json else text() if text else str(record))


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Shows a progress bar on standard error if it is a terminal."""
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
        yield lambda what, share: bar.update(task, description=what, completed=share)
