"""The JupyterLab of ``deeppool lab``, on the user's own copies of the notebooks."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from tests.browser.server import OPTIONS, SETTINGS, Server
from tests.notebooks.test_notebook_runs import TINY

COPY = "02-model-and-layers.ipynb"


class LabCommand(Server):
    """The product's server, on the copies in ``work``; its token is its own."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "deeppool.cli", "lab", str(self.root), "--no-browser", "--port", str(self.port)]

    def configuration(self) -> Mapping[str, Mapping[str, Any]]:
        return OPTIONS

    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        return SETTINGS

    def page_configuration(self) -> Mapping[str, Any]:
        return {}

    def ready(self) -> bool:
        for told in (self.folder / "jupyter").glob("jpserver-*.json"):
            if not (text := told.read_text()).endswith("}"):  # it is being written
                return False
            self.token = json.loads(text)["token"]
            return super().ready()
        return False


def edited_copy(folder: Path) -> Path:
    """A notebook of the user's copies, after they have changed its parameters."""
    notebook = nbformat.read(folder / COPY, as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    cell.source += "\n" + "\n".join(f"{name} = {value!r}" for name, value in TINY.items())
    nbformat.write(notebook, folder / COPY)
    return folder / COPY
