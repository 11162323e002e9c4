"""The ``deeppool diff`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson
from deeppool.cli.output import show


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Plan file written by `deeppool plan -o FILE`.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another plan for the same model and input shape.")],
    as_json: AsJson = False,
) -> None:
    """Compare two plans: parameters, totals, and each layer whose GPUs changed.

    A layer's change in time is the sum of three parts: compute, transfer of its inputs, and gradient synchronisation.

    Example: `deeppool diff limit2.json limit4.json`
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.report.diff import diff as compare

    changes = compare(serialization.read(before, Plan), serialization.read(after, Plan))
    show(changes, as_json, changes.explain)
