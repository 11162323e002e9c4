"""How long layers take at each per-GPU batch size: what was measured, the lines between, and the line beyond."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.labels import TimeUnit, escape, shorten, time_unit
from deeppool.profiling.check import line_error
from deeppool.profiling.table import Profile
from deeppool.units import format_percent, format_seconds

BEYOND = 2
"""Times the largest batch: how far the dashed line goes."""
STEPS = 24
"""Points of a line, which is straight only on axes that are not logarithmic."""
MOST = 8
"""Layers that can be told apart."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
_DASHED = "dash"


@dataclass(frozen=True, slots=True)
class _Curve:
    name: str
    time: Callable[[int], tuple[float, float]]
    """Seconds and their spread at a batch size, as a share."""
    colour: str
    symbol: str


def batch_curves(profile: Profile, layers: Sequence[int | str] = (), *, dark: bool = False) -> go.Figure:
    """Seconds over the per-GPU batch, both logarithmic: points with their spread, lines between, dashed beyond.

    One layer is shown as forward, backward and their sum, several by their sums.

    Args:
        profile: whose times are drawn; the subtitle says whether they were measured or estimated.
        layers: indices or names, up to :data:`MOST`; none for the whole iteration, beside whose sum of layers the
            measured whole iterations stand, where there are some.
        dark: for a dark page.

    Raises:
        InvalidValueError: not a profile, a layer that it does not have, or too many.
    """
    if not isinstance(profile, Profile):
        raise InvalidValueError(f"batch_curves cannot draw a {type(profile).__name__}, it accepts a Profile")
    indices = [_find(profile, layer) for layer in dict.fromkeys(layers)]
    if len(indices) > MOST:
        raise InvalidValueError(f"at most {MOST} layers can be told apart, got {len(indices)} (choose fewer)")
    curves = _curves(profile, indices, dark)
    sizes = profile.batch_sizes
    unit = time_unit(max(curve.time(sizes[-1])[0] for curve in curves))
    figure = go.Figure()
    for curve in curves:
        figure.add_traces(list(_draw(curve, profile, unit)))
    if not indices and profile.checks:
        figure.add_trace(_whole(profile, unit))
    figure.update_xaxes(
        title_text="per-GPU batch (samples, log)",
        type="log",
        tickvals=[*sizes, BEYOND * sizes[-1]],
        ticktext=[*map(str, sizes), str(BEYOND * sizes[-1])],
        range=[math.log10(sizes[0] / 1.15), math.log10(BEYOND * sizes[-1] * 1.15)],
    )
    figure.update_yaxes(title_text=f"time ({unit.name}, log)", type="log", minor_ticks="outside", dtick="D2")
    return theme.dress(
        figure,
        title=_title(profile, indices),
        subtitle=_subtitle(profile),
        plot_height=330,
        heading_height=26 * (len(curves) > 4),
        dark=dark,
    )


def _find(profile: Profile, layer: int | str) -> int:
    names = [x.name for x in profile.graph.layers]
    if isinstance(layer, str) and layer in names:
        return names.index(layer)
    if isinstance(layer, int) and 0 <= layer < len(names):
        return layer
    raise InvalidValueError(
        f"{profile.graph.model} has no layer {layer!r}: it has {len(names)}, from {names[0]} to {names[-1]}"
    )


def _curves(profile: Profile, indices: Sequence[int], dark: bool) -> list[_Curve]:
    if not indices:
        return [_Curve("sum of the layers", lambda batch: _sum(profile, batch), theme.neutral(dark=dark), SYMBOLS[0])]
    if len(indices) == 1:
        (index,) = indices
        return [
            _Curve(name, lambda batch, part=name: _part(profile, index, part, batch), colour, symbol)  # type: ignore[misc]
            for name, colour, symbol in (
                ("forward + backward", theme.neutral(dark=dark), SYMBOLS[0]),
                ("backward", theme.colour("backward"), SYMBOLS[1]),
                ("forward", theme.colour("forward"), SYMBOLS[2]),
            )
        ]
    # The palette's hues mean kinds of work; layers are told apart by symbols, and by steps of lightness.
    shades = theme.ramp(dark=dark)
    return [
        _Curve(
            escape(shorten(profile.graph.layers[index].name)),
            lambda batch, index=index: _part(profile, index, "forward + backward", batch),  # type: ignore[misc]
            shades[-1 - place * len(shades) // MOST],
            SYMBOLS[place],
        )
        for place, index in enumerate(indices)
    ]


def _part(profile: Profile, index: int, part: str, batch: int) -> tuple[float, float]:
    time = profile.time(index, batch)
    seconds = {"forward": time.forward, "backward": time.backward}.get(part, time.total)
    # The spread is of the sum.
    return seconds, time.spread if part == "forward + backward" else 0.0


def _sum(profile: Profile, batch: int) -> tuple[float, float]:
    return profile.iteration_time(batch), 0.0


def _draw(curve: _Curve, profile: Profile, unit: TimeUnit) -> Iterator[go.Scatter]:
    """A line between the points, one beyond them, and the points, which are one entry of the legend."""
    sizes = profile.batch_sizes
    estimated = profile.provenance == "estimated"
    for first, last, dash, name in (
        (sizes[0], sizes[-1], "solid", "interpolated"),
        (sizes[-1], BEYOND * sizes[-1], _DASHED, "extrapolated"),
    ):
        batches = _between(first, last)
        yield go.Scatter(
            name=f"{curve.name}, {name}",
            mode="lines",
            x=batches,
            y=[unit.of(curve.time(batch)[0]) for batch in batches],
            line={"color": curve.colour, "width": 1.6, "dash": dash},
            legendgroup=curve.name,
            showlegend=False,
            hovertemplate=f"<b>{curve.name}</b><br>batch %{{x}}: %{{y:.4g}} {unit.name}, {name}<extra></extra>",
        )
    times = [curve.time(batch) for batch in sizes]
    yield go.Scatter(
        name=f"{curve.name}, {profile.provenance}",
        mode="markers",
        x=list(sizes),
        y=[unit.of(seconds) for seconds, _ in times],
        error_y={
            "array": [unit.of(seconds * spread) for seconds, spread in times],
            "visible": any(spread for _, spread in times),
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
            [format_seconds(seconds), f", spread {100 * spread:.1f} %" * bool(spread)] for seconds, spread in times
        ],
        hovertemplate=(
            f"<b>{curve.name}</b><br>batch %{{x}}: %{{customdata[0]}}, {profile.provenance}%{{customdata[1]}}"
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


def _between(first: int, last: int) -> list[int]:
    """Whole batch sizes at equal steps of a logarithm."""
    steps = [round(first * (last / first) ** (step / STEPS)) for step in range(STEPS + 1)]
    return sorted({*steps, first, last})


def _title(profile: Profile, indices: Sequence[int]) -> str:
    model = escape(profile.graph.model)
    if not indices:
        return f"{model}: an iteration on one GPU"
    if len(indices) == 1:
        return f"{escape(profile.graph.layers[indices[0]].name)} of {model}"
    return f"{len(indices)} layers of {model}"


def _subtitle(profile: Profile) -> str:
    return (
        f"<b>{profile.provenance}</b> on {escape(profile.device_name)} ({profile.precision}, "
        f"{escape(profile.date)}); dashed beyond batch {profile.batch_sizes[-1]}: "
        f"{line_error(profile.batch_sizes, profile.extrapolation_error)}"
    )
