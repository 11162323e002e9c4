"""Reports of executed notebooks: every figure is in them, and nothing is fetched."""

import json
import re
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest

from deeppool.evaluation.notebook_html import FIGURE, write_report


@pytest.fixture
def executed(tmp_path: Path) -> Path:
    """Prose, text and two figures."""
    figure = json.loads(go.Figure(go.Bar(x=["a"], y=[1]), layout={"title": {"text": "Bars"}}).to_json())
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell("# Prose\n\nSee [the other](02-other.ipynb).")]
    for _ in range(2):
        output = nbformat.v4.new_output("execute_result", {FIGURE: figure, "text/plain": "Figure"}, execution_count=1)
        notebook.cells.append(nbformat.v4.new_code_cell("figure", outputs=[output], execution_count=1))
    path = tmp_path / "fig1.ipynb"
    nbformat.write(notebook, path)
    return path


def addresses(text: str) -> list[str]:
    """What a browser would fetch; nbconvert's own scripts have an empty address, which fetches nothing."""
    return re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="([^"]+)"', text)


def test_a_report_alone_has_plotly_once_and_fetches_nothing(executed: Path) -> None:
    text = write_report(executed).read_text(encoding="utf-8")
    assert text.count("Plotly.newPlot(") >= 2
    # Else plotly's toolbar offers to upload the figure to a cloud.
    assert text.count('"showSendToCloud": false') == 2
    assert text.count("plotly.js v") == 1 and len(text) > 10**6
    assert addresses(text) == []
    assert "Prose" in text and "<title>fig1</title>" in text


def test_reports_that_share_the_script_only_name_it(executed: Path) -> None:
    text = write_report(executed, "../plotly.min.js").read_text(encoding="utf-8")
    assert addresses(text) == ["../plotly.min.js"]
    assert len(text) < 10**6


def test_the_notebook_keeps_its_figures_as_data(executed: Path) -> None:
    before = executed.read_bytes()
    write_report(executed)
    assert executed.read_bytes() == before


def test_what_is_printed_breaks_between_words_and_its_tables_not_at_all(executed: Path) -> None:
    notebook = nbformat.read(executed, as_version=4)
    printed = "estimated <here>\n\n network   GPU hours\n ───────────────────\n 1 Tbit/s       26.5\n"
    notebook.cells[1].outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=printed),
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m"),
        nbformat.v4.new_output("stream", name="stderr", text="caution"),
    ]
    nbformat.write(notebook, executed)
    text = write_report(executed).read_text(encoding="utf-8")
    (sentence,) = re.findall(r'<pre style="([^"]*)">estimated &lt;here&gt;</pre>', text)
    assert "pre-wrap" in sentence and "word-break: normal" in sentence
    (table,) = re.findall(r'<pre style="([^"]*)"> network   GPU hours', text)
    assert "white-space: pre; overflow-x: auto" in table and "monospace" in table
    assert '<span class="ansi-red-fg">red</span>' in text and "caution" in text


def test_a_notebook_without_figures_needs_no_plotly(executed: Path) -> None:
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = notebook.cells[:1]
    nbformat.write(notebook, executed)
    assert "lotly" not in write_report(executed).read_text(encoding="utf-8")


def test_a_link_to_another_notebook_is_text_in_a_report(executed: Path) -> None:
    text = write_report(executed, "../plotly.min.js").read_text(encoding="utf-8")
    assert "See the other." in text and "02-other.ipynb" not in text
