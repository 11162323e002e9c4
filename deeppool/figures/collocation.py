"""Foreground slowdown and background harvest of a live run."""

from collections.abc import Iterator

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.base.timeline import SpanKind
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, time_unit
from deeppool.records.confidence_interval import format_interval
from deeppool.records.run_record import BackgroundResult, RunRecord, TimeSummary
from deeppool.units import format_percent, format_rate, format_seconds


@typed
def collocation(run: RunRecord, *, dark: bool = False) -> go.Figure:
    """Draws the foreground's iteration time alone and collocated (left), and idle time and harvest (right).

    Args:
        run: record of a live run; without a background the right panel shows only the idle time.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a run's record.
    """
    figure = make_subplots(
        cols=2,
        column_widths=[0.6, 0.4],
        horizontal_spacing=0.1,
        subplot_titles=_headings(run),
    )
    figure.update_annotations(font_size=14)
    conditions = _conditions(run)
    unit = time_unit(max(times.p99 for times in conditions.values()))
    figure.add_trace(_iteration_times("p50", conditions, unit, theme.neutral(dark=dark)), row=1, col=1)
    figure.add_trace(_iteration_times("p99", conditions, unit, theme.soft(dark=dark)), row=1, col=1)
    shares = _shares(run, dark)
    for trace in shares:
        figure.add_trace(trace, row=1, col=2)
    # A background that was slow alone may have been faster beside the foreground.
    most = max((share for trace in shares for share in trace.y), default=0.0)
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(title_text=f"time of an iteration ({unit.name})", rangemode="tozero", row=1, col=1)
    ticks = [0, 25, 50, 75, 100] if most <= 100 else None
    figure.update_yaxes(title_text="share (%)", range=[0, 1.04 * max(100, most)], tickvals=ticks, row=1, col=2)
    theme.apply_theme(figure, title=_title(run), subtitle=_subtitle(run), plot_height=300, heading_height=24, dark=dark)
    return figure.update_layout(barmode="group", bargap=0.25)


def _conditions(run: RunRecord) -> dict[str, TimeSummary]:
    front = run.foreground
    found = {"alone": front.alone.iteration_time}
    if front.alone_asleep is not None:
        found = {"alone,<br>idle cores": front.alone_asleep.iteration_time, **found}
    if run.background is not None:
        found["collocated"] = front.iteration_time
    return found


def _iteration_times(quantile: str, conditions: dict[str, TimeSummary], unit: TimeUnit, colour: str) -> go.Bar:
    seconds = [getattr(times, quantile) for times in conditions.values()]
    return go.Bar(
        name=f"{quantile} of iterations",
        x=list(conditions),
        y=[unit.of(value) for value in seconds],
        marker={"color": colour},
        text=[format_seconds(value) for value in seconds],
        textposition="outside",
        textfont={"size": 11},
        cliponaxis=False,
        customdata=[[times.count, format_seconds(times.mean)] for times in conditions.values()],
        hovertemplate=f"<b>%{{x}}</b><br>{quantile} %{{text}}, mean %{{customdata[1]}}<br>"
        "measured over %{customdata[0]} iterations<extra></extra>",
    )


def _shares(run: RunRecord, dark: bool) -> list[go.Bar | go.Scatter]:
    idle = run.foreground.alone.idle_share
    mean = sum(idle) / len(idle) if idle else 0.0
    place = _place("idle when the<br>foreground is alone", mean)
    ranks = go.Scatter(
        name="idle, each rank",
        mode="markers",
        x=[place] * len(idle),
        y=[100 * share for share in idle],
        marker={"color": theme.neutral(dark=dark), "size": 7},
        customdata=list(range(len(idle))),
        hovertemplate="rank %{customdata}: %{y:.1f} % idle, measured<extra></extra>",
    )
    traces = [_share_bar("idle", place, mean, f"mean of {len(idle)} ranks", dark), ranks]
    if run.background is not None:
        harvest = run.background.harvest
        place = _place("harvested by<br>the background", harvest)
        traces.append(_share_bar("background", place, harvest, _harvest(run.background), dark))
    return traces


def _place(what: str, share: float) -> str:
    """Axis label of a bar with its value, which the marks of the ranks would cover inside the plot."""
    return f"{what}<br><b>{100 * share:.0f} %</b>"


def _share_bar(kind: SpanKind, place: str, share: float, note: str, dark: bool) -> go.Bar:
    return go.Bar(
        name=kind,
        x=[place],
        y=[100 * share],
        marker={"color": theme.colour(kind, dark=dark)},
        customdata=[note],
        hovertemplate=f"<b>{kind}</b> %{{y:.1f}} %, measured<br>%{{customdata}}<extra></extra>",
    )


def _harvest(back: BackgroundResult) -> str:
    return (
        f"{format_rate(back.throughput)} samples/s collocated, {format_rate(back.alone_throughput)} alone; "
        f"{100 * back.harvest_of_idle:.0f} % of the idle time"
    )


def _title(run: RunRecord) -> str:
    if run.background is None:
        return f"{escape(run.model)} without a background job"
    return f"{escape(run.model)} with {escape(run.background.model)} in its idle time"


def _headings(run: RunRecord) -> list[str]:
    """Returns the headings of the panels, with the main result of each."""
    if run.background is None:
        return ["Foreground iteration", "Idle time"]
    return [
        f"Foreground iteration: mean {format_percent(run.foreground.slowdown)}"
        f"{format_interval(run.foreground.slowdown_margin)}",
        f"Background: {100 * run.background.harvest:.0f} %{format_interval(run.background.harvest_margin)} of alone",
    ]


def _subtitle(run: RunRecord) -> str:
    granted = "" if run.background is None else f" ({escape(run.background.priority)})"
    notes = "".join(f"<br>{note}" for note in _notes(run))
    return f"<b>measured</b> with {escape(run.where)}, policy {run.policy}{granted}, {run.date[:10]}{notes}"


def _notes(run: RunRecord) -> Iterator[str]:
    """Yields the delay of the foreground's wake-ups and the cost saved, where there are."""
    collocated, alone = run.foreground.wake_delay, run.foreground.alone.wake_delay
    if run.background is not None and collocated is not None:
        beside = f"p50 {format_seconds(collocated.p50)}, p99 {format_seconds(collocated.p99)}"
        without = "" if alone is None else f" (alone {format_seconds(alone.p50)}, {format_seconds(alone.p99)})"
        yield f"delay of the foreground's wake-ups: {beside}{without}"
    if run.cost_saved is not None:
        yield f"cost saved: {run.cost_saved.saved_per_gpu_hour:.3g} per GPU-hour at {run.cost_saved.gpu_price:g}"
