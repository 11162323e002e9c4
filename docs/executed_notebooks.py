"""Notebooks as pages of the site: executed with their quick preset while it is built, with their figures and tables.

Nothing of it is written into the checkout. Pages load plotly's script from the site.
"""

import datetime
import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deeppool.evaluation.notebook_html import PLOTLY, draw_figures
from deeppool.evaluation.notebooks import Notebook, choose, evaluate

FOLDER = "notebooks"
"""Folder of the pages in the site."""
JOBS = 2
"""Notebooks at once."""


def section(executed: Sequence[str]) -> list[Any]:
    """Returns the navigation's section of notebooks.

    Args:
        executed: names of the notebooks to execute.
    """
    return [f"{FOLDER}/index.md", *({each.title: f"{FOLDER}/{each.name}.md"} for each in choose(executed))]


def pages(executed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields path and text of each file of the site: an index, a page for each executed notebook, and their sources.

    Args:
        executed: names of the notebooks to execute.
    """
    from plotly.offline import get_plotlyjs

    found = choose([])
    yield f"{FOLDER}/index.md", _index(found, executed)
    for each in found:
        yield f"{FOLDER}/{each.path.name}", each.path.read_text(encoding="utf-8")
    yield f"{FOLDER}/{PLOTLY}", get_plotlyjs()
    with tempfile.TemporaryDirectory() as folder:
        for result in evaluate(executed, folder, jobs=JOBS):
            yield f"{FOLDER}/{result.name}.md", _page(Path(result.notebook), result.name, result.seconds, executed)


def _index(found: list[Notebook], executed: Sequence[str]) -> str:
    """Returns the list of all notebooks."""
    rows = [
        f"| [{each.title}]({f'{each.name}.md' if each.name in executed else each.path.name}) | "
        f"`deeppool evaluate {each.name} -o reports` | "
        f"{'executed here' if each.name in executed else 'source: measures, or takes minutes'} |"
        for each in found
    ]
    return "\n".join(
        [
            "# Notebooks",
            "",
            f"The notebooks of the workbench and of the papers' figures. {len(executed)} of them were executed, with "
            "their quick preset, when this site was built; of the others there is the source, and the command that "
            "executes it. "
            "`deeppool lab` opens your own copies of all of them.",
            "",
            "| notebook | command | in this site |",
            "|---|---|---|",
            *rows,
        ]
    )


def _page(executed: Path, name: str, seconds: float, others: Sequence[str]) -> str:
    """Returns an executed notebook as a page."""
    import nbformat
    from nbconvert import MarkdownExporter
    from traitlets.config import Config

    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    draw_figures(notebook)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        _as_block(output)
    # The template turns what a cell prints into an indented block.
    body, _ = MarkdownExporter(config=Config({"MarkdownExporter": {"exclude_input_prompt": True}})).from_notebook_node(
        notebook
    )
    head, _, rest = body.lstrip().partition("\n")
    note = (
        f"Executed by `deeppool evaluate {name} -o reports` in {seconds:.0f} s on {datetime.date.today().isoformat()}, "
        f"with the quick preset, on {platform.machine()} with torch {_torch()}; [source]({executed.name})."
    )
    return "\n\n".join([head, note, f'<script src="{PLOTLY}"></script>', _links(rest, others)])


def _as_block(output: Any) -> None:
    """Makes the HTML of an output one block of Markdown, which ends at an empty line and has no indented lines."""
    text = output.get("data", {}).get("text/html")
    if text is not None:
        lines = [line.strip() for line in "".join(text).splitlines() if line.strip()]
        output.data["text/html"] = "\n\n<div>\n" + "\n".join(lines) + "\n</div>\n\n"


def _links(text: str, executed: Sequence[str]) -> str:
    """Lets links to notebooks lead to their pages, or to their sources; all are in one folder."""
    names = {each.path.name: each.name for each in choose([])}

    def link(found: re.Match[str]) -> str:
        file = Path(found[1]).name
        return f"]({names[file]}.md)" if names.get(file) in executed else f"]({file})"

    return re.sub(r"\]\(([\w./-]+\.ipynb)\)", link, text)


def _torch() -> str:
    import torch

    return str(torch.__version__)
