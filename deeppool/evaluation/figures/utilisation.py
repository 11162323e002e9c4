"""Throughput at small batches relative to the best batch, as in DeepPool's figure 4."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.profiling.table import Profile
from deeppool.units import format_seconds

_COLOURS = theme.OF_MANY[:4]


@typed
def utilisation(*profiles: Profile) -> go.Figure:
    """Draws samples per second at each per-GPU batch, as a percentage of those at the best batch of the same profile.

    Args:
        profiles: one line each; measured ones solid, estimated ones dashed.

    Raises:
        InvalidValueError: no profile.
    """
    if not profiles:
        raise InvalidValueError("utilisation got no profile to draw (make one by dp.profile or dp.estimate)")
    figure = go.Figure([_line(profile, _COLOURS[n % len(_COLOURS)]) for n, profile in enumerate(profiles)])
    sizes = sorted({size for profile in profiles for size in profile.batch_sizes})
    figure.update_xaxes(title_text="samples per GPU (log)", type="log", tickvals=sizes)
    figure.update_yaxes(title_text="throughput (% of the best batch's)", range=[0, 104])
    names = ", ".join(dict.fromkeys(escape(profile.graph.model) for profile in profiles))
    return theme.apply_theme(
        figure,
        title=f"Utilisation by batch: {names}",
        subtitle="; ".join(_provenance(profile) for profile in profiles),
        plot_height=340,
    )


def relative_throughput(profile: Profile) -> dict[int, float]:
    """Returns the samples per second relative to the profile's best batch, by per-GPU batch."""
    layers = range(len(profile.graph.layers))
    speeds = {b: b / sum(profile.time(layer, b).total for layer in layers) for b in profile.batch_sizes}
    return {batch: speed / max(speeds.values()) for batch, speed in speeds.items()}


def _line(profile: Profile, colour: str) -> go.Scatter:
    points = relative_throughput(profile)
    times = [sum(profile.time(x, batch).total for x in range(len(profile.graph.layers))) for batch in points]
    return go.Scatter(
        name=f"{escape(profile.device_name)}, {profile.provenance}",
        mode="lines+markers",
        x=list(points),
        y=[100 * share for share in points.values()],
        line={"color": colour, "width": 2, "dash": "solid" if profile.provenance == "measured" else "dash"},
        marker={"size": 7},
        customdata=[format_seconds(taken) for taken in times],
        hovertemplate=f"<b>%{{x}} samples</b>: %{{y:.0f}} %<br>%{{customdata}}, {profile.provenance}<extra></extra>",
    )


def _provenance(profile: Profile) -> str:
    shape = "x".join(map(str, profile.graph.input_shape))
    return f"<b>{profile.provenance}</b> layer times at {shape} ({escape(profile.device_name)}, {profile.precision})"
