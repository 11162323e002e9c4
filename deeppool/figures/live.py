"""A run as it goes on or has ended: iteration times, their mean alone, the bound, and background throughput."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.base.live_sample import Condition, LiveSample
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, time_unit
from deeppool.units import format_percent, format_rate, format_seconds

NEWEST = 600
"""Default number of samples drawn; a page redraws them several times a second."""
AXIS = 1.5
"""End of the time axis as a multiple of the 95th percentile; outliers, as at a start, lie outside."""

_MARKERS: dict[Condition, tuple[str, str]] = {
    "warming up": ("warming up", "x-thin-open"),
    "asleep": ("alone, idle cores", "circle-open"),
    "awake": ("alone", "circle"),
    "learning": ("learning", "diamond-open"),
    "collocated": ("collocated", "diamond"),
}
"""Legend entry and marker symbol of iterations under each condition."""


@typed
def live(samples: Sequence[LiveSample], *, newest: int = NEWEST, ended: bool = False, dark: bool = False) -> go.Figure:
    """Draws the time of each iteration (top) and the background's samples per second over all ranks (bottom).

    Args:
        samples: samples of a live run in order; may be empty.
        newest: number of newest samples drawn; the means in the headings are taken over all samples.
        ended: whether the run has ended, so that nothing goes on now.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a sequence of samples.
    """
    shown = samples[-newest:]
    level = mean_alone(samples)
    times = [one.seconds for one in shown if one.seconds is not None]
    high = _high(times, level) or 1.0
    unit = time_unit(high)
    figure = make_subplots(
        rows=2,
        shared_xaxes=True,
        vertical_spacing=0.14,
        row_heights=[0.6, 0.4],
        subplot_titles=_headings(samples, shown, level, ended),
    )
    figure.update_annotations(x=0, xanchor="left", align="left", font_size=13)
    figure.add_traces(_iterations(shown, unit, dark), rows=1, cols=1)
    figure.add_trace(_level(shown, level, unit, dark), row=1, col=1)
    figure.add_trace(_bound(shown, level, unit), row=1, col=1)
    figure.add_trace(_throughput(shown, dark), row=2, col=1)
    figure.update_xaxes(range=_span(shown))
    figure.update_xaxes(title_text="time since the run began to measure (s)", row=2, col=1)
    figure.update_yaxes(title_text=f"iteration ({unit.name})", range=[0, AXIS * unit.of(high)], row=1, col=1)
    figure.update_yaxes(title_text="samples/s", rangemode="tozero", row=2, col=1)
    return theme.apply_theme(
        figure,
        title=f"Foreground and background{', live' * (not ended)}",
        plot_height=330,
        heading_height=26,
        dark=dark,
    )


def mean_alone(samples: Iterable[LiveSample]) -> float | None:
    """Returns the mean seconds of an iteration alone on active cores; None until one was measured."""
    alone = [one.seconds for one in samples if one.condition == "awake" and one.seconds is not None]
    return fmean(alone) if alone else None


def throughput(samples: Sequence[LiveSample]) -> list[tuple[float, float | None]]:
    """Returns the times, and the samples per second of all background jobs at those times.

    A job reports twice a second while it trains, and when it begins to rest; its throughput between two reports is
    taken as constant, and after the last one as before. None: the jobs are paused, or one of them has not reported
    since it resumed.
    """
    ends, rates = _rates_between_reports(samples)
    found: list[tuple[float, float | None]] = []
    for sample in samples:
        training = [job.rank for job in sample.background if job.state == "training"]
        known = [rates[rank][bisect_left(ends[rank], sample.time)] for rank in training]
        total = sum(rate for rate in known if rate is not None)
        found.append((sample.time, None if None in known or not known else total))
    return found


def _rates_between_reports(
    samples: Sequence[LiveSample],
) -> tuple[dict[int, list[float]], dict[int, list[float | None]]]:
    """Returns per rank the times of its job's reports, ascending, and the samples per second until each and since."""
    ends, rates = defaultdict[int, list[float]](list), defaultdict[int, list[float | None]](list)
    last: dict[int, tuple[float, int]] = {}
    newest: dict[int, float | None] = {}
    resting: dict[int, bool] = {}
    for sample in samples:
        for job in (job for job in sample.background if job.reason is None):
            rank, training = job.rank, job.state == "training"
            when, count = last.get(rank, (job.time, job.samples))
            if training and resting.get(rank, False):
                # It has trained on nothing since, and went on before the iteration, unless it has reported already.
                when = job.time if job.time > when else max(when, sample.time - (sample.seconds or 0.0))
                count = job.samples
                ends[rank].append(when)
                rates[rank].append(newest.get(rank))
                newest[rank] = None
            if job.time > when:
                newest[rank] = (job.samples - count) / (job.time - when)
                when, count = job.time, job.samples
                ends[rank].append(when)
                rates[rank].append(newest[rank])
            last[rank], resting[rank] = (when, count), not training
    for rank in last:
        rates[rank].append(newest.get(rank))
    return ends, rates


def _latest(samples: Sequence[LiveSample]) -> list[LiveSample]:
    """Returns the collocated iterations since the last change of the bound."""
    beside = [one for one in samples if one.condition == "collocated" and one.seconds is not None]
    return list(takewhile(lambda one: one.bound == beside[-1].bound, reversed(beside)))


def _iterations(samples: Sequence[LiveSample], unit: TimeUnit, dark: bool) -> list[go.Scatter]:
    """Returns a trace for each kind, also for empty ones, so that updates of a figure only change values."""
    colours = {"collocated": theme.GREEN, "learning": theme.PURPLE, "alone": theme.neutral(dark=dark)}
    traces = []
    for name in dict.fromkeys(name for name, _ in _MARKERS.values()):
        kinds = [kind for kind, (of, _) in _MARKERS.items() if of == name]
        found = [one for one in samples if one.condition in kinds and one.seconds is not None]
        traces.append(
            go.Scatter(
                name=name,
                mode="markers",
                x=[one.time for one in found],
                y=[unit.of(one.seconds or 0.0) for one in found],
                marker={
                    "color": colours.get(name, theme.soft(dark=dark)),
                    "symbol": [_MARKERS[one.condition][1] for one in found],
                    "size": 5,
                },
                customdata=[_hover_text(one) for one in found],
                hovertemplate="%{customdata}, measured<extra></extra>",
            )
        )
    return traces


def _hover_text(sample: LiveSample) -> str:
    text = f"<b>{sample.condition}</b><br>iteration {sample.iteration}: {format_seconds(sample.seconds or 0.0)}"
    if sample.share is None:
        return text
    share = "none, for comparison" if not sample.share else f"{100 * sample.share:.0f} % of the time"
    bound = "" if sample.bound is None else f", bound {100 * sample.bound:g} %"
    return f"{text}<br>allowed to the background: {share}{bound}"


def _level(samples: Sequence[LiveSample], level: float | None, unit: TimeUnit, dark: bool) -> go.Scatter:
    return go.Scatter(
        name="mean alone",
        mode="lines",
        x=[] if level is None else _span(samples),
        y=[] if level is None else [unit.of(level)] * 2,
        line={"color": theme.neutral(dark=dark), "width": 1.5},
        hovertemplate=f"alone {format_seconds(level or 0.0)}, mean, measured<extra></extra>",
    )


def _bound(samples: Sequence[LiveSample], level: float | None, unit: TimeUnit) -> go.Scatter:
    """Returns the bound over time, a step at each change, with gaps while the foreground is alone."""
    held = [] if level is None else [(one.time, one.bound) for one in samples if one.condition != "background alone"]
    return go.Scatter(
        name="bound",
        mode="lines",
        x=[time for time, _ in held],
        y=[None if bound is None else unit.of((level or 0.0) * (1 + bound)) for _, bound in held],
        line={"color": theme.VERMILLION, "width": 2, "dash": "dash", "shape": "hv"},
        customdata=[None if bound is None else f"{100 * bound:g} %" for _, bound in held],
        hovertemplate="bound on the mean: %{customdata} above alone<extra></extra>",
        # Without one none can be set while the run goes on.
        showlegend=any(bound is not None for _, bound in held),
    )


def _throughput(samples: Sequence[LiveSample], dark: bool) -> go.Scatter:
    found = throughput(samples)
    return go.Scatter(
        name="background",
        # A phase may have one sample, of which there is no line.
        mode="lines+markers",
        marker={"size": 4},
        x=[time for time, _ in found],
        y=[rate for _, rate in found],
        line={"color": theme.colour("background", dark=dark), "width": 2, "shape": "hv"},
        hovertemplate="%{y:,.3~r} samples/s at %{x:.1f} s, measured<extra></extra>",
        showlegend=False,
    )


def _headings(
    samples: Sequence[LiveSample], shown: Sequence[LiveSample], level: float | None, ended: bool
) -> list[str]:
    """Returns the mean of all iterations under the present bound against the level, and the throughput shown last."""
    none = f"Foreground: no iteration alone{' yet' * (not ended)}"
    above = none if level is None else f"Foreground: alone {format_seconds(level)}"
    latest = _latest(samples)
    if level is not None and latest:
        change = fmean(one.seconds or 0.0 for one in latest) / level - 1
        bound = latest[0].bound
        above += f", collocated {format_percent(change)}" + (
            "" if bound is None else f" by a bound of {100 * bound:g} %"
        )
    gone = [f"rank {job.rank} has ended" for job in (samples[-1].background if samples else ()) if job.reason]
    return [above, f"Background: {', '.join([_rate(throughput(shown), ended), *gone])}"]


def _rate(rates: Sequence[tuple[float, float | None]], ended: bool) -> str:
    """Returns the throughput now; of a run that has ended, the last one that is known."""
    if ended:
        last = next((rate for _, rate in reversed(rates) if rate is not None), None)
        return "no throughput measured" if last is None else f"last {format_rate(last)} samples/s"
    now = rates[-1][1] if rates else None
    return "rests or begins" if now is None else f"{format_rate(now)} samples/s now"


def _high(times: Sequence[float], level: float | None) -> float:
    """Returns the upper end of the time axis."""
    ordered = sorted(times)
    return max(ordered[int(0.95 * (len(ordered) - 1))] if ordered else 0.0, level or 0.0)


def _span(samples: Sequence[LiveSample]) -> list[float]:
    """Returns the visible range of time; a second at least, so that the axis does not jump at the start."""
    if not samples:
        return [0.0, 1.0]
    return [samples[0].time, max(samples[-1].time, samples[0].time + 1.0)]
