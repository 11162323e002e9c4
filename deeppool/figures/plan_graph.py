"""A plan on the graph of its model: GPUs, time and amplification of every layer, or of every module of a deep model."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape, gpu_ranges, plan_provenance
from deeppool.figures.graph_canvas import (
    MARGINS,
    ROW,
    GraphCanvas,
    canvas_layout,
    colour_axis,
    edge_lines,
    fit_label,
    page_of,
)
from deeppool.figures.module_groups import ModuleGroup, module_groups, part_of_module
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.units import format_count, format_seconds

PlanQuantity = Literal["gpus", "amplification"]
"""Quantity that colours a node: GPUs, over the layers of a module weighted by their time; or the amplification."""

MOST_NODES = 150
"""Nodes that are readable on a page; the layers of a deeper model are grouped by module."""
SMALLEST, LARGEST = 7.0, 18.0
"""Diameter in pixels of a node that takes no time, and of the one that takes most."""
_PARTS = ("reshard", "forward", "backward", "sync")


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One layer, or the layers of one module, as a plan runs them."""

    group: ModuleGroup
    layers: tuple[LayerAssignment, ...]

    @property
    def time(self) -> float:
        """Seconds of all its layers."""
        return sum(layer.time for layer in self.layers)

    @property
    def gpus(self) -> float:
        """GPUs that it holds, on average over its time."""
        held = sum(layer.time * layer.gpu_count for layer in self.layers)
        return held / self.time if self.time else float(max(layer.gpu_count for layer in self.layers))

    @property
    def amplification(self) -> float:
        """GPU-seconds over the time on one GPU."""
        held = sum(layer.time * layer.gpu_count for layer in self.layers)
        alone = sum(layer.single_gpu_time for layer in self.layers)
        return held / alone if alone else 1.0

    @property
    def counts(self) -> str:
        """GPU counts: ``8``, or the least and the most, ``1–8``."""
        counts = [layer.gpu_count for layer in self.layers]
        return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"


@typed
def plan_graph(
    plan: Plan,
    part: str | range | None = None,
    *,
    colour_by: PlanQuantity = "gpus",
    selected: str | None = None,
    width: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Draws a plan on the graph of its model: colour is GPUs or amplification, the area of a node its time.

    Args:
        plan: plan to draw; the layers of a deep model are grouped by module.
        part: a module, or consecutive indices of layers, to draw only these; None: all.
        colour_by: quantity of the colours.
        selected: name of a layer to mark, with its module where layers are grouped.
        width: pixels of the page, to which columns and labels are fitted; None: that of a notebook on a laptop.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a plan, a part without layers, or an unknown quantity.
    """
    shown = _part(plan, part)
    nodes = plan_nodes(plan, shown)
    page = _canvas(
        tuple(layer.predecessors for layer in plan.layers), tuple(node.group for node in nodes), page_of(width)
    )
    marked = [i for i, node in enumerate(nodes) if any(layer.name == selected for layer in node.layers)]
    layout = theme.theme_layout(
        title=f"{escape(plan.model)}, batch {plan.global_batch}: {_TITLES[colour_by]} of {_what(plan, shown, nodes)}",
        subtitle=f"<b>predicted</b> {plan_provenance(plan)}",
        plot_height=max(200, page.height * ROW),
        dark=dark,
    )
    # Built as one dictionary, which plotly validates once: this figure is redrawn while a slider moves.
    return go.Figure(
        {
            "data": [edge_lines(page, dark=dark), _points(plan, nodes, page, marked, dark, colour_by)],
            "layout": {
                **layout,
                **canvas_layout(page),
                "margin": {**layout["margin"], **MARGINS},
                "coloraxis": _colour_axis(plan, nodes, colour_by, dark),
            },
        }
    )


def plan_nodes(plan: Plan, part: range) -> tuple[PlanNode, ...]:
    """Returns the nodes that :func:`plan_graph` draws of some layers of a plan."""
    names = [layer.name for layer in plan.layers]
    return tuple(
        PlanNode(group, plan.layers[group.first : group.end]) for group in module_groups(names, part, MOST_NODES)
    )


_TITLES: dict[PlanQuantity, str] = {"gpus": "GPUs", "amplification": "amplification"}


def _part(plan: Plan, part: str | range | None) -> range:
    names = [layer.name for layer in plan.layers]
    if part is None:
        return range(len(names))
    found = part_of_module(names, part) if isinstance(part, str) else part
    if found.step != 1 or not 0 <= found.start < found.stop <= len(names):
        raise InvalidValueError(
            f"{part!r} is no part of the {len(names)} layers of {plan.model}, from '{names[0]}' to '{names[-1]}' "
            "(give a module, or a range of their indices)"
        )
    return found


@lru_cache(maxsize=16)
def _canvas(predecessors: tuple[tuple[int, ...], ...], groups: tuple[ModuleGroup, ...], width: float) -> GraphCanvas:
    """Lays out groups of layers; cached, since the figure is redrawn while a slider moves."""
    node_of = {layer: index for index, group in enumerate(groups) for layer in range(group.first, group.end)}
    reads = [
        tuple(
            sorted(
                {node_of[x] for layer in range(group.first, group.end) for x in predecessors[layer] if x in node_of}
                - {index}
            )
        )
        for index, group in enumerate(groups)
    ]
    return GraphCanvas(reads, width)


def _points(
    plan: Plan, nodes: Sequence[PlanNode], page: GraphCanvas, marked: list[int], dark: bool, colour_by: PlanQuantity
) -> dict[str, object]:
    longest = max(node.time for node in nodes) or 1.0
    places = [page.of(index) for index in range(len(nodes))]
    return {
        "type": "scatter",
        "name": "layers",
        "mode": "markers+text",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "marker": {
            "size": [SMALLEST + (LARGEST - SMALLEST) * math.sqrt(node.time / longest) for node in nodes],
            "color": [_colour(node, colour_by) for node in nodes],
            "coloraxis": "coloraxis",
            "opacity": 1.0,
            "line": {
                "width": [3 if index in marked else 1 for index in range(len(nodes))],
                "color": [
                    theme.VERMILLION if index in marked else theme.neutral(dark=dark) for index in range(len(nodes))
                ],
            },
        },
        "text": [_label(node, room, colour_by) for node, room in zip(nodes, page.room(), strict=True)],
        "textposition": "middle right",
        "textfont": {"size": 10.5},
        "customdata": [
            [node.group.first, node.group.end, escape(node.group.name), _hover(plan, node)] for node in nodes
        ],
        "hovertemplate": "<b>%{customdata[2]}</b><br>%{customdata[3]}<extra></extra>",
        "showlegend": False,
    }


def _colour(node: PlanNode, colour_by: PlanQuantity) -> float:
    return math.log2(node.gpus) if colour_by == "gpus" else node.amplification


def _label(node: PlanNode, room: int, colour_by: PlanQuantity) -> str:
    """Returns the name with the GPU counts or the amplification, which stays whole where the name is cut."""
    value = node.counts if colour_by == "gpus" else f"{node.amplification:.2f}"
    name = fit_label(node.group.name, room - len(value) - 3)
    return f"{escape(name)} · <b>{value}</b>" if name else f"<b>{value}</b>" * (len(value) <= room)


def _hover(plan: Plan, node: PlanNode) -> str:
    limit = plan.amplification_limit
    bound = "no limit" if limit is None else f"limit {limit:g}{' of the iteration' * (plan.limit_scope == 'iteration')}"
    amplification = f"amplification {node.amplification:.2f} ({bound})"
    if node.group.size == 1:
        (layer,) = node.layers
        parts = [f"{part} {format_seconds(getattr(layer, part))}" for part in _PARTS if getattr(layer, part)]
        note = " (extrapolated)" if layer.name in plan.extrapolated_layers else ""
        return "<br>".join(
            [
                f"{layer.gpu_count} of {plan.gpus} GPUs ({gpu_ranges(layer.gpus)})",
                f"{format_seconds(layer.time)}{note}: {', '.join(parts)}",
                amplification,
            ]
        )
    counts = Counter(layer.gpu_count for layer in node.layers)
    spent = {count: sum(x.time for x in node.layers if x.gpu_count == count) for count in counts}
    lines = [
        f"{counts[count]} on {format_count(count, 'GPU')}, {format_seconds(spent[count])}" for count in sorted(counts)
    ]
    return "<br>".join([f"{node.group.size} layers, {format_seconds(node.time)}:", *lines, amplification])


def _what(plan: Plan, shown: range, nodes: Sequence[PlanNode]) -> str:
    whole = len(shown) == len(plan.layers)
    layers = format_count(len(shown), "layer") if whole else f"{len(shown)} of {len(plan.layers)} layers"
    return layers if len(nodes) == len(shown) else f"{layers} in {len(nodes)} groups"


def _colour_axis(plan: Plan, nodes: Sequence[PlanNode], colour_by: PlanQuantity, dark: bool) -> dict[str, object]:
    """Returns a colour axis from one GPU to all of them, or from 1 to a layer's limit or the largest amplification."""
    if colour_by == "gpus":
        low, high = 0.0, math.log2(plan.gpus) or 1.0
        step = -(-(plan.gpus.bit_length()) // 8)
        ticks = {float(power): f"{2**power:,}" for power in range(0, plan.gpus.bit_length(), step)}
        title = "GPUs"
    else:
        # One of the iteration does not bound a layer.
        limit = plan.amplification_limit if plan.limit_scope == "layer" else None
        most = max(node.amplification for node in nodes)
        low, high = min(1.0, *(node.amplification for node in nodes)), max(most, limit or 1.0, 1.1)
        ticks = {value: f"{value:.2f}" for value in (low, (low + high) / 2, high)}
        if limit is not None:
            ticks = {value: text for value, text in ticks.items() if abs(value - limit) > (high - low) / 10}
            ticks[limit] = f"limit {limit:g}"
        title = "amplification (×)"
    return colour_axis(title, low, high, ticks, dark=dark)
