"""Speed-up of each layer under strong scaling, as in DeepPool's figure 5."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.formatting import escape, shorten
from deeppool.profiling.table import Profile
from deeppool.units import format_seconds


@typed
def layer_speedups(profile: Profile, *, gpus: int = 64, global_batch: int = 128) -> go.Figure:
    """Draws the speed-up of every layer from one GPU to all GPUs at a fixed global batch; computation only.

    Args:
        profile: layer times at ``global_batch`` and at ``global_batch / gpus``.
        gpus: among which the batch is divided.
        global_batch: samples of an iteration.

    Raises:
        InvalidValueError: the batch cannot be divided among the GPUs.
        MissingProfileError: the profile has no batch as small.
    """
    found = speedups(profile, gpus=gpus, global_batch=global_batch)
    shares = per_gpu_batch(gpus, global_batch)
    figure = go.Figure(
        go.Bar(
            x=list(range(len(found))),
            y=list(found.values()),
            marker={"color": theme.BLUE},
            customdata=[
                [escape(name), *(format_seconds(profile.time(n, batch).total) for batch in (global_batch, shares))]
                for n, name in enumerate(found)
            ],
            hovertemplate="<b>%{customdata[0]}</b>: %{y:.1f}x<br>"
            f"%{{customdata[1]}} at {global_batch} samples, %{{customdata[2]}} at {shares}, "
            f"{profile.provenance}<extra></extra>",
        )
    )
    figure.add_hline(
        y=gpus,
        line={"color": theme.neutral(), "width": 1.5, "dash": "dot"},
        annotation={"text": f"linear: {gpus}x", "yanchor": "bottom", "showarrow": False},
        annotation_position="top left",
    )
    figure.update_xaxes(tickvals=list(range(len(found))), ticktext=[shorten(name, 20) for name in found], tickangle=-60)
    highest = max(gpus, *found.values())
    figure.update_yaxes(title_text="speed-up (×)", range=[0, 1.12 * highest])
    return theme.apply_theme(
        figure,
        title=f"Strong-scaling each layer of {escape(profile.graph.model)}",
        subtitle=f"from {global_batch} samples on one GPU to {shares} on each of {gpus}; <b>{profile.provenance}</b> "
        f"layer times ({escape(profile.device_name)}, {profile.precision}), without transfers",
        plot_height=380,
    )


def speedups(profile: Profile, *, gpus: int, global_batch: int) -> dict[str, float]:
    """Returns the speed-up by layer, with a part of the global batch relative to all of it.

    Raises:
        InvalidValueError: the batch cannot be divided among the GPUs.
        MissingProfileError: the profile has no batch as small.
    """
    share = per_gpu_batch(gpus, global_batch)
    return {
        layer.name: profile.time(n, global_batch).total / profile.time(n, share).total
        for n, layer in enumerate(profile.graph.layers)
    }


def per_gpu_batch(gpus: int, global_batch: int) -> int:
    """Returns the samples of each GPU.

    Raises:
        InvalidValueError: the batch cannot be divided among the GPUs.
    """
    if gpus < 1 or global_batch < 1 or global_batch % gpus:
        raise InvalidValueError(
            f"global_batch must be a multiple of the GPUs, got {global_batch} on {gpus} (for example {max(gpus, 1)})"
        )
    return global_batch // gpus
