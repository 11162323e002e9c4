"""A plan for Google's Model Explorer: the graph of its layers, and node data that colour it.

The formats are those of github.com/google-ai-edge/model-explorer: a graph collection (graph_builder.py) whose nodes
have a namespace for each module, and node data (node_data_builder.py), a file for each quantity:
``{graph: {"results": {node: {"value": …}}}}``. Both open with

    model-explorer plan.json --node_data_paths=plan.gpus.json,plan.amplification.json,plan.time.json
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import gpu_ranges
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.planning.report.explain import is_explained, reason
from deeppool.units import format_count, format_seconds

QUANTITIES: dict[str, tuple[str, Callable[[LayerAssignment], float]]] = {
    "gpus": ("GPUs", lambda layer: layer.gpu_count),
    "amplification": ("amplification (x)", lambda layer: round(layer.amplification, 4)),
    "time": ("predicted time (ms)", lambda layer: round(1e3 * layer.time, 6)),
}
"""Part of the file's name → title and value of a layer."""
_TIMES = ("forward", "backward", "reshard", "sync")


@typed
def write_model_explorer(path: str | os.PathLike[str], plan: Plan) -> tuple[Path, ...]:
    """Writes the graph of a plan to ``path``, and node data beside it: ``plan.gpus.json`` for ``plan.json``.

    Raises:
        InvalidValueError: not a plan.
        DocumentError: a path cannot be written.
    """
    contents = [graph_collection(plan), *(node_data(plan, quantity) for quantity in QUANTITIES)]
    documents = dict(zip(files_at(path), contents, strict=True))
    for target in documents:
        serialization.check_writable(target)
    return tuple(
        serialization.write_text(json.dumps(document) + "\n", target) for target, document in documents.items()
    )


def files_at(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Returns the files that :func:`write_model_explorer` writes: the graph, then one for each of QUANTITIES.

    Raises:
        DocumentError: the path is a folder, or cannot be written.
    """
    serialization.check_writable(path)
    return Path(path), *(Path(path).with_suffix(f".{quantity}.json") for quantity in QUANTITIES)


@typed
def graph_collection(plan: Plan) -> dict[str, Any]:
    """Returns the layers of a plan as a graph collection; modules are namespaces."""
    nodes = [
        {
            "id": str(index),
            "label": layer.name.rpartition(".")[2],
            "namespace": "/".join(layer.name.split(".")[:-1]),
            "attrs": [{"key": key, "value": value} for key, value in _attributes(plan, layer).items()],
            "incomingEdges": [
                {"sourceNodeId": str(source), "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
                for place, source in enumerate(layer.predecessors)
            ],
        }
        for index, layer in enumerate(plan.layers)
    ]
    return {
        "label": f"{plan.model} on {format_count(plan.gpus, 'GPU')}",
        "graphs": [{"id": plan.model, "nodes": nodes}],
    }


def node_data(plan: Plan, quantity: str) -> dict[str, Any]:
    """Returns the values of one of :data:`QUANTITIES` by graph and node."""
    title, value_of = QUANTITIES[quantity]
    colours = theme.ramp(dark=False)
    return {
        plan.model: {
            "name": title,
            "results": {str(index): {"value": value_of(layer)} for index, layer in enumerate(plan.layers)},
            # Sums and means over layers say nothing of GPUs or amplification.
            "hideAggregatedStats": [] if quantity == "time" else ["sum", "avg"],
            "gradient": [
                {"stop": 0, "bgColor": colours[0], "textColor": "black"},
                {"stop": 1, "bgColor": colours[-1], "textColor": "white"},
            ],
        }
    }


def _attributes(plan: Plan, layer: LayerAssignment) -> dict[str, str]:
    limit = "no limit" if plan.amplification_limit is None else f"limit {plan.amplification_limit:g}"
    attributes = {
        "layer": layer.name,
        "GPUs": f"{layer.gpu_count} of {plan.gpus} ({gpu_ranges(layer.gpus)})",
        "predicted time": format_seconds(layer.time),
        **{part: format_seconds(getattr(layer, part)) for part in _TIMES if getattr(layer, part)},
        "amplification": f"{layer.amplification:.2f} ({limit})",
    }
    if is_explained(plan.layers) and (why := reason(layer, plan.gpu_counts, plan.why_not_faster)):
        attributes["other GPU counts"] = why
    return attributes
