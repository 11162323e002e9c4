"""A short kernel behind a long queue: what the priority of its stream does, and what it does not."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.stream_priorities import PriorityEffect
from deeppool.figures import theme
from deeppool.figures.formatting import escape


@typed
def stream_priorities(effects: Mapping[str, Sequence[PriorityEffect]], where: str) -> go.Figure:
    """Draws the time until a short graph has ended, behind two kinds of long kernels, by its priorities.

    Args:
        effects: effects by a name of what they were measured with.
        where: what the times are and of which device, for example ``emulated on h200``.

    Raises:
        InvalidValueError: no effects.
    """
    if not any(effects.values()):
        raise InvalidValueError("stream_priorities cannot draw nothing, it accepts PriorityEffects by name")
    figure = go.Figure()
    rows = [(f"{effect.background}, {name}", effect) for name, found in effects.items() for effect in found]
    shades = {"high": theme.BLUE, "low": theme.neutral()}
    for captured, replayed in dict.fromkeys((effect.captured, effect.replayed) for _, effect in rows):
        chosen = [(row, x) for row, x in rows if (x.captured, x.replayed) == (captured, replayed)]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=f"captured at {captured}, replayed at {replayed} priority",
                y=[escape(row) for row, _ in chosen],
                x=[1e6 * effect.seconds for _, effect in chosen],
                marker={"color": shades[captured]},
                # Of the trace, as the legend has it: it leaves out a marker's.
                opacity=1.0 if captured == replayed else 0.6,
                hovertemplate="%{y}: %{x:.0f} us<extra></extra>",
            )
        )
    alone = 1e6 * min(effect.alone for _, effect in rows)
    ticks = theme.log_ticks(1e6 * effect.seconds for _, effect in rows)
    figure.update_xaxes(title_text="time until the short graph has ended (us, log)", type="log", **ticks)
    return theme.apply_theme(
        figure,
        title="A short graph behind ten long kernels of low priority",
        subtitle=f"{escape(where)}; alone it takes {alone:.0f} us",
        plot_height=90 * len({row for row, _ in rows}),
    ).update_layout(barmode="group")
