"""The ``deeppool explain`` command."""

import sys
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
    model_explorer: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the graph, to open in Google's Model Explorer; node data beside."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the GPU count of each layer of PLAN by the cost of the next smaller and next larger count.

    With a LAYER, lists the cost of every count for the layer and the whole iteration, with all other layers unchanged.
    With --json, lists every count of that layer, or of all layers. With --model-explorer graph.json, writes the graph,
    and graph.gpus.json, graph.amplification.json and graph.time.json, which colour it (pip install
    ai-edge-model-explorer; model-explorer graph.json --node_data_paths=graph.gpus.json).

    Example: `deeppool explain plan.json classifier.0`
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.report.alternatives import alternatives_of

    plan = serialization.read(plan_file, Plan)
    if model_explorer is not None:
        from deeppool.figures.model_explorer import write_model_explorer

        print(f"wrote {', '.join(map(str, write_model_explorer(model_explorer, plan)))}", file=sys.stderr)
    if layer is None and not as_json:
        print(plan.explain())
    else:
        found = alternatives_of(plan, layer)
        show(found, as_json, found.explain)
