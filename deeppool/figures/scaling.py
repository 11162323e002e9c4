"""Speed-up of the time to accuracy over GPUs and network speeds."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal, get_args

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape, shorten_text
from deeppool.planning.studies.scaling_record import (
    PARALLELISMS,
    Parallelism,
    ScalingPoint,
    ScalingStudy,
    Strategy,
    format_hours,
)
from deeppool.units import format_bit_rate, format_count, format_rate, format_seconds

_COLOURS: dict[Strategy, str] = {"weak": theme.ORANGE, "strong": theme.BLUE, "batch-optimal": theme.GREEN}
_WIDTHS: dict[Strategy, float] = {"batch-optimal": 4, "strong": 2, "weak": 2}
"""Line widths in drawing order: that of batch-optimal scaling is wide, so that a line on top of it remains visible."""
_DASHES: dict[Parallelism, str] = {"data-parallel": "dash", "burst-parallel": "solid"}
_NAME, _STEPS = 48, 80
"""Characters of the steps' name, and of name and source, that fit beside the rest of the subtitle."""
_TICKS = 6
"""GPU counts that a panel has room for."""

Place = Callable[[ScalingPoint], float]
Panel = Literal["speed-up", "batch", "network"]
PANELS: tuple[Panel, ...] = get_args(Panel)
"""Panels, which are DeepPool's figures 1, 2 and 3."""
_SHARES: dict[Panel, float] = {"speed-up": 0.42, "batch": 0.26, "network": 0.32}
"""Shares of the width."""


@typed
def scaling(
    study: ScalingStudy,
    *,
    bandwidth: float | None = None,
    gpus: int | None = None,
    panels: Sequence[Panel] = PANELS,
    dark: bool = False,
) -> go.Figure:
    """Draws speed-up over GPUs, the best per-GPU batch at each GPU count, and speed-up over network speed.

    DeepPool's figures 1, 2 and 3 side by side: colours are ways to scale, dashes are data parallelism, open marks
    use layer times above the profile's largest batch. A line ends where the study has no points.

    Args:
        study: study to draw.
        bandwidth: bandwidth of the first two panels, one of the study's; None: the fastest.
        gpus: GPU count of the last panel, one of the study's; None: the largest that has most lines.
        panels: names of the panels, from left to right.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a study, a speed or GPU count that it does not have, or no such panel.
    """
    speed = study.bandwidths[-1] if bandwidth is None else bandwidth
    count = _fullest_count(study) if gpus is None else gpus
    if speed not in study.bandwidths:
        known = ", ".join(f"{known:g}" for known in study.bandwidths)
        raise InvalidValueError(f"bandwidth must be one of the study's, {known} bytes/s, got {speed:g}")
    if count not in study.gpu_counts:
        raise InvalidValueError(
            f"gpus must be one of the study's, {', '.join(map(str, study.gpu_counts))}, got {count}"
        )
    if not panels:
        raise InvalidValueError(f"panels must be some of {', '.join(PANELS)}, got none")
    headings: dict[Panel, str] = {
        "speed-up": f"Speed-up at {format_bit_rate(speed)}",
        "batch": f"Batch-optimal at {format_bit_rate(speed)}",
        "network": f"Speed-up on {format_count(count, 'GPU')}",
    }
    chosen: dict[Panel, list[ScalingPoint]] = {
        "speed-up": [point for point in study.points if point.bandwidth == speed],
        "batch": [x for x in study.points if x.bandwidth == speed and x.strategy == "batch-optimal"],
        "network": [point for point in study.points if point.gpus == count],
    }
    figure = make_subplots(
        cols=len(panels),
        column_widths=[_SHARES[panel] for panel in panels],
        horizontal_spacing=0.075,
        subplot_titles=[headings[panel] for panel in panels],
    )
    figure.update_annotations(font_size=14)
    _draw_legend(figure, [point for panel in panels for point in chosen[panel]], dark)
    for column, panel in enumerate(panels, start=1):
        if panel == "speed-up":
            _draw_linear(figure, study, column, dark)
        place: Place = (lambda point: point.bandwidth * 8 / 1e9) if panel == "network" else attrgetter("gpus")
        value: Place = attrgetter("per_gpu_batch" if panel == "batch" else "speedup")
        for strategy in _WIDTHS:
            for parallelism in PARALLELISMS:
                line = [x for x in chosen[panel] if (x.strategy, x.parallelism) == (strategy, parallelism)]
                if line:
                    figure.add_trace(_line(line, place, value), row=1, col=column)
        _label_axes(figure, study, panel, chosen[panel], column)
    fewest = f"{study.gpu_counts[0]} to " if len(study.gpu_counts) > 1 else ""
    return theme.apply_theme(
        figure,
        title=f"{escape(study.model)} to accuracy on {fewest}{format_count(study.gpu_counts[-1], 'GPU')}",
        subtitle=_subtitle(study),
        plot_height=340,
        heading_height=24,
        dark=dark,
    )


def _fullest_count(study: ScalingStudy) -> int:
    lines = {count: sum(point.gpus == count for point in study.points) for count in study.gpu_counts}
    return max(study.gpu_counts, key=lambda count: (lines[count], count))


def _line(points: Sequence[ScalingPoint], place: Place, value: Place) -> go.Scatter:
    first = points[0]
    colour = _COLOURS[first.strategy]
    return go.Scatter(
        name=f"{first.strategy}, {first.parallelism}",
        legendgroup=first.strategy,
        showlegend=False,
        mode="lines+markers",
        x=[place(point) for point in points],
        y=[value(point) for point in points],
        line={"color": colour, "width": _WIDTHS[first.strategy], "dash": _DASHES[first.parallelism]},
        marker={"color": colour, "size": 7, "symbol": [_symbol(point.extrapolated) for point in points]},
        customdata=[_hover(point) for point in points],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    )


def _symbol(extrapolated: bool) -> str:
    return "circle-open" if extrapolated else "circle"


def _hover(point: ScalingPoint) -> list[str]:
    far = ", extrapolated" * point.extrapolated
    return [
        f"{point.strategy}, {point.parallelism}: {point.speedup:.2f}x",
        f"{format_count(point.gpus, 'GPU')} at {format_bit_rate(point.bandwidth)}, batch {point.global_batch}, "
        f"{point.per_gpu_batch} per GPU",
        f"{point.steps} steps of {format_seconds(point.iteration_time)}{far}: {format_hours(point.time_to_accuracy)}, "
        f"{format_rate(point.gpu_seconds / 3600)} GPU hours",
    ]


def _draw_legend(figure: go.Figure, shown: list[ScalingPoint], dark: bool) -> None:
    """Draws legend entries for each colour, dash and marker that is shown, instead of every combination."""
    plain = {"color": theme.neutral(dark=dark), "width": 2}
    keys: list[tuple[str, dict[str, object]]] = [
        (strategy, {"legendgroup": strategy, "mode": "lines", "line": {"color": colour, "width": 2}})
        for strategy, colour in _COLOURS.items()
        if any(point.strategy == strategy for point in shown)
    ]
    keys += [(parallelism, {"mode": "lines", "line": {**plain, "dash": dash}}) for parallelism, dash in _DASHES.items()]
    if any(point.extrapolated for point in shown):
        mark = {"color": theme.neutral(dark=dark), "size": 7, "symbol": _symbol(True)}
        keys.append(("layer times extrapolated", {"mode": "markers", "marker": mark}))
    for name, look in keys:
        figure.add_trace(go.Scatter(name=name, x=[None], y=[None], hoverinfo="skip", **look), row=1, col=1)


def _draw_linear(figure: go.Figure, study: ScalingStudy, column: int, dark: bool) -> None:
    ends = [study.gpu_counts[0], study.gpu_counts[-1]]
    line = {"color": theme.soft(dark=dark), "width": 1.5, "dash": "dot"}
    linear = go.Scatter(name="linear", mode="lines", x=ends, y=ends, line=line, hoverinfo="skip")
    figure.add_trace(linear, row=1, col=column)


def _label_axes(figure: go.Figure, study: ScalingStudy, panel: Panel, shown: list[ScalingPoint], column: int) -> None:
    if panel == "network":
        gigabits = [8 * speed / 1e9 for speed in study.bandwidths]
        names = [format_bit_rate(speed) for speed in study.bandwidths]
        along = {"title_text": "link of a GPU (log)", "tickvals": gigabits, "ticktext": names, "tickangle": 0}
    else:
        step = -(-len(study.gpu_counts) // _TICKS)
        along = {"title_text": "GPUs (log)", "tickvals": study.gpu_counts[::-step][::-1]}
    figure.update_xaxes(type="log", row=1, col=column, **along)
    if panel == "batch":
        figure.update_yaxes(type="log", dtick=math.log10(2), row=1, col=column, title_text="samples per GPU (log)")
    else:
        linear = study.gpu_counts if panel == "speed-up" else ()
        ticks = theme.log_ticks([*linear, *(point.speedup for point in shown)])
        figure.update_yaxes(type="log", row=1, col=column, title_text="speed-up over one GPU (log)", **ticks)


def _subtitle(study: ScalingStudy) -> str:
    name = shorten_text(study.steps_name, _NAME)
    source = shorten_text(study.steps_source, _STEPS - len(name))
    return (
        f"<b>predicted</b> from {study.provenance} layer times ({escape(study.device_name)}), all-reduce model "
        f"{study.network_model}, {study.overlap}; steps of {escape(name)} ({escape(source)})"
    )
