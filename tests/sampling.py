"""What a run of the tests samples, and what `make stress` runs in full."""

import datetime
import os
import zlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

STRESS = "DEEPPOOL_STRESS" in os.environ
"""Set by `make stress`."""
SAMPLED = 8
"""Of how many drawn examples one is tried without it."""
NIGHTS = 7
"""`make full` runs another one of so many parts of the stress tests every day."""


def examples(count: int) -> settings:
    """A hypothesis test of ``count`` examples in `make stress`, of an eighth of them otherwise."""
    return settings(deadline=None, max_examples=count if STRESS else max(10, count // SAMPLED))


def sampled(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which only those kept run without `-m stress`; a tuple is known by its first value."""
    found = []
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        marks = () if parts[0] in kept else (pytest.mark.stress,)
        found.append(pytest.param(*parts, marks=marks))
    return found


def tonight(test: str, day: datetime.date) -> bool:
    """Whether it is the turn of a stress test, by its name."""
    return zlib.crc32(test.encode()) % NIGHTS == day.toordinal() % NIGHTS
