"""``deeppool explain``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson
from deeppool.cli.output import show


def explain(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Made by: deeppool plan -o FILE.")],
    layer: Annotated[
        str | None, typer.Argument(metavar="[LAYER]", help="One layer, for the price of every GPU count it could have.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say why each layer of PLAN got its GPUs: what the neighbouring counts would cost.

    With a LAYER: what every count would cost, to the layer and to the whole iteration, all other layers left as they
    are. With --json: every count of that layer, or of all layers.

    Example: deeppool explain plan.json classifier.0
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.report.alternatives import price_list

    plan = serialization.read(plan_file, Plan)
    if layer is None and not as_json:
        print(plan.explain())
    else:
        prices = price_list(plan, layer)
        show(prices, as_json, prices.explain)
