"""A notebook to run: which, with what, where to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One notebook to run."""

    name: str
    path: Path
    folder: Path
    """Gets the executed notebook, its report and what it writes; made where it is missing."""
    arguments: dict[str, Any]
    """Parameters; ``output`` is the folder."""
    measures: bool
    """Nothing may run beside it."""
    script: str = ""
    """Address of plotly's script, from the report; empty: the report has it in itself."""
