"""Records as one HTML page that loads nothing from a network."""

import json
from collections.abc import Sequence
from typing import Any

import jinja2
import plotly.graph_objects as go

from deeppool.figures.formatting import preformatted
from deeppool.figures.page_width import page_layouts
from deeppool.figures.record_view import record_view

WIDTHS = range(280, 1240, 80)
"""Widths of a page in pixels that the texts of figures are fitted to."""
_FIT = """
const layouts = LAYOUTS, widths = Object.keys(layouts).map(Number);
const plot = document.getElementById("{plot_id}");
let fitted;
new ResizeObserver(() => {
  const width = Math.max(widths[0], ...widths.filter((width) => width <= plot.clientWidth));
  if (width === fitted || !plot.clientWidth) return;
  fitted = width;
  plot.parentElement.style.height = layouts[width].height + "px";
  Plotly.relayout(plot, structuredClone(layouts[width])).then(() => {
    // Plotly keeps the width of a figure whose height was changed.
    delete plot.layout.width;
    Plotly.Plots.resize(plot);
  });
}).observe(plot);
"""
_PAGE = jinja2.Environment(autoescape=True).from_string(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
.dp-text { background: #f6f6f4; padding: .8rem .8rem .1rem; }
</style>
<h1>{{ title }}</h1>
{% for heading, figure, text in sections %}
<section>
<h2>{{ heading }}</h2>
{{ figure | safe }}
{{ text | safe }}
</section>
{% endfor %}
</html>
"""
)


def record_page(title: str, records: Sequence[tuple[str, Any]]) -> str:
    """Returns a page with a section per record: its heading, figure and text; plotly's code is in it once."""
    sections, plotly = [], True
    for heading, record in records:
        view, figure = record_view(record), ""
        if view.figure is not None:
            script = _script(view.figure)
            figure = view.figure.to_html(full_html=False, include_plotlyjs=plotly, post_script=script)
            plotly = False
        sections.append((heading, figure, preformatted(view.text)))
    return _PAGE.render(title=title, sections=sections)


def _script(figure: go.Figure) -> str | None:
    """Returns JavaScript that fits a figure's texts to the width of the page; None where nothing changes."""
    layouts = page_layouts(figure, WIDTHS)
    # A text may hold "</script>".
    text = json.dumps(layouts).replace("</", "<\\/")
    return _FIT.replace("LAYOUTS", text) if layouts else None
