"""GPU count, time and amplification of each layer of a plan."""

import math

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.base.timeline import SpanKind
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, gpu_ranges, plan_provenance, shorten, time_unit
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.units import format_seconds

Hovers = list[list[str]]
"""Hover texts of each layer, which all panels share."""

_PARTS: tuple[SpanKind, ...] = ("forward", "backward", "reshard", "sync")
"""Parts of a layer's time; each is both a span kind and a field of LayerAssignment."""
_LABELS = 44
"""Slanted names that fit side by side on a laptop."""
_LINEAR_UP_TO = 8
"""GPU count above which the axis of GPUs is logarithmic."""
_COUNT_TICKS = 7
"""Tick labels that fit one above another into the first panel."""


@typed
def layers(plan: Plan, *, selected: str | None = None, dark: bool = False) -> go.Figure:
    """Draws three panels over the layers: GPU count, time and its parts, amplification against the limit.

    Args:
        plan: plan to draw; the subtitle states what its predicted times are based on.
        selected: name of a layer to mark.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a plan.
    """
    unit = time_unit(max((layer.time for layer in plan.layers), default=0.0))
    hovers = [_hover(layer, plan) for layer in plan.layers]
    parts = [part for part in _PARTS if any(getattr(layer, part) > 0 for layer in plan.layers)]
    # Built as one dictionary, which plotly validates once: this figure is redrawn while a slider moves.
    axes = theme.stacked([0.24, 0.44, 0.32], gap=0.045)
    for name in ("xaxis", "xaxis2", "xaxis3"):
        axes[name] |= {"range": [-0.6, len(plan.layers) - 0.4], "showgrid": False}
    axes["xaxis3"] |= _name_axis(plan)
    axes["yaxis"] |= _count_axis(plan)
    axes["yaxis2"] |= {"title": {"text": f"time ({unit.name})"}, "rangemode": "tozero"}
    axes["yaxis3"] |= {"title": {"text": "amplification (×)"}, "rangemode": "tozero"}
    lines, labels = _limit(plan, axes["yaxis3"], dark)
    title = f"{escape(plan.model)}, batch {plan.global_batch:,}, layer by layer"
    subtitle = f"<b>predicted</b> {plan_provenance(plan)}"
    layout = theme.theme_layout(title=title, subtitle=subtitle, plot_height=480, dark=dark)
    return go.Figure(
        {
            "data": [
                _counts(plan, hovers, dark),
                *(_times(plan, hovers, part, unit, dark) for part in parts),
                *_amplifications(plan, hovers, dark),
            ],
            "layout": {
                **layout,
                **axes,
                "shapes": [*lines, *_mark(plan, selected)],
                "annotations": labels,
                "barmode": "stack",
                "bargap": 0.15,
            },
        }
    )


def _counts(plan: Plan, hovers: Hovers, dark: bool) -> dict[str, object]:
    return {
        "type": "bar",
        "xaxis": "x",
        "yaxis": "y",
        "name": "GPUs",
        "showlegend": False,
        "x": list(range(len(plan.layers))),
        "y": [layer.gpu_count for layer in plan.layers],
        # A bar starts at its first GPU, so that parallel branches do not overlap; not possible on a logarithmic axis.
        "base": [layer.gpus[0] for layer in plan.layers] if plan.gpus <= _LINEAR_UP_TO else None,
        "marker": {"color": theme.neutral(dark=dark)},
        "customdata": hovers,
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>"
        "%{customdata[2]}, amplification %{customdata[3]}<extra></extra>",
    }


def _times(plan: Plan, hovers: Hovers, part: SpanKind, unit: TimeUnit, dark: bool) -> dict[str, object]:
    return {
        "type": "bar",
        "xaxis": "x2",
        "yaxis": "y2",
        "name": part,
        "x": list(range(len(plan.layers))),
        "y": [unit.of(getattr(layer, part)) for layer in plan.layers],
        "marker": {"color": theme.colour(part, dark=dark)},
        "customdata": [
            [*hover, format_seconds(getattr(layer, part))] for layer, hover in zip(plan.layers, hovers, strict=True)
        ],
        "hovertemplate": f"<b>%{{customdata[0]}}</b><br>{part} %{{customdata[4]}} of %{{customdata[2]}}<br>"
        "%{customdata[1]}<extra></extra>",
    }


def _amplifications(plan: Plan, hovers: Hovers, dark: bool) -> list[dict[str, object]]:
    """Returns the points of the layers, in two groups: times within the profile, and extrapolated times."""
    groups: dict[bool, list[int]] = {}
    for index, layer in enumerate(plan.layers):
        groups.setdefault(layer.name in plan.extrapolated_layers, []).append(index)
    return [
        {
            "type": "scatter",
            "xaxis": "x3",
            "yaxis": "y3",
            "name": "amplification" + ", time extrapolated" * is_extrapolated,
            "mode": "markers",
            "x": indices,
            "y": [plan.layers[i].amplification for i in indices],
            "marker": {
                "color": theme.neutral(dark=dark),
                "symbol": "circle-open" if is_extrapolated else "circle",
                "size": 7,
            },
            "customdata": [hovers[i] for i in indices],
            "hovertemplate": "<b>%{customdata[0]}</b><br>amplification %{customdata[3]}<br>"
            "%{customdata[1]}, %{customdata[2]}<extra></extra>",
        }
        for is_extrapolated, indices in sorted(groups.items())
    ]


def _hover(layer: LayerAssignment, plan: Plan) -> list[str]:
    """Returns name, GPUs, time and amplification of a layer as texts."""
    note = " (extrapolated)" if layer.name in plan.extrapolated_layers else ""
    return [
        escape(layer.name),
        f"{layer.gpu_count} of {plan.gpus} GPUs ({gpu_ranges(layer.gpus)})",
        f"{format_seconds(layer.time)}{note}",
        f"{layer.amplification:.2f}",
    ]


def _limit(plan: Plan, axis: dict[str, object], dark: bool) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Returns the line at the limit, and its label; extends the axis range beyond it."""
    limit = plan.amplification_limit
    if limit is None:
        return [], []
    # Plotly's automatic range ignores shapes.
    axis["range"] = [0, 1.2 * max([limit, *(layer.amplification for layer in plan.layers)])]
    place = {"xref": "x3 domain", "yref": "y3"}
    style = {"dash": "dash", "width": 1.5, "color": theme.VERMILLION}
    line = {"type": "line", "x0": 0, "x1": 1, "y0": limit, "y1": limit, "line": style, **place}
    label = {
        "text": f"limit {limit:g}{' of the iteration' * (plan.limit_scope == 'iteration')}",
        "font": {"color": theme.VERMILLION},
        "bgcolor": theme.paper(dark=dark),
        "showarrow": False,
        "x": 0,
        "xanchor": "left",
        "y": limit,
        "yanchor": "bottom",
        **place,
    }
    return [line], [label]


def _mark(plan: Plan, selected: str | None) -> list[dict[str, object]]:
    """Returns a band behind the bars of a layer, through all panels."""
    fill = {"fillcolor": theme.VERMILLION, "opacity": 0.18, "line": {"width": 0}, "layer": "below"}
    return [
        {"type": "rect", "xref": "x3", "yref": "paper", "x0": i - 0.5, "x1": i + 0.5, "y0": 0, "y1": 1, **fill}
        for i, layer in enumerate(plan.layers)
        if layer.name == selected
    ]


def _count_axis(plan: Plan) -> dict[str, object]:
    used = sorted({layer.gpu_count for layer in plan.layers} | {1, plan.gpus})
    if plan.gpus <= _LINEAR_UP_TO:
        return {"title": {"text": "GPUs"}, "tickvals": used, "range": [0, 1.08 * plan.gpus]}
    # From one half, so that a bar of one GPU is visible.
    bounds = [math.log10(0.5), math.log10(1.2 * plan.gpus)]
    least = (bounds[1] - bounds[0]) / _COUNT_TICKS
    shown: list[int] = []
    for count in reversed(used):
        if not shown or math.log10(shown[0] / count) >= least:
            shown.insert(0, count)
    return {"title": {"text": "GPUs (log)"}, "type": "log", "tickvals": shown, "tickformat": ",", "range": bounds}


def _name_axis(plan: Plan) -> dict[str, object]:
    """Labels every layer if the names fit, else every n-th; hover texts name all layers."""
    step = -(-len(plan.layers) // _LABELS)
    shown = range(0, len(plan.layers), step)
    note = "" if step == 1 else f" (one in {step} is labelled)"
    return {
        "title": {"text": f"layer, in order of execution{note}"},
        "tickvals": list(shown),
        "ticktext": [escape(shorten(plan.layers[index].name)) for index in shown],
        "tickangle": -45,
        "tickfont": {"size": 10},
    }
