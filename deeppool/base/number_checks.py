"""Checks of numbers that a user gives, and their values as Python's: records and messages hold no other numbers.

Numbers of NumPy and torch are numbers. ``True`` and ``False``, which Python counts as 1 and 0, are not: who gives one
has mistaken the argument for a switch.
"""

import math
import operator
from typing import Any

from deeppool.errors import InvalidValueError


def whole_number(name: str, value: Any, least: int | None = 1, most: int | None = None, note: str = "") -> int:
    """Returns a whole number that a user gives, as Python's.

    Args:
        name: of the argument, for the message.
        value: what was given.
        least: lower bound; None: none.
        most: upper bound; None: none.
        note: what else the message says, in brackets: the next step.

    Raises:
        InvalidValueError: it is no whole number, or out of its bounds.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        wanted, given = "a whole number", repr(value)
    elif least is not None and found < least:
        wanted, given = f"at least {least}", str(found)
    elif most is not None and found > most:
        wanted, given = f"at most {most}", str(found)
    else:
        return found
    raise InvalidValueError(f"{name} must be {wanted}, got {given}{note and f' ({note})'}")


def real_number(name: str, value: Any) -> float:
    """Returns a number that a user gives, as Python's; infinities and NaN are numbers.

    Raises:
        InvalidValueError: it is no number.
    """
    try:
        # Text that reads like a number is none.
        found = None if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one by a tensor of several
        found = None
    if found is None:
        raise InvalidValueError(f"{name} must be a number, got {value!r}")
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
