"""Formats seconds, bytes and tables as text, and parses sizes and durations that users write."""

import io
import math
import re
from decimal import Decimal
from typing import Any

from deeppool.errors import InvalidValueError

_SPANS = {"h": 3600, "m": 60, "s": 1}
_SIZES = {"b": 1, "mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30}


def format_seconds(seconds: float) -> str:
    """Formats seconds: ``0.00132`` becomes ``1.32 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        # What rounds to 1,000 of a unit is one of the next.
        if abs(seconds) >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}" if abs(seconds) < 999.5 else f"{seconds:.0f} s"
    return f"{format_rate(seconds / 1e-9)} ns" if seconds else "0 s"


def format_bytes(count: float) -> str:
    """Formats bytes: ``15728640`` becomes ``15.0 MiB``."""
    for scale, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        # What rounds to 1,024 of a unit is one of the next.
        if abs(count) >= (1 - 0.05 / 1024) * scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def parse_bytes(text: str) -> float:
    """Parses a size, ``40GB`` (decimal, as on data sheets) or ``37.5GiB`` (binary, as in drivers), as bytes."""
    found = re.fullmatch(r"(\d+\.?\d*)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _SIZES:
        raise InvalidValueError(f"a size of memory is, for example, 40GB or 37.5GiB, got '{text}'")
    return float(found[1]) * _SIZES[found[2]]


def parse_seconds(text: str) -> float:
    """Parses a duration, ``3h``, ``90m``, ``1h30m`` or ``45s``, as seconds."""
    parts = re.findall(r"(\d+\.?\d*)([hms])", text.strip().lower())
    if not parts or "".join(map("".join, parts)) != text.strip().lower() or not any(float(count) for count, _ in parts):
        raise InvalidValueError(f"a span of time is, for example, 3h, 90m or 1h30m, got '{text}'")
    return sum(float(count) * _SPANS[unit] for count, unit in parts)


def format_bit_rate(bytes_per_second: float) -> str:
    """Formats a bit rate: ``1.25e9`` bytes per second becomes ``10 Gbit/s``."""
    bits = 8 * bytes_per_second
    for scale, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= scale:
            return f"{bits / scale:.4g} {unit}"
    return f"{bits / 1e3:.4g} kbit/s"


def format_rate(per_second: float, digits: int = 3) -> str:
    """Formats a number per second with so many significant digits, and no exponent: ``47.1``, ``1,060``."""
    text = f"{per_second:.{digits}g}"
    return f"{Decimal(text):,f}" if math.isfinite(per_second) else text


def format_count(number: int, noun: str) -> str:
    """Formats a number of things: ``1 notebook``, ``2 notebooks``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def format_percent(fraction: float) -> str:
    """Formats a fraction as percent: ``0.0312`` becomes ``+3.1 %``."""
    return f"{100 * fraction:+.1f} %"


def format_growth(fraction: float) -> str:
    """Formats a change as percent, or as a factor where that is hard to read: ``2054`` becomes ``2,055 times``."""
    hard = fraction > 1 or -1 < fraction < -0.99
    return f"{format_rate(1 + fraction, 4)} times" if hard else format_percent(fraction)


def format_tables(*parts: Any, width: int) -> str:
    """Formats lines and rich's tables as plain text, the same in a terminal, a file and a notebook.

    Args:
        parts: objects accepted by ``rich.print``.
        width: columns of text.
    """
    from rich.console import Console

    stream = io.StringIO()
    # In a notebook rich would show what it prints, and colour it as the kernel asks: the stream would get nothing, or
    # escape sequences.
    console = Console(
        file=stream,
        width=width,
        no_color=True,
        markup=False,
        highlight=False,
        emoji=False,
        force_jupyter=False,
        force_terminal=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in stream.getvalue().strip("\n").splitlines())
