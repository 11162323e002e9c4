"""Nightly runs and evaluations: what ran, what moved, and how near a paper's numbers are."""

import re

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.evaluation.entries import Number, count_holding
from deeppool.evaluation.nightly_record import NightlyRun
from deeppool.evaluation.record import Evaluation
from deeppool.evaluation.regression_report import RegressionReport
from deeppool.evaluation.tables import format_value
from deeppool.figures import theme
from deeppool.figures.changes import Change, draw_changes
from deeppool.figures.formatting import escape, time_unit
from deeppool.units import format_count


@typed
def night(record: NightlyRun, *, dark: bool = False) -> go.Figure:
    """Draws how long each notebook of a night took, coloured by how it ended."""
    unit = time_unit(max((outcome.seconds for outcome in record.outcomes), default=0.0))
    rows = {outcome.name: row for row, outcome in enumerate(record.outcomes)}
    figure = go.Figure()
    colours = {"done": theme.BLUE, "failed": theme.VERMILLION, "not run": theme.neutral(dark=dark)}
    for state, colour in colours.items():
        found = [outcome for outcome in record.outcomes if outcome.state == state]
        if found:
            figure.add_bar(
                orientation="h",
                name=state,
                y=[rows[outcome.name] for outcome in found],
                x=[unit.of(outcome.seconds) for outcome in found],
                marker_color=colour,
                text=[
                    count_holding(outcome.checks) if outcome.checks else escape(outcome.problem[:60])
                    for outcome in found
                ],
                hovertext=[escape(f"{outcome.title}: {outcome.problem or state}") for outcome in found],
                hoverinfo="text",
            )
    figure.update_layout(barmode="overlay", showlegend=True)
    figure.update_xaxes(title_text=f"time ({unit.name})", rangemode="tozero")
    figure.update_yaxes(theme.named_rows([escape(name) for name in rows]))
    return theme.apply_theme(
        figure,
        title=f"Night {escape(record.name)}: {format_count(len(rows), 'notebook')}, {escape(record.preset)}",
        subtitle=f"<b>measured</b> on {escape(record.device)}, {escape(record.started)}",
        plot_height=max(120, 26 * len(rows)),
        dark=dark,
    )


@typed
def moved(record: RegressionReport, *, dark: bool = False) -> go.Figure:
    """Draws the numbers of a night that changed beyond noise, with the range of noise."""
    rows = [
        Change(
            f"{number.notebook}: {number.name}",
            100 * number.change,
            f"usually {format_value(number.usual, number.unit)}, now {format_value(number.value, number.unit)}, "
            f"{number.basis}",
            100 * number.band / abs(number.usual),
        )
        for number in record.moved
        if number.change is not None and number.usual
    ]
    failed = f"; {format_count(len(record.broken), 'notebook')} failed" if record.broken else ""
    subtitle = (
        f"{len(record.moved)} of {record.judged} numbers moved, {len(record.unmet)} of {record.checks} checks do not "
        f"hold{failed}; against {len(record.compared)} nights on {escape(record.device)}"
    )
    return draw_changes(rows, f"Night {record.night}: what moved", subtitle, "change from usual (%)", dark=dark)


@typed
def against_paper(record: Evaluation, *, dark: bool = False) -> go.Figure:
    """Draws how far each number is from the paper's, with the paper's range where it prints one."""
    rows = [row for number in record.numbers if (row := _against_paper(number)) is not None]
    subtitle = (
        f"{len(rows)} of {len(record.numbers)} numbers have the paper's beside them; "
        f"{count_holding(record.checks)}; {escape(record.device)}, {escape(record.date)}"
    )
    return draw_changes(
        rows, record.title, subtitle, "here over the paper's (%)", range_name="the paper's range", dark=dark
    )


def _against_paper(number: Number) -> Change | None:
    """Compares with the middle of the numbers that the paper prints; None without one."""
    if isinstance(number.paper, str):  # in which a minus may be the dash of a range
        printed = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", number.paper)]
    else:
        printed = [float(number.paper or 0.0)]
    if not printed or not (middle := (min(printed) + max(printed)) / 2):
        return None
    values = f"paper {number.paper} {number.unit}, here {format_value(number.value, number.unit)}, {number.basis}"
    width = 100 * (max(printed) - min(printed)) / 2 / abs(middle)
    return Change(number.name, 100 * (number.value - middle) / abs(middle), values, width or None)
