"""``deeppool diff``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson
from deeppool.cli.output import show


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A plan, made by: deeppool plan -o FILE.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another plan of the same model and input shape.")],
    as_json: AsJson = False,
) -> None:
    """Say what changes from one plan to another: what was asked, the totals, and each layer that moved.

    A layer's change in time is the sum of three: computing another shard of the batch, bringing its inputs from
    where they are, and summing its gradients.

    Example: deeppool diff limit2.json limit4.json
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.report.diff import diff as compare

    changes = compare(serialization.read(before, Plan), serialization.read(after, Plan))
    show(changes, as_json, changes.explain)
