"""An executed notebook as a report: HTML that needs no network."""

import re
from pathlib import Path
from typing import Any

from deeppool.base.serialization import write_text

FIGURE = "application/vnd.plotly.v1+json"
"""Of an output that is a plotly figure, as data."""


def write_report(executed: Path, script: str = "") -> Path:
    """Writes the report beside the notebook.

    Args:
        executed: the notebook.
        script: address of plotly's script, for reports that share one; empty: it is in the report, which is one file
            with everything in it.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    notebook = nbformat.read(executed, as_version=4)
    figures = _draw_figures(notebook)
    # Code is for the notebook; the report shows prose, results and figures. No URLs: nothing is fetched.
    exporter = HTMLExporter(
        config=Config({"HTMLExporter": {"require_js_url": "", "mathjax_url": "", "exclude_input_prompt": True}})
    )
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": executed.stem}})
    # Another notebook may not have been run, and stands elsewhere if it was.
    body = re.sub(r'<a href="[^":/]*\.ipynb">(.*?)</a>', r"\1", body)
    if figures:
        body = body.replace("<head>", f"<head>{_plotly(script)}", 1)
    return write_text(body, executed.with_suffix(".html"))


def _draw_figures(notebook: Any) -> int:
    """Gives each figure the HTML that draws it, in place of its data; returns how many there are."""
    from plotly.io import to_html

    count = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            figure = output.get("data", {}).pop(FIGURE, None)
            if figure is not None:
                count += 1
                output.data["text/html"] = to_html(
                    {"data": figure["data"], "layout": figure.get("layout", {})},
                    config={"responsive": True},
                    include_plotlyjs=False,
                    full_html=False,
                    validate=False,
                )
    return count


def _plotly(script: str) -> str:
    from plotly.offline import get_plotlyjs

    return f'<script src="{script}"></script>' if script else f"<script>{get_plotlyjs()}</script>"
