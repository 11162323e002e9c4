"""Cluster throughput in three scenarios, as in DeepPool's figure 9: a panel per model."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.scenarios import ThreeScenarios
from deeppool.evaluation.figures.printed import printed_marks
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.units import format_count, format_rate, format_seconds


@typed
def scenarios(*found: ThreeScenarios) -> go.Figure:
    """Draws bars for DP, BP and BP + Col, background throughput stacked on foreground; a line for backgrounds alone.

    What the paper prints for BP + Col over BP is marked, times the throughput of BP here.

    Args:
        found: a panel each; simulated.

    Raises:
        InvalidValueError: none, or something else.
    """
    if not found:
        raise InvalidValueError("scenarios cannot draw nothing, it accepts what three_scenarios found")
    figure = make_subplots(cols=len(found), horizontal_spacing=0.08, subplot_titles=[_heading(one) for one in found])
    figure.update_annotations(font_size=12)
    for column, one in enumerate(found, 1):
        for role, colour in (("foreground", theme.BLUE), ("background", theme.colour("background"))):
            figure.add_trace(_bars(one, role, colour, first=column == 1), row=1, col=column)
        figure.add_hline(
            y=one.background_alone_throughput,
            line={"dash": "dash", "width": 1.5, "color": theme.neutral()},
            annotation={"text": "backgrounds only", "font": {"size": 11, "color": theme.neutral()}},
            annotation_position="top left",
            row=1,
            col=column,
        )
        highest = max([one.background_alone_throughput, *(each.throughput for each in one.scenarios)])
        figure.update_yaxes(range=[0, 1.14 * highest], row=1, col=column)
    _mark_printed_gains(figure, found)
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(title_text="cluster throughput (samples/s)", row=1, col=1)
    theme.apply_theme(
        figure,
        title=f"Cluster throughput on {format_count(found[0].cluster.gpus, 'GPU')}",
        subtitle=_subtitle(found),
        plot_height=340,
        heading_height=24,
    )
    return figure.update_layout(barmode="stack", bargap=0.35)


def _mark_printed_gains(figure: go.Figure, found: tuple[ThreeScenarios, ...]) -> None:
    """Marks the throughputs that BP + Col would have with the paper's gains over BP; an axis grows to show its mark."""
    marked = []
    for column, one in enumerate(found, 1):
        beside = {f"{one.model}, BP + Col over BP": "BP + Col"}
        scale, label = one.scenario("BP").throughput, "BP here × the paper's gain"
        for marks in printed_marks("fig9", beside, scale=scale, label=label):
            marked.append(column)
            figure.add_trace(marks.update(showlegend=marked == [column]), row=1, col=column)
            _, top = next(figure.select_yaxes(row=1, col=column)).range
            figure.update_yaxes(range=[0, max(top, 1.14 * max(marks.y))], row=1, col=column)


def _bars(one: ThreeScenarios, role: str, colour: str, *, first: bool) -> go.Bar:
    return go.Bar(
        name=role,
        legendgroup=role,
        showlegend=first,
        x=[each.name for each in one.scenarios],
        y=[getattr(each, f"{role}_throughput") for each in one.scenarios],
        marker={"color": colour},
        customdata=[
            [format_seconds(each.iteration_time), one.speedup(each.name), format_rate(each.throughput, 4)]
            for each in one.scenarios
        ],
        hovertemplate=f"<b>%{{x}}</b>, {role}: %{{y:,.4~r}} samples/s of %{{customdata[2]}}<br>"
        "foreground %{customdata[0]} an iteration, %{customdata[1]:.2f}× one GPU, simulated<extra></extra>",
    )


def _heading(one: ThreeScenarios) -> str:
    """Returns the title of a panel."""
    return f"{escape(one.model)}, batch {one.global_batch}"


def _subtitle(found: tuple[ThreeScenarios, ...]) -> str:
    provenance = "estimated" if any(one.provenance == "estimated" for one in found) else "measured"
    modelled = "; ".join(dict.fromkeys(one.modelled for one in found))
    device = ", ".join(dict.fromkeys(one.device_name for one in found))
    return f"<b>simulated</b> from {provenance} layer times ({escape(device)}); {escape(modelled)}"
