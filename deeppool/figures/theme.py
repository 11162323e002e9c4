"""Appearance of all figures: one colour per span kind, a light and a dark template."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, get_args

import plotly.graph_objects as go

from deeppool.base.timeline import SpanKind
from deeppool.figures.formatting import wrap_lines
from deeppool.records.confidence_interval import Interval

KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
"""Span kinds in the order of legends."""

# Okabe and Ito's palette (jfly.uni-koeln.de/color), distinguishable with any colour-blindness. Forward and
# backward are blues, transfers warm colours; idle time and the background differ from both.
SKY_BLUE, BLUE, ORANGE, VERMILLION, PURPLE, GREEN = "#56B4E9", "#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#009E73"
OF_MANY = BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY_BLUE
"""Colours of jobs, models and other things of one kind, in their order."""

_INK = {False: "#24292F", True: "#D7DCE2"}
_PAPER = {False: "#FFFFFF", True: "#16181C"}
_GRID = {False: "#D9DDE2", True: "#33383F"}
_IDLE = {False: "#E4E7EB", True: "#3A3F47"}
_NEUTRAL = {False: "#6E7781", True: "#9AA4AF"}
_SOFT = {False: "#B4BCC5", True: "#59626C"}
_FAR = 6.25
"""Ratio of two values from which two of 1, 2 and 5, and their powers of ten, lie between them."""
SUBTITLE_WIDTH = 90
"""Characters of a subtitle's line."""
_BOTTOM = 56
"""Bottom margin in pixels, for the time axis."""


def colour(kind: SpanKind, *, dark: bool = False) -> str:
    """Returns the colour of a span kind in all figures."""
    return {
        "forward": SKY_BLUE,
        "backward": BLUE,
        "reshard": ORANGE,
        "sync": VERMILLION,
        "update": PURPLE,
        "idle": _IDLE[dark],
        "background": GREEN,
    }[kind]


def paper(*, dark: bool = False) -> str:
    """Returns the page's background colour, also of the line between two spans."""
    return _PAPER[dark]


def halo(*, dark: bool = False) -> str:
    """Returns the shadow of a text in the page's colour, with which it can be read on lines and marks."""
    return ", ".join([f"0 0 3px {_PAPER[dark]}"] * 4)


def ink(*, dark: bool = False) -> str:
    """Returns the colour of text."""
    return _INK[dark]


def neutral(*, dark: bool = False) -> str:
    """Returns the colour of values without a span kind: counts, whole iterations."""
    return _NEUTRAL[dark]


def soft(*, dark: bool = False) -> str:
    """Returns the colour of a second series next to :func:`neutral`."""
    return _SOFT[dark]


def ramp(*, dark: bool = False) -> list[str]:
    """Returns a colour scale whose large values contrast with the page; also readable in greyscale."""
    # Cividis (Nunez, Anderton and Renslow, PLOS ONE 2018) without its ends, which lack contrast to the page.
    steps = ["#2A3F6D", "#575D6D", "#7D7C78", "#A59C74", "#D2C060", "#FEE838"]
    return steps if dark else ["#E6D56A", "#BFAF6B", "#97917A", "#70717B", "#434E6C", "#00224E"]


@cache
def template(*, dark: bool = False) -> go.layout.Template:
    """Returns a plotly template: thin grids, the legend above the panels, room for long names."""
    axis = {
        "gridcolor": _GRID[dark],
        "linecolor": _GRID[dark],
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": _GRID[dark],
        "title": {"standoff": 8},
    }
    # Plotly's own are dark grey on any page.
    lines = {"color": _INK[dark]}
    return go.layout.Template(
        data={"bar": [{"error_x": lines, "error_y": lines}]},
        layout={
            "font": {"family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif", "size": 12, "color": _INK[dark]},
            "title": {
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "yref": "container",
                "yanchor": "top",
                "font": {"size": 17},
            },
            "paper_bgcolor": _PAPER[dark],
            "plot_bgcolor": _PAPER[dark],
            "colorway": [SKY_BLUE, BLUE, ORANGE, VERMILLION, PURPLE, GREEN],
            "xaxis": axis,
            "yaxis": axis,
            "hovermode": "closest",
            "hoverlabel": {"align": "left", "font": {"size": 12}},
            "barmode": "overlay",
            "margin": {"l": 64, "r": 24},
            # "Share chart…" uploads the figure to a cloud.
            "modebar": {"remove": ["sendChartToCloud"]},
        },
    )


def apply_theme(figure: go.Figure, **options: Any) -> go.Figure:
    """Applies the template, and places title, subtitle and legend above the panels without overlap.

    Args:
        figure: modified in place, and returned.
        options: arguments of :func:`theme_layout`.
    """
    return figure.update_layout(theme_layout(**options))


def theme_layout(
    *, title: str, subtitle: str = "", plot_height: int, heading_height: int = 0, dark: bool = False
) -> dict[str, Any]:
    """Returns what :func:`apply_theme` applies as properties of a layout, for figures drawn while a slider moves.

    Args:
        title: escaped already.
        subtitle: escaped; contains the provenance; lines are separated by ``<br>``.
        plot_height: pixels of all panels and what is between them.
        heading_height: pixels that the first panel's own heading needs above it.
        dark: whether the page is dark.
    """
    # A line as long as a notebook's cell on a page of 1,280 pixels; plotly cuts what is longer.
    unwrapped, subtitle = subtitle, wrap_lines(subtitle, SUBTITLE_WIDTH)
    legend = 66 + 16 * subtitle.count("<br>") if subtitle else 44
    top = legend + 24 + heading_height + 6
    height = top + plot_height + _BOTTOM
    # Plotly expects fractions of the height instead of pixels from the top.
    return {
        "template": template(dark=dark),
        "title": {"text": title, "y": 1 - 14 / height, "subtitle": {"text": subtitle, "font": {"size": 12}}},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 1 - legend / height,
            "yanchor": "top",
        },
        "margin": {"t": top, "b": _BOTTOM},
        "height": height,
        # From which deeppool.figures.page_width wraps it for a narrow page.
        "meta": {"subtitle": unwrapped} if unwrapped != subtitle else {},
    }


def interval_bars(gains: Iterable[Interval]) -> dict[str, object]:
    """Returns error bars of ratios; none where one repetition has no interval."""
    ends = [(0.0, 0.0) if low is None or high is None else (ratio - low, high - ratio) for ratio, low, high in gains]
    return {"array": [above for _, above in ends], "arrayminus": [below for below, _ in ends], "thickness": 1.2}


def named_rows(names: Sequence[str], step: int = 1) -> dict[str, object]:
    """Returns the vertical axis of rows with escaped names, the first at the top; every ``step``-th one is labelled."""
    shown = range(0, len(names), step)
    return {
        "tickvals": list(shown),
        "ticktext": [names[row] for row in shown],
        "range": [max(len(names), 1) - 0.5, -0.5],
        "showgrid": False,
    }


def log_ticks(values: Iterable[float]) -> dict[str, object]:
    """Returns the ticks of a logarithmic axis over these values: 1, 2, 5 and so on where two of them lie between.

    Between values that are alike there may be none of 1, 2 and 5: plotly then labels others.
    """
    found = list(values)
    # Without a format, plotly writes 20 and 200 between powers of ten as "2".
    return {"dtick": "D2", "tickformat": ",.4~r"} if max(found) >= _FAR * min(found) else {}


def stacked(shares: Sequence[float], *, gap: float) -> dict[str, dict[str, object]]:
    """Returns the axes of stacked panels with a common horizontal axis, labelled at the lowest panel.

    Properties of a layout, as ``plotly.subplots.make_subplots`` makes them, in a hundredth of its time.

    Args:
        shares: shares of the height without the gaps, from the top; they are scaled to fill it.
        gap: between two panels, a fraction of the whole height.
    """
    last = len(shares)
    axes: dict[str, dict[str, object]] = {}
    top, scale = 1.0, (1 - gap * (last - 1)) / sum(shares)
    for number, share in enumerate(shares, start=1):
        name = "" if number == 1 else str(number)
        bottom = max(0.0, top - scale * share)
        axes[f"xaxis{name}"] = {"anchor": f"y{name}", "domain": [0.0, 1.0]}
        if number < last:
            axes[f"xaxis{name}"] |= {"matches": f"x{last}", "showticklabels": False}
        axes[f"yaxis{name}"] = {"anchor": f"x{name}", "domain": [bottom, top]}
        top = bottom - gap
    return axes
