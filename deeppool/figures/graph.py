"""The layer graph of a model, coloured by time, parameters or memory."""

import math
from collections.abc import Iterator
from typing import Literal

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.base.number_checks import whole_number
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape
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
from deeppool.graph.layer import LayerGraph
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_count, format_seconds

Quantity = Literal["time", "parameters", "output", "kept"]
"""Quantity that colours a layer: seconds at a per-GPU batch; bytes of parameters; bytes per sample of its output
(``output``), or of the activations saved for the backward pass (``kept``)."""

TITLES: dict[Quantity, str] = {
    "time": "forward + backward time",
    "parameters": "parameters",
    "output": "output per sample",
    "kept": "activations saved for backward, per sample",
}
_DECIMAL, _BINARY = [10.0**power for power in (-9, -6, -3, 0, 3)], [1024.0**power for power in range(5)]
DECADES = 4
"""Decades that the colours span; smaller values have the colour of the minimum."""


@typed
def graph(
    graph: LayerGraph,
    profile: Profile | None = None,
    *,
    colour_by: Quantity | None = None,
    batch: int | None = None,
    width: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Draws layers from top to bottom, branches next to each other, long graphs in columns; drag to zoom.

    Args:
        graph: graph of a captured model, or ``profile.graph``.
        profile: profile of this graph, for times in hover texts and colours.
        colour_by: quantity of the colours; by default ``time`` with a profile, else ``parameters``.
        batch: per-GPU batch of the times; by default the profile's largest.
        width: pixels of the page, to which columns and labels are fitted; None: that of a notebook on a laptop.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a graph, times without a profile, or the profile of another graph.
        MissingProfileError: a batch below the profile's smallest.
    """
    if profile is not None and profile.graph.fingerprint != graph.fingerprint:
        raise InvalidValueError(
            f"the profile belongs to another graph, {profile.graph}, than the one given, {graph} (pass profile.graph)"
        )
    colour_by = colour_by or ("parameters" if profile is None else "time")
    if colour_by == "time" and profile is None:
        raise InvalidValueError(
            "colour_by: time needs a profile, got 'time' without one (give one, or another quantity)"
        )
    largest = profile.batch_sizes[-1] if profile else 1
    batch = largest if batch is None else whole_number("batch", batch)
    page = GraphCanvas([layer.predecessors for layer in graph.layers], page_of(width))
    values = _values(graph, profile, colour_by, batch)
    figure = go.Figure(edge_lines(page, dark=dark))
    for trace in _layers(page, values, _hovers(graph, profile, batch), colour_by, dark):
        figure.add_trace(trace)
    figure.update_layout(canvas_layout(page), coloraxis=_colour_axis(values, colour_by, dark))
    return theme.apply_theme(
        figure,
        title=f"{escape(graph.model)}, {format_count(len(graph.layers), 'layer')} by {TITLES[colour_by]}",
        subtitle=_subtitle(graph, profile, batch),
        plot_height=max(200, page.height * ROW),
        dark=dark,
    ).update_layout(margin=MARGINS)


def _layers(
    page: GraphCanvas, values: list[float | None], hovers: list[tuple[str, str]], colour_by: Quantity, dark: bool
) -> Iterator[go.Scatter]:
    """Yields the traces of layers with a value, and of those without one, which have a legend entry."""
    coloured = [index for index, value in enumerate(values) if value]
    blank = [index for index, value in enumerate(values) if not value]
    room = page.room()
    for indices, name in ((coloured, TITLES[colour_by]), (blank, _blank_name(colour_by))):
        if not indices:
            continue
        marker: dict[str, object] = {"size": 12, "line": {"width": 1, "color": theme.neutral(dark=dark)}}
        if indices is coloured:
            marker |= {"color": [math.log10(values[i] or 1) for i in indices], "coloraxis": "coloraxis"}
        else:
            marker |= {"color": theme.paper(dark=dark)}
        points = [page.of(index) for index in indices]
        yield go.Scatter(
            name=name,
            mode="markers+text",
            x=[x for x, _ in points],
            y=[y for _, y in points],
            marker=marker,
            text=[escape(fit_label(hovers[index][0], room[index])) for index in indices],
            textposition="middle right",
            textfont={"size": 10.5},
            customdata=[[index, escape(hovers[index][0]), hovers[index][1]] for index in indices],
            hovertemplate="<b>%{customdata[1]}</b><br>%{customdata[2]}<extra></extra>",
            showlegend=indices is blank,
        )


def _blank_name(colour_by: Quantity) -> str:
    return {"parameters": "no parameters", "kept": "none saved, or unknown", "output": "the loss"}.get(
        colour_by, "no time"
    )


# -- values and hover texts of layers ---------------------------------------------------------------


def output_bytes(graph: LayerGraph) -> list[int | None]:
    """Returns the bytes per sample of each layer's output, once for any number of readers; None without readers."""
    found: list[int | None] = [None] * len(graph.layers)
    for layer in graph.layers:
        for source, size in zip(layer.predecessors, layer.input_bytes, strict=True):
            found[source] = max(size, found[source] or 0)
    return found


def _values(graph: LayerGraph, profile: Profile | None, colour_by: Quantity, batch: int) -> list[float | None]:
    if colour_by == "time":
        assert profile is not None
        return [profile.time(index, batch).total for index in range(len(graph.layers))]
    if colour_by == "output":
        return list(output_bytes(graph))
    if colour_by == "kept":
        return [layer.activation_bytes for layer in graph.layers]
    return [layer.parameter_bytes for layer in graph.layers]


def _hovers(graph: LayerGraph, profile: Profile | None, batch: int) -> list[tuple[str, str]]:
    """Returns the name of each layer, and escaped lines that describe it."""
    whole = profile.iteration_time(batch) if profile else 0.0
    found = []
    for index, (layer, output) in enumerate(zip(graph.layers, output_bytes(graph), strict=True)):
        lines = [
            escape(join_operators(layer.operators, 6)),
            f"{format_bytes(layer.parameter_bytes)} of parameters",
            "output: the loss" if output is None else f"output {format_bytes(output)} per sample",
        ]
        if layer.activation_bytes is not None:
            lines.append(f"saves {format_bytes(layer.activation_bytes)} per sample for the backward pass")
        if profile is not None:
            time = profile.time(index, batch)
            lines.append(
                f"{format_seconds(time.forward)} forward + {format_seconds(time.backward)} backward at batch "
                f"{batch}{' (extrapolated)' if time.extrapolated else ''}, "
                f"{100 * time.total / whole:.1f} % of the iteration"
            )
        found.append((layer.name, "<br>".join(lines)))
    return found


def join_operators(names: tuple[str, ...], limit: int) -> str:
    """Returns the operator names such as ``conv2d + batch_norm + relu``; only the first ``limit`` of many."""
    more = f" + {len(names) - limit} more" if len(names) > limit else ""
    return " + ".join(names[:limit]) + more


def _colour_axis(values: list[float | None], colour_by: Quantity, dark: bool) -> dict[str, object]:
    """Returns a logarithmic colour axis with labels at round values."""
    known = [value for value in values if value]
    most = max(known, default=1.0)
    least = max(min(known, default=1.0), most / 10**DECADES)
    low, high = math.log10(least), math.log10(most)
    if high - low < 0.5:
        low, high = low - 0.25, high + 0.25
    units = _DECIMAL if colour_by == "time" else _BINARY
    steps = (1, 2, 5) if high - low < 1.5 else (1,)
    ticks = [unit * power * step for unit in units for power in (1, 10, 100) for step in steps]
    format_value = format_seconds if colour_by == "time" else format_bytes
    labels = {math.log10(value): format_value(value).replace(".0 ", " ") for value in ticks}
    labels = {position: label for position, label in labels.items() if low <= position <= high}
    clipped = bool(known) and min(known) < least
    return colour_axis(TITLES[colour_by] + " (minimum: and below)" * clipped, low, high, labels, dark=dark)


def _subtitle(graph: LayerGraph, profile: Profile | None, batch: int) -> str:
    shapes = " and ".join("x".join(map(str, given.shape)) for given in graph.inputs)
    size = f"{format_bytes(graph.parameter_bytes)} of parameters"
    if profile is None:
        return f"samples of {shapes}, a layer is {_a(graph.granularity)}; {size}; not profiled"
    beyond = ", extrapolated" if batch > profile.batch_sizes[-1] else ""
    return (
        f"<b>{profile.provenance}</b> on {escape(profile.device_name)}, {profile.precision}, batch {batch}{beyond}: "
        f"{format_seconds(profile.iteration_time(batch))} an iteration; samples of {shapes}; {size}"
    )


def _a(granularity: str) -> str:
    return f"{'an' if granularity[0] in 'aeiou' else 'a'} {granularity}"
