"""Records as one HTML page that loads nothing from a network."""

from collections.abc import Sequence

import jinja2

from deeppool.figures.formatting import preformatted
from deeppool.figures.record_view import RecordView

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


def record_page(title: str, views: Sequence[tuple[str, RecordView]]) -> str:
    """Returns a page with a section per record: its heading, figure and text; plotly's code is in it once."""
    sections, plotly = [], True
    for heading, view in views:
        figure = ""
        if view.figure is not None:
            figure, plotly = view.figure.to_html(full_html=False, include_plotlyjs=plotly), False
        sections.append((heading, figure, preformatted(view.text)))
    return _PAGE.render(title=title, sections=sections)
