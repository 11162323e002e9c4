"""Records as text for people: a line, then tables that fit the page."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 100
"""Columns of text."""


def table(first: str, *others: str, title: str | None = None) -> "Table":
    """An empty table: names on the left, which may be folded, and numbers on the right, which are not."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column(first, overflow="fold")
    for heading in others:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def render(line: str, *tables: "Table") -> str:
    """The line and the tables, one below the other."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, color_system=None, force_jupyter=False, markup=False, highlight=False)
    console.print(line)
    for each in tables:
        console.print()
        console.print(each)
    lines = [text.rstrip() for text in stream.getvalue().strip().splitlines()]
    # A table without a title begins with a blank line of its own.
    return "\n".join(text for text, before in zip(lines, ["", *lines], strict=False) if text or before)
