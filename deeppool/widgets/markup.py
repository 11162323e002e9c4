"""HTML paragraphs and lists for widgets, at the line height of text instead of ipywidgets' form spacing."""

import html
from collections.abc import Iterable


def paragraph(content: str, name: str = "") -> str:
    """Returns HTML at ordinary line height; ``name`` is a CSS class by which tests find it."""
    return f'<div class="{name}" style="line-height: 1.5">{content}</div>'


def status_text(escaped: str) -> str:
    """Returns HTML of what goes on, which a screen reader announces, with a bar that moves until it is replaced."""
    bar = '<progress style="width: 6em; height: 0.8em; vertical-align: middle"></progress>'
    return f'<span role="status"><em>{escaped}</em> {bar}</span>'


def bullet_list(sentences: Iterable[str]) -> str:
    """Returns an HTML list of escaped sentences; empty for no sentences."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul style="margin: 0; padding-left: 1.5em">{items}</ul>' if items else ""
