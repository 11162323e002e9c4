"""Cluster throughput and foreground completion times of a workload under every strategy."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape, time_unit
from deeppool.simulation.cluster.comparison import ClusterComparison
from deeppool.units import format_count


@typed
def strategies(comparison: ClusterComparison, *, dark: bool = False) -> go.Figure:
    """Draws bars per strategy: cluster throughput (left) and completion time of the foregrounds (right).

    Args:
        comparison: comparison of strategies on one workload; predictions.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    results = comparison.results
    # With fewer jobs a cluster is done earlier, at another throughput.
    labels = [f"{escape(x.label)}{f', {x.unfinished} unfinished' if x.unfinished else ''}" for x in results]
    left_out = ", ".join(each.split(":")[0] for each in comparison.left_out)
    unit = time_unit(max([result.completion_time or 0 for result in results]))
    figure = make_subplots(
        cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=("cluster throughput", "foregrounds")
    )
    figure.update_annotations(font_size=12)
    for name, colour in (("foreground", theme.BLUE), ("background", theme.colour("background", dark=dark))):
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=name,
                y=labels,
                x=[getattr(result, f"{name}_throughput") for result in results],
                marker={"color": colour},
                hovertemplate=f"%{{y}}<br>{name}: %{{x:,.4~r}} samples/s, predicted<extra></extra>",
            ),
            row=1,
            col=1,
        )
    figure.add_trace(
        go.Bar(
            orientation="h",
            name="completion time",
            y=labels,
            x=[None if x.completion_time is None else unit.of(x.completion_time) for x in results],
            marker={"color": theme.neutral(dark=dark)},
            text=["" if x.speedup is None else f"{x.speedup:.2f}×" for x in results],
            textposition="auto",
            hovertemplate=f"%{{y}}<br>completion time %{{x:,.4~r}} {unit.name}, speed-up over one GPU %{{text}}, "
            "predicted<extra></extra>",
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    figure.update_xaxes(title_text="samples/s", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text=f"mean completion time ({unit.name}); speed-up", rangemode="tozero", row=1, col=2)
    figure.update_yaxes(autorange="reversed")
    dressed = theme.apply_theme(
        figure,
        title=f"{escape(comparison.trace)} on {format_count(comparison.cluster.gpus, 'GPU')}",
        subtitle=f"<b>predicted</b> from {comparison.provenance} layer times ({escape(comparison.cluster.name)}); "
        f"{escape(comparison.interference)}{left_out and f'; left out, too little memory: {escape(left_out)}'}",
        plot_height=max(160, 34 * len(results)),
        heading_height=20,
        dark=dark,
    )
    return dressed.update_layout(barmode="stack")
