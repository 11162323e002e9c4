"""Why a layer got its GPUs: time, transfers and amplification of every GPU count that was searched."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.base.timeline import SpanKind
from deeppool.figures import theme
from deeppool.figures.formatting import escape, shorten, time_unit
from deeppool.planning.report.alternatives import CountCost, LayerAlternatives, PlanAlternatives
from deeppool.planning.report.explain import over_limit_text
from deeppool.units import format_seconds

MOST_LABELS = 44
"""Names of layers that fit below one another."""
MOST_PERCENT = 20.0
"""Change of the iteration with the strongest colour: a large layer on one GPU would leave nothing else to see."""


@typed
def alternatives(record: PlanAlternatives, *, dark: bool = False) -> go.Figure:
    """Draws the costs of other GPU counts: bars of one layer's times, or a map of many layers.

    Args:
        record: by :func:`deeppool.planning.report.alternatives.alternatives_of`.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    if len(record.layers) == 1:
        return _of_one_layer(record, record.layers[0], dark)
    return _of_layers(record, dark)


# -- one layer --------------------------------------------------------------------------------------


def _of_one_layer(record: PlanAlternatives, layer: LayerAlternatives, dark: bool) -> go.Figure:
    places = list(range(len(layer.counts)))
    unit = time_unit(max(cost.time for cost in layer.counts))
    hovers = [_hover(layer, cost) for cost in layer.counts]
    axes = theme.stacked([0.6, 0.4], gap=0.08)
    axes["yaxis"] |= {"title": {"text": f"time ({unit.name})"}, "rangemode": "tozero"}
    axes["yaxis2"] |= {"title": {"text": "amplification (×)"}, "rangemode": "tozero"}
    axes["xaxis2"] |= {"title": {"text": "GPUs of this layer; other layers unchanged"}}
    for name in ("xaxis", "xaxis2"):
        axes[name] |= {
            "tickvals": places,
            "ticktext": [f"{cost.gpu_count:,}" for cost in layer.counts],
            "range": [-0.6, len(places) - 0.4],
            "showgrid": False,
        }
    figure = go.Figure(layout=axes)
    for name, kind, seconds in _parts(layer):
        figure.add_bar(
            name=name,
            x=places,
            y=[unit.of(value) for value in seconds],
            marker_color=theme.colour(kind, dark=dark),
            customdata=[[hover, format_seconds(value)] for hover, value in zip(hovers, seconds, strict=True)],
            hovertemplate=f"%{{customdata[0]}}<br>{name} %{{customdata[1]}}<extra></extra>",
        )
    for place, cost in zip(places, layer.counts, strict=True):
        figure.add_annotation(
            x=place,
            y=unit.of(cost.time),
            text=_effect(cost),
            font={"color": theme.VERMILLION if cost.over_limit else theme.ink(dark=dark), "size": 11},
            showarrow=False,
            yanchor="bottom",
        )
    for name, over, symbol in (("within the limit", False, "circle"), ("over the limit", True, "x")):
        found = [place for place in places if bool(layer.counts[place].over_limit) == over]
        figure.add_scatter(
            name=name,
            mode="markers",
            xaxis="x2",
            yaxis="y2",
            x=found,
            y=[layer.counts[place].amplification for place in found],
            marker={
                "symbol": symbol,
                "size": [12 if layer.counts[place].chosen else 8 for place in found],
                "color": theme.VERMILLION if over else theme.neutral(dark=dark),
            },
            customdata=[hovers[place] for place in found],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=bool(found) and any(cost.over_limit for cost in layer.counts),
        )
    if record.amplification_limit is not None:
        figure.add_shape(
            type="line",
            xref="x2 domain",
            yref="y2",
            x0=0,
            x1=1,
            y0=record.amplification_limit,
            y1=record.amplification_limit,
            line={"dash": "dash", "width": 1.5, "color": theme.VERMILLION},
        )
        most = max(record.amplification_limit, *(cost.amplification for cost in layer.counts))
        figure.update_layout(yaxis2_range=[0, 1.15 * most])
    figure.update_layout(barmode="stack", yaxis_range=[0, 1.18 * unit.of(max(cost.time for cost in layer.counts))])
    return theme.apply_theme(
        figure,
        title=f"{escape(shorten(layer.name, 60))}: why {layer.gpu_count:,} of {record.gpus:,} "
        f"GPU{'s' * (record.gpus > 1)}",
        subtitle=f"<b>predicted</b>; {_limit(record)}; {escape(layer.reason) or 'no other count was searched'}",
        plot_height=300,
        dark=dark,
    )


def _parts(layer: LayerAlternatives) -> list[tuple[str, SpanKind, list[float]]]:
    """Returns name, colour and seconds of the parts of the layer's time; old files have its sum only."""
    times = [cost.time for cost in layer.counts]
    if any(cost.reshard is None or cost.sync is None for cost in layer.counts):
        return [("time", "forward", times)]
    reshard = [cost.reshard or 0.0 for cost in layer.counts]
    sync = [cost.sync or 0.0 for cost in layer.counts]
    compute = [max(0.0, time - a - b) for time, a, b in zip(times, reshard, sync, strict=True)]
    return [
        ("forward + backward", "forward", compute),
        ("transfers of activations", "reshard", reshard),
        ("all-reduce of gradients", "sync", sync),
    ]


def _effect(cost: CountCost) -> str:
    """Returns the effect on the iteration above a bar."""
    if cost.chosen:
        return "<b>chosen</b>"
    change = cost.iteration_time_change
    effect = f"{'+' if change >= 0 else '−'}{format_seconds(abs(change))}"
    return f"{effect}, over the limit" if cost.over_limit else effect


def _hover(layer: LayerAlternatives, cost: CountCost) -> str:
    change = cost.iteration_time_change
    lines = [
        f"<b>{escape(layer.name)}</b> on {cost.gpu_count:,} GPU{'s' * (cost.gpu_count > 1)}"
        + ", as planned" * cost.chosen,
        f"{format_seconds(cost.time)}, amplification {cost.amplification:.2f}",
        f"iteration {format_seconds(abs(change))} {'longer' if change >= 0 else 'shorter'}" if not cost.chosen else "",
        f"over the limit: {escape(over_limit_text(layer.name, cost.over_limit))}" if cost.over_limit else "",
    ]
    return "<br>".join(line for line in lines if line)


# -- many layers ------------------------------------------------------------------------------------


def _of_layers(record: PlanAlternatives, dark: bool) -> go.Figure:
    searched = sorted({cost.gpu_count for layer in record.layers for cost in layer.counts})
    rows = range(len(record.layers))
    costs = {(row, cost.gpu_count): cost for row in rows for cost in record.layers[row].counts}
    # Percent of the iteration; a count that other branches' GPUs rule out stays blank.
    changes = [
        [
            100 * costs[row, count].iteration_time_change / record.iteration_time if (row, count) in costs else None
            for count in searched
        ]
        for row in rows
    ]
    most = max((abs(value) for row in changes for value in row if value is not None), default=0.0)
    bound = min(most, MOST_PERCENT) or 1.0
    names = [f"{count:,}" for count in searched]
    figure = go.Figure(
        go.Heatmap(
            x=names,
            y=list(rows),
            z=changes,
            zmin=-bound,
            zmax=bound,
            colorscale=[[0, theme.GREEN], [0.5, theme.paper(dark=dark)], [1, theme.ORANGE]],
            colorbar={"title": {"text": "iteration (%)" + ", and beyond" * (bound < most), "side": "right"}},
            text=[
                [
                    _hover(record.layers[row], costs[row, count]) if (row, count) in costs else "other branches' GPUs"
                    for count in searched
                ]
                for row in rows
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    marks = {
        "chosen": ([key for key, cost in costs.items() if cost.chosen], "circle", theme.neutral(dark=dark)),
        "over the limit": ([key for key, cost in costs.items() if cost.over_limit], "x", theme.VERMILLION),
    }
    for name, (keys, symbol, colour) in marks.items():
        figure.add_scatter(
            name=name,
            mode="markers",
            x=[f"{count:,}" for _, count in keys],
            y=[row for row, _ in keys],
            marker={
                "symbol": symbol,
                "size": 8,
                "color": colour,
                "line": {"width": 1, "color": theme.paper(dark=dark)},
            },
            hoverinfo="skip",
        )
    figure.update_xaxes(title_text="GPUs of the layer; other layers unchanged", type="category", categoryarray=names)
    layers = [escape(shorten(layer.name)) for layer in record.layers]
    figure.update_yaxes(theme.named_rows(layers, -(-len(layers) // MOST_LABELS)))
    return theme.apply_theme(
        figure,
        title=f"{escape(record.model)}, batch {record.global_batch} on {record.gpus:,} "
        f"GPU{'s' * (record.gpus > 1)}: other GPU counts",
        subtitle=f"<b>predicted</b> change of the iteration of {format_seconds(record.iteration_time)} by one layer's "
        f"GPU count; {_limit(record)}",
        plot_height=max(160, min(20 * len(rows), 20 * MOST_LABELS)),
        dark=dark,
    )


def _limit(record: PlanAlternatives) -> str:
    return "no limit" if record.amplification_limit is None else f"limit {record.amplification_limit:g}"
