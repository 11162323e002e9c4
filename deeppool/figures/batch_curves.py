"""Layer times over the per-GPU batch size: measured points, interpolated and extrapolated lines."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.base.number_checks import whole_number
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import TimeUnit, escape, shorten, time_unit
from deeppool.profiling.iteration_check import extrapolation_accuracy
from deeppool.profiling.table import Profile
from deeppool.units import format_percent, format_seconds

BEYOND = 2
"""Largest batch of the extrapolated line, as a multiple of the largest measured one."""
STEPS = 24
"""Points of a line, which is curved on logarithmic axes."""
MOST = 8
"""Maximum number of layers that remain distinguishable."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
NAME_LENGTH = 26
"""Characters of a name in the legend; more where shortened names would be equal."""


@dataclass(frozen=True, slots=True)
class _Curve:
    name: str
    time: Callable[[int], float]
    """Seconds at a batch size."""
    colour: str
    symbol: str
    spread: tuple[float, ...] = ()
    """Relative spread at each of the profile's sizes; empty if unknown."""


@typed
def batch_curves(profile: Profile, layers: Sequence[int | str] = (), *, dark: bool = False) -> go.Figure:
    """Draws time over the per-GPU batch on logarithmic axes: points with spread, solid and dashed (extrapolated) lines.

    One layer is drawn as forward, backward and their sum, several layers as their sums.

    Args:
        profile: profile to draw; the subtitle states whether its times were measured or estimated.
        layers: indices or names, up to :data:`MOST`; empty for the whole iteration, drawn as the sum of the layers
            and, if there are any, measured whole iterations.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: not a profile, an unknown layer, or too many layers.
    """
    indices = list(dict.fromkeys(_find(profile, layer) for layer in layers))
    if len(indices) > MOST:
        raise InvalidValueError(f"at most {MOST} layers can be distinguished, got {len(indices)} (choose fewer)")
    curves = _curves(profile, indices, dark)
    sizes = profile.batch_sizes
    unit = time_unit(max(curve.time(sizes[-1]) for curve in curves))
    length = _distinct_length([curve.name for curve in curves])
    figure = go.Figure()
    for curve in curves:
        figure.add_traces(list(_draw(curve, escape(shorten(curve.name, length)), profile, unit)))
    if not indices and profile.checks:
        figure.add_trace(_whole(profile, unit))
    figure.update_xaxes(
        title_text="per-GPU batch (samples, log)",
        type="log",
        tickvals=[*sizes, BEYOND * sizes[-1]],
        ticktext=[*map(str, sizes), str(BEYOND * sizes[-1])],
        range=[math.log10(sizes[0] / 1.15), math.log10(BEYOND * sizes[-1] * 1.15)],
    )
    ticks = theme.log_ticks(end for trace in figure.data for end in _ends(trace))
    figure.update_yaxes(title_text=f"time ({unit.name}, log)", type="log", minor_ticks="outside", **ticks)
    return theme.apply_theme(
        figure,
        title=_title(profile, indices),
        subtitle=_subtitle(profile),
        plot_height=330,
        heading_height=26 * (len(curves) > 4),
        dark=dark,
    )


def _find(profile: Profile, layer: int | str) -> int:
    names = [x.name for x in profile.graph.layers]
    index = names.index(layer) if layer in names else layer
    if not isinstance(index, str) and 0 <= (index := whole_number("a layer", index, None)) < len(names):
        return index
    raise InvalidValueError(
        f"{profile.graph.model} has no layer {index!r}: it has {len(names)}, from {names[0]} to {names[-1]}"
    )


def _curves(profile: Profile, indices: Sequence[int], dark: bool) -> list[_Curve]:
    if not indices:
        return [_Curve("sum of the layers", profile.iteration_time, theme.neutral(dark=dark), SYMBOLS[0])]
    if len(indices) == 1:
        return _directions(profile, indices[0], dark)
    # The palette's hues stand for kinds of work; layers are distinguished by symbol and lightness.
    shades = theme.ramp(dark=dark)[:1:-1]
    return [
        _Curve(
            profile.graph.layers[index].name,
            lambda batch, index=index: profile.time(index, batch).total,  # type: ignore[misc]
            shades[place * (len(shades) - 1) // (len(indices) - 1)],
            SYMBOLS[place],
            _spreads(profile, index),
        )
        for place, index in enumerate(indices)
    ]


def _directions(profile: Profile, index: int, dark: bool) -> list[_Curve]:
    """Returns the curves of one layer: forward, backward and their sum; only the sum has a measured spread."""
    neutral = theme.neutral(dark=dark)
    return [
        _Curve(
            "forward + backward",
            lambda batch: profile.time(index, batch).total,
            neutral,
            SYMBOLS[0],
            _spreads(profile, index),
        ),
        _Curve("backward", lambda batch: profile.time(index, batch).backward, theme.colour("backward"), SYMBOLS[1]),
        _Curve("forward", lambda batch: profile.time(index, batch).forward, theme.colour("forward"), SYMBOLS[2]),
    ]


def _spreads(profile: Profile, index: int) -> tuple[float, ...]:
    return tuple(profile.spread(index, batch) or 0.0 for batch in profile.batch_sizes)


def _distinct_length(names: Sequence[str]) -> int:
    """Returns the length to which names can be shortened and still differ."""
    whole = len(set(names))
    return next(n for n in itertools.count(NAME_LENGTH) if len({shorten(name, n) for name in names}) == whole)


def _draw(curve: _Curve, label: str, profile: Profile, unit: TimeUnit) -> Iterator[go.Scatter]:
    """Yields the traces of a curve: interpolated line, extrapolated line, and points, which have the legend entry."""
    whole_name = escape(curve.name)
    sizes = profile.batch_sizes
    estimated = profile.provenance == "estimated"
    for first, last, dash, name in (
        (sizes[0], sizes[-1], "solid", "interpolated"),
        (sizes[-1], BEYOND * sizes[-1], "dash", "extrapolated"),
    ):
        batches = _between(first, last)
        yield go.Scatter(
            name=f"{label}, {name}",
            mode="lines",
            x=batches,
            y=[unit.of(curve.time(batch)) for batch in batches],
            line={"color": curve.colour, "width": 1.6, "dash": dash},
            legendgroup=curve.name,
            showlegend=False,
            hovertemplate=f"<b>{whole_name}</b><br>batch %{{x}}: %{{y:,.4~r}} {unit.name}, {name}<extra></extra>",
        )
    times = [curve.time(batch) for batch in sizes]
    spread = curve.spread or (0.0,) * len(sizes)
    yield go.Scatter(
        name=f"{label}, {profile.provenance}",
        mode="markers",
        x=list(sizes),
        y=[unit.of(seconds) for seconds in times],
        error_y={
            "array": [unit.of(seconds * share) for seconds, share in zip(times, spread, strict=True)],
            "visible": any(spread),
            "thickness": 1.2,
            "width": 4,
        },
        marker={
            "color": curve.colour,
            "symbol": curve.symbol + "-open" * estimated,
            "size": 9,
            "line": {"width": 1.5, "color": curve.colour},
        },
        legendgroup=curve.name,
        customdata=[
            [format_seconds(seconds), f", spread {100 * share:.1f} %" * bool(share)]
            for seconds, share in zip(times, spread, strict=True)
        ],
        hovertemplate=(
            f"<b>{whole_name}</b><br>batch %{{x}}: %{{customdata[0]}}, {profile.provenance}%{{customdata[1]}}"
            "<extra></extra>"
        ),
    )


def _whole(profile: Profile, unit: TimeUnit) -> go.Scatter:
    return go.Scatter(
        name="whole iteration, measured",
        mode="markers",
        x=[check.batch for check in profile.checks],
        y=[unit.of(check.iteration) for check in profile.checks],
        marker={
            "color": theme.VERMILLION,
            "symbol": "x-thin",
            "size": 10,
            "line": {"width": 2, "color": theme.VERMILLION},
        },
        error_y={
            "array": [unit.of(check.iteration * check.spread) for check in profile.checks],
            "thickness": 1.2,
            "width": 4,
        },
        customdata=[
            [format_seconds(check.iteration), f"the layers add up to {format_percent(check.deviation)}"]
            for check in profile.checks
        ],
        hovertemplate=(
            "<b>whole iteration</b><br>batch %{x}: %{customdata[0]}, measured<br>%{customdata[1]}<extra></extra>"
        ),
    )


def _ends(trace: go.Scatter) -> Iterator[float]:
    """Yields the values of a trace, and the ends of their error bars."""
    yield from trace.y
    for value, error in zip(trace.y, trace.error_y.array or (), strict=False):
        yield from (value - error, value + error)


def _between(first: int, last: int) -> list[int]:
    """Returns the integer batch sizes spaced evenly on a logarithmic axis."""
    return sorted({round(first * (last / first) ** (step / STEPS)) for step in range(STEPS + 1)})


def _title(profile: Profile, indices: Sequence[int]) -> str:
    model = escape(profile.graph.model)
    if not indices:
        return f"{model}: an iteration on one GPU"
    if len(indices) == 1:
        return f"{escape(profile.graph.layers[indices[0]].name)} of {model}"
    return f"{len(indices)} layers of {model}"


def _subtitle(profile: Profile) -> str:
    return (
        f"<b>{profile.provenance}</b> on {escape(profile.device_name)}, {profile.precision}; "
        f"dashed beyond batch {profile.batch_sizes[-1]}: "
        f"{extrapolation_accuracy(profile.batch_sizes, profile.extrapolation_error)}"
    )
