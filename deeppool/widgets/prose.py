"""Sentences in a widget: ipywidgets sets a paragraph as far apart as the controls of a form."""

import html
from collections.abc import Iterable


def prose(content: str, name: str = "") -> str:
    """HTML as text of ordinary line height; ``name`` is a class by which tests find it."""
    return f'<div class="{name}" style="line-height: 1.5">{content}</div>'


def bullets(sentences: Iterable[str]) -> str:
    """A list of sentences, which are escaped; nothing where there is none."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul style="margin: 0; padding-left: 1.5em">{items}</ul>' if items else ""
