"""Records as text for people: a line, then tables that fit the page."""

from typing import TYPE_CHECKING

from deeppool.units import format_tables

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
    spaced = [part for each in tables for part in ("", each)]
    lines = format_tables(line, *spaced, width=WIDTH).strip().splitlines()
    # A table without a title begins with a blank line of its own.
    return "\n".join(text for text, before in zip(lines, ["", *lines], strict=False) if text or before)
