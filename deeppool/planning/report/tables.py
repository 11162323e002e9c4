"""Text tables of records, of a width that fits a page."""

from typing import TYPE_CHECKING

from deeppool.units import format_tables

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 100
"""Columns of text."""


def table(first: str, *others: str, title: str | None = None) -> "Table":
    """Returns an empty table: a left-aligned column of names, which may wrap, and right-aligned columns of numbers."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column(first, overflow="fold")
    for heading in others:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def render(*parts: "str | Table", width: int = WIDTH) -> str:
    """Returns lines and tables as text, one below the other with a blank line between them."""
    spaced = [part for each in parts for part in ("", each)]
    lines = format_tables(*spaced, width=width).strip().splitlines()
    # A table without a title begins with a blank line of its own.
    return "\n".join(text for text, before in zip(lines, ["", *lines], strict=False) if text or before)
