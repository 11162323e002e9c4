"""What commands read: records from files, and on standard error what is uncertain about them."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deeppool.planning.plan import Plan
    from deeppool.profiling.table import Profile


def read_profile(name_or_file: str | Path) -> "Profile":
    """A profile for a command whose result does not carry its caveats."""
    from deeppool.profiling.shipped import find_profile

    found = find_profile(name_or_file)
    warn(found.caveats())
    return found


def read_plan(path: str | Path) -> "Plan":
    """A plan for a command whose result does not carry its caveats."""
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan

    found = serialization.read(path, Plan)
    warn(found.caveats)
    return found


def warn(sentences: Iterable[str]) -> None:
    """Caveats, a line each."""
    for sentence in sentences:
        print("caution:", sentence, file=sys.stderr)
