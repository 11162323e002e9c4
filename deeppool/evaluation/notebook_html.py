"""HTML report of an executed notebook; it works without a network."""

import re
from pathlib import Path
from typing import Any

from deeppool.base.serialization import write_text
from deeppool.figures.formatting import preformatted

FIGURE = "application/vnd.plotly.v1+json"
"""MIME type of a plotly figure as data."""
ESCAPE = "\x1b"
"""Begins a colour of a terminal, which nbconvert draws."""
PLOTLY = "plotly.min.js"
"""File name of plotly's script where reports share one."""


def write_report(executed: Path, script: str = "") -> Path:
    """Writes the report of a notebook beside it.

    Args:
        executed: the executed notebook.
        script: address of plotly's script, for reports that share one; empty: the report contains the script.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    notebook = nbformat.read(executed, as_version=4)
    figures = draw_figures(notebook)
    _lay_out_texts(notebook)
    # With empty addresses nbconvert's scripts are not fetched.
    exporter = HTMLExporter(
        config=Config({"HTMLExporter": {"require_js_url": "", "mathjax_url": "", "exclude_input_prompt": True}})
    )
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": executed.stem}})
    # A linked notebook may not have been run, or may lie in another folder.
    body = re.sub(r'<a href="[^":/]*\.ipynb">(.*?)</a>', r"\1", body)
    if figures:
        body = body.replace("<head>", f"<head>{_plotly(script)}", 1)
    return write_text(body, executed.with_suffix(".html"))


def draw_figures(notebook: Any) -> int:
    """Replaces the data of each figure by HTML that draws it; returns the number of figures."""
    from plotly.io import to_html

    count = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            figure = output.get("data", {}).pop(FIGURE, None)
            if figure is not None:
                count += 1
                output.data["text/html"] = to_html(
                    {"data": figure["data"], "layout": figure.get("layout", {})},
                    config={"responsive": True, "showSendToCloud": False},
                    include_plotlyjs=False,
                    full_html=False,
                    validate=False,
                )
    return count


def _lay_out_texts(notebook: Any) -> None:
    """Replaces what cells printed by HTML whose tables keep their columns; nbconvert breaks lines within words."""
    from nbformat.v4 import new_output

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                new_output("display_data", {"text/html": preformatted(output.text)})
                if output.get("name") == "stdout" and ESCAPE not in output.text
                else output
                for output in cell.outputs
            ]


def _plotly(script: str) -> str:
    from plotly.offline import get_plotlyjs

    return f'<script src="{script}"></script>' if script else f"<script>{get_plotlyjs()}</script>"


def write_plotly(folder: Path) -> None:
    """Writes plotly's script into a folder, for the reports below it."""
    from plotly.offline import get_plotlyjs

    (folder / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")
