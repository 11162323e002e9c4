"""Checks of numbers that a user gives, and their values as Python's: records and messages hold no other numbers.

Numbers of NumPy and torch are numbers. ``True`` and ``False``, which Python counts as 1 and 0, are not: who gives one
has mistaken the argument for a switch.
"""

import math
import operator
import reprlib
from typing import Any

from deeppool.errors import InvalidValueError

LARGEST = 2**63 - 1
"""Largest whole number: NumPy's, and so that of a file."""


def whole_number(name: str, value: Any, least: int | None = 1, most: int | None = None, note: str = "") -> int:
    """Returns a whole number that a user gives, as Python's.

    Args:
        name: of the argument, for the message.
        value: what was given.
        least: lower bound; None: none.
        most: upper bound; None: ``LARGEST``.
        note: what else the message says, in brackets: the next step.

    Raises:
        InvalidValueError: it is no whole number, or out of its bounds.
    """
    found = as_whole(value)
    if found is None:
        wanted = "a whole number"
    elif least is not None and found < least:
        wanted = f"at least {least}"
    elif found > (most := LARGEST if most is None else most):
        wanted = f"at most {most}"
    else:
        return found
    given = shown(value if found is None else found)
    raise InvalidValueError(f"{name} must be {wanted}, got {given}{note and f' ({note})'}")


def seed_number(value: Any) -> int:
    """Returns a seed that torch takes, as Python's number.

    Raises:
        InvalidValueError: it is no whole number, or of more than 64 bits.
    """
    return whole_number("seed", value, -(2**63), 2**64 - 1)


def real_number(name: str, value: Any) -> float:
    """Returns a number that a user gives, as Python's; infinities and NaN are numbers.

    Raises:
        InvalidValueError: it is no number.
    """
    found = as_real(value)
    if found is None:
        raise InvalidValueError(f"{name} must be a number, got {shown(value)}")
    return found


def positive_number(name: str, value: Any, note: str = "") -> float:
    """Returns a positive and finite number that a user gives, as Python's.

    Args:
        name: of the argument, for the message.
        value: what was given.
        note: what else the message says, in brackets: the next step.

    Raises:
        InvalidValueError: it is none.
    """
    found = real_number(name, value)
    if not 0 < found < math.inf:
        raise InvalidValueError(f"{name} must be positive and finite, got {found:g}{note and f' ({note})'}")
    return found


def as_whole(value: Any) -> int | None:
    """Returns a whole number as Python's; None: it is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def as_real(value: Any) -> float | None:
    """Returns a number as Python's; None: it is none."""
    try:
        # Text that reads like a number is none.
        return None if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one by a tensor of several
        return None


def shown(value: Any) -> str:
    """Returns a value for a message, in a line of at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python writes none of thousands of digits
        return f"one of {value.bit_length()} bits"
    # repr() of a whole document would take seconds.
    text = " ".join((reprlib.repr if isinstance(value, dict | list) else repr)(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
