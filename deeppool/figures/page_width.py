"""Fits the texts of a figure to the width of its page: plotly cuts what is longer.

Titles, subtitles, headings and the titles of horizontal axes are wrapped, and the figure grows by their lines and by
those of the legend, so that nothing overlaps. The panels keep their heights.
"""

import html
import math
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import plotly.graph_objects as go

from deeppool.figures.formatting import wrap_lines

MARGIN = 100
"""Pixels beside the texts: both margins, and what axis labels take."""
TITLE_CHARACTER, AXIS_CHARACTER, CHARACTER = 9.2, 7.4, 6.4
"""Widths of a character in pixels, a little more than the mean of the fonts."""
AXIS_OVERHANG = 36
"""Pixels by which the title of an axis may be longer than its axis, at both ends together."""
TITLE_LINE, AXIS_LINE, SUBTITLE_LINE, HEADING_LINE, LEGEND_ROW = 22, 18, 16, 15, 19
"""Heights of a line in pixels."""
TITLE_RAISE = 12
"""Pixels by which plotly raises a title of several lines, however many."""
TICK_CHARACTER, TICK_PADDING = 7.4, 20
"""Width of a character of the labels left of the panels in pixels, and what is beside them."""
LABEL_MARGIN = 64
"""Pixels of the left margin, which grows where labels are longer, and moves the texts."""
LEAST_ROOM = 80.0
"""Pixels in which texts are wrapped on the narrowest page."""
LEGEND_SYMBOL = 46
"""Width of a legend entry beside its text."""
HEADING_LINES = 2
"""Lines of a panel's heading that a figure has room for at least; for those of its longest it always has."""
HEADING_SIZE = 12
"""Size of the font of which these are the widths and heights."""


def page_layout(figure: go.Figure, width: float) -> dict[str, Any] | None:
    """Returns the properties of a figure's layout that fit its texts to a page; None if nothing changes.

    What a figure had before is kept in its ``meta``, so that it can be fitted to another width.

    Args:
        figure: a figure with this project's theme; it is not changed.
        width: pixels of the page that the figure may use.
    """
    layout = figure.layout.to_plotly_json()
    meta = layout.get("meta") or {}
    original: dict[str, Any] = meta.get("original") or _original(layout)
    # A placeholder has no place for texts.
    if not original.get("height") or "t" not in original["margin"]:
        return None
    room = max(width - MARGIN - _longer_labels(figure, layout), LEAST_ROOM)
    title = _wrapped(original["title"], room / TITLE_CHARACTER)
    subtitle = _fitted(original["subtitle"], meta.get("subtitle"), room / CHARACTER)
    above = TITLE_LINE * _more_lines(title, original["title"]) + SUBTITLE_LINE * _more_lines(
        subtitle, original["subtitle"]
    )
    legend = LEGEND_ROW * (_legend_rows(figure, room) - 1)
    headings, rise, axes, grown = _headings(original, meta.get("headings") or [], room)
    below, named = _axis_titles(original["axis_titles"], room)
    top = original["margin"]["t"] + above + legend + rise
    height = original["height"] + above + legend + rise + grown + below
    raised = TITLE_RAISE * ("<br>" in title and "<br>" not in original["title"])
    fitted = {
        "title": {
            "text": title,
            "y": 1 - ((1 - original["title_y"]) * original["height"] + raised) / height,
            "subtitle": {"text": subtitle},
        },
        "legend": {"y": 1 - ((1 - original["legend_y"]) * original["height"] + above) / height},
        "margin": {"t": top, "b": original["margin"]["b"] + below},
        "height": height,
        "annotations": headings,
        **axes,
        **named,
        "meta": {**meta, "original": original},
    }
    texts = title == original["title"] and subtitle == original["subtitle"]
    unchanged = texts and height == original["height"] and headings == original["annotations"]
    return None if unchanged and "original" not in meta else fitted


def page_layouts(figure: go.Figure, widths: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Returns plotly.js's arguments of ``relayout`` by width, for a page that has no kernel; empty if all fits.

    Args:
        figure: as for :func:`page_layout`.
        widths: pixels of pages.
    """
    fitted = go.Figure(figure)
    layouts = {}
    for width in sorted(widths):
        layout = page_layout(fitted, width)
        if layout is None:
            continue
        # With what it had before, a figure that has room again is fitted, too.
        fitted.update_layout(layout)
        layouts[width] = dict(_paths({name: value for name, value in layout.items() if name != "meta"}))
    return layouts


def _paths(properties: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each property with its path: ``relayout`` replaces whole objects."""
    for name, value in properties.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _original(layout: dict[str, Any]) -> dict[str, Any]:
    """Returns what is fitted, as the figure was made."""
    title = layout.get("title") or {}
    axes = {name: axis["domain"] for name, axis in layout.items() if name.startswith("yaxis") and "domain" in axis}
    across = {name: axis for name, axis in layout.items() if name.startswith("xaxis")}
    return {
        "title": title.get("text") or "",
        "title_y": title.get("y") or 1.0,
        "subtitle": (title.get("subtitle") or {}).get("text") or "",
        "legend_y": (layout.get("legend") or {}).get("y") or 1.0,
        "margin": layout.get("margin") or {},
        "height": layout.get("height"),
        "annotations": layout.get("annotations") or [],
        "domains": {name: list(domain) for name, domain in axes.items()},
        "axis_titles": {
            name: (text, list(axis.get("domain") or [0.0, 1.0]))
            for name, axis in across.items()
            if (text := (axis.get("title") or {}).get("text"))
        },
    }


def _axis_titles(
    titles: dict[str, tuple[str, list[float]]], room: float
) -> tuple[float, dict[str, dict[str, dict[str, str]]]]:
    """Returns the pixels that the lines of horizontal axes' titles need below the panels, and the titles by axis."""
    below = 0
    named = {}
    for name, (text, domain) in titles.items():
        wrapped = _wrapped(text, (room * (domain[1] - domain[0]) + AXIS_OVERHANG) / AXIS_CHARACTER)
        below = max(below, AXIS_LINE * _more_lines(wrapped, text))
        named[name] = {"title": {"text": wrapped}}
    return below, named


def _longer_labels(figure: go.Figure, layout: dict[str, Any]) -> float:
    """Returns the pixels by which the named ticks and categories left of the panels make the margin wider."""
    axes = [axis for name, axis in layout.items() if name.startswith("yaxis") and axis.get("side") != "right"]
    labels = [str(label) for axis in axes for label in axis.get("ticktext") or () if axis.get("visible") is not False]
    rows = (getattr(trace, "y", None) for trace in figure.data)
    labels += [
        label for found in rows if found is not None and len(found) and isinstance(found[0], str) for label in found
    ]
    longest = max((len(re.sub(r"<[^>]+>", "", html.unescape(label))) for label in labels), default=0)
    return max(0.0, TICK_CHARACTER * longest + TICK_PADDING - LABEL_MARGIN)


def _headings(
    original: dict[str, Any], unwrapped: Sequence[str], room: float
) -> tuple[list[dict[str, Any]], float, dict[str, dict[str, Any]], float]:
    """Returns all annotations, pixels that the first heading needs above the panels, axes, and pixels between them."""
    height: float = original["height"] - original["margin"]["t"] - original["margin"]["b"]
    # From the top to the bottom; axes of one panel share a domain.
    tops = sorted({domain[1] for domain in original["domains"].values()}, reverse=True)
    extra = dict.fromkeys(tops, 0.0)
    wrapped = []
    for each, whole in zip_longest(original["annotations"], unwrapped):
        top = next((top for top in tops if _is_heading(each, top)), None)
        if top is None:
            wrapped.append(each)
            continue
        size = (each.get("font") or {}).get("size", HEADING_SIZE) / HEADING_SIZE
        beside = [x for x in original["annotations"] if _is_heading(x, top)]
        text = _fitted(each["text"], whole, _heading_room(each, beside, room) / (CHARACTER * size))
        before = each["text"].count("<br>") + 1
        before = before if _is_centred(each) else max(before, HEADING_LINES)
        extra[top] = max(extra[top], HEADING_LINE * size * (text.count("<br>") + 1 - before))
        wrapped.append({**each, "text": text})
    rise = extra.get(tops[0], 0) if tops else 0
    grown = sum(extra[top] for top in tops[1:])
    if not grown:
        return wrapped, rise, {name: {"domain": domain} for name, domain in original["domains"].items()}, 0
    moved: dict[float, float] = {}
    below = 0.0
    for top in tops:
        below += extra[top] if top != tops[0] else 0
        moved[top] = below

    def place(value: float, top: float) -> float:
        """Returns the fraction of the new height that is as far from the panel's top as before."""
        return min(1.0, max(0.0, 1 - ((1 - value) * height + moved[top]) / (height + grown)))

    axes = {name: {"domain": [place(low, top), place(top, top)]} for name, (low, top) in original["domains"].items()}
    for each in wrapped:
        top = next((top for top in tops if _is_heading(each, top)), None)
        if top is not None:
            each["y"] = place(top, top)
    return wrapped, rise, axes, grown


def _is_heading(annotation: dict[str, Any], top: float) -> bool:
    """Whether an annotation is the heading of a panel whose top is there."""
    return (
        annotation.get("xref") == annotation.get("yref") == "paper"
        and (annotation.get("align") == "left" or _is_centred(annotation))
        and math.isclose(annotation.get("y", -1.0), top)
    )


def _is_centred(annotation: dict[str, Any]) -> bool:
    """Whether an annotation is centred above a place, as plotly's titles of panels side by side are."""
    return annotation.get("xanchor") == "center" and annotation.get("yanchor") == "bottom"


def _heading_room(heading: dict[str, Any], beside: list[dict[str, Any]], room: float) -> float:
    """Returns the pixels that a heading may use beside others, and up to the ends of all panels."""
    if not _is_centred(heading):
        return room
    others = [abs(each["x"] - heading["x"]) for each in beside if each is not heading and _is_centred(each)]
    share: float = min(2 * heading["x"], 2 * (1 - heading["x"]), *others)
    return room * share


def _legend_rows(figure: go.Figure, room: float) -> int:
    """Returns the rows of a horizontal legend, whose entries plotly sets in columns where they need more than one."""
    names = {str(trace.name): None for trace in figure.data if trace.name and trace.showlegend is not False}
    if len(names) < 2 or figure.layout.showlegend is False:
        return 1
    widths = [LEGEND_SYMBOL + CHARACTER * len(name) for name in names]
    if sum(widths) <= room:
        return 1
    return math.ceil(len(widths) / max(1, int(room // max(widths))))


def _fitted(text: str, whole: str | None, width: float) -> str:
    """Returns a text that fits already, or wraps what it was before it was wrapped for a wide page."""
    return _wrapped(whole or text, width) if max(map(len, text.split("<br>"))) > width else text


def _wrapped(text: str, width: float) -> str:
    return wrap_lines(text, max(int(width), 10)) if text else text


def _more_lines(text: str, before: str) -> int:
    return text.count("<br>") - before.count("<br>")
