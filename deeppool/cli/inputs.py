"""Input files of commands; their caveats are printed to standard error."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deeppool.planning.plan import Plan
    from deeppool.profiling.table import Profile


def read_profile(name_or_file: str | Path) -> "Profile":
    """Reads a profile and prints its caveats, for commands whose result does not include them."""
    from deeppool.profiling.shipped import find_profile

    found = find_profile(name_or_file)
    warn(found.caveats())
    return found


def read_plan(path: str | Path) -> "Plan":
    """Reads a plan and prints its caveats, for commands whose result does not include them."""
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan

    found = serialization.read(path, Plan)
    warn(found.caveats)
    return found


def warn(sentences: Iterable[str]) -> None:
    """Prints caveats to standard error, one per line."""
    for sentence in sentences:
        print("caution:", sentence, file=sys.stderr)
