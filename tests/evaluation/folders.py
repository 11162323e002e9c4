"""Small folders of notebooks, for tests that run some."""

from pathlib import Path
from typing import Any

import nbformat

SETUP = "from pathlib import Path\nfrom deeppool.evaluation import Findings\noutput = Path(output)"


def write_notebook(path: Path, *cells: str, title: str = "A title", measures: bool = False, **presets: Any) -> None:
    """A notebook whose first code cell has the parameters ``gpus``, ``log`` and ``output``."""
    notebook = nbformat.v4.new_notebook()
    # Neither kernel nor language: what another program than JupyterLab wrote may name none.
    notebook.metadata["deeppool"] = {"measures": measures, "quick": {}, "full": {}} | presets
    parameters = nbformat.v4.new_code_cell('gpus = 8\nlog = ""\noutput = "."', metadata={"tags": ["parameters"]})
    notebook.cells = [
        nbformat.v4.new_markdown_cell(f"# {title}\n\nProse."),
        parameters,
        *map(nbformat.v4.new_code_cell, cells),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
