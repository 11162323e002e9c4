"""The ``deeppool explain`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson
from deeppool.cli.output import show


def explain(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="File written by `deeppool plan -o FILE`.")],
    layer: Annotated[
        str | None, typer.Argument(metavar="[LAYER]", help="A layer, to show the cost of every GPU count for it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the GPU count of each layer of PLAN by the cost of the next smaller and next larger count.

    With a LAYER, lists the cost of every count for the layer and the whole iteration, with all other layers unchanged.
    With --json, lists every count of that layer, or of all layers.

    Example: `deeppool explain plan.json classifier.0`
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.report.alternatives import alternatives_of

    plan = serialization.read(plan_file, Plan)
    if layer is None and not as_json:
        print(plan.explain())
    else:
        found = alternatives_of(plan, layer)
        show(found, as_json, found.explain)
