"""Fenced blocks of a page, and the text without them."""

import re

_BLOCK = re.compile(r"^```([\w-]*)[^`\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
"""A whole block: the fence that ends one is not taken for one that begins the next."""


def blocks(text: str, language: str = "") -> list[str]:
    """What stands in the blocks of a language; by default in those that name none."""
    return [inside for named, inside in _BLOCK.findall(text) if named == language]


def prose(text: str) -> str:
    """The text outside of blocks."""
    return _BLOCK.sub("", text)
