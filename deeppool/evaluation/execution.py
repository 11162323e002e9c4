"""Runs one notebook by papermill in this process, and leaves HTML that needs no network."""

import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeppool import documents
from deeppool.documents import write_text
from deeppool.errors import DocumentError, RunError
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.record import Evaluation
from deeppool.evaluation.task import Task

SUMMARY_TAG = "summary"
"""The text that a cell with this tag prints is the notebook's summary."""

# "notebook" is the one renderer whose figures show in HTML with the network blocked: it carries plotly along. The other
# keeps each figure as data, of which thumbnails are made. And nobody is there to use a widget.
KERNEL = {"PLOTLY_RENDERER": "plotly_mimetype+notebook", "DEEPPOOL_STATIC": "1"}
"""Environment of the kernels."""


@dataclass(frozen=True, slots=True)
class Result:
    """One executed notebook."""

    name: str
    notebook: str
    """Path of the executed notebook."""
    html: str
    """Path of the report."""
    seconds: float
    summary: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.summary.rstrip()}\nreport       {self.html} ({self.seconds:.0f} s)"


def execute(task: Task) -> Result:
    """Runs a notebook; changes this process's environment, so that the kernel has it.

    Raises:
        RunError: a cell failed, or the kernel died; what ran is kept, with its report.
        DocumentError: the folder cannot be written.
    """
    import nbclient.exceptions
    import papermill

    try:
        task.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot write {task.folder}: {error.strerror} (choose another folder)") from error
    executed = task.folder / task.path.name
    started = time.monotonic()
    os.environ.update(KERNEL)
    try:
        papermill.execute_notebook(
            str(task.path),
            str(executed),
            {**task.arguments, "output": str(task.folder)},
            kernel_name="python3",
            cwd=str(Path.cwd()),
            progress_bar=False,
            store_widget_state=False,
            config=_kernel_transport(),
        )
    except papermill.PapermillExecutionError as error:
        _to_html(executed)
        raise RunError(
            f"notebook {task.name} failed in cell {error.exec_count}: {error.ename}: {error.evalue} (see {executed})"
        ) from error
    except nbclient.exceptions.DeadKernelError as error:
        raise RunError(
            f"the kernel of notebook {task.name} died (out of memory? see {executed}, and the system's log)"
        ) from error
    except OSError as error:
        raise DocumentError(
            f"cannot write {executed}: {error.strerror} (free some space, or choose another)"
        ) from error
    html = _to_html(executed)
    return Result(task.name, str(executed), str(html), time.monotonic() - started, _summary(executed))


def _kernel_transport() -> Any:
    """Unix sockets between papermill and the kernel, where there are any: nothing listens on a port."""
    from traitlets.config import Config

    return Config({"KernelManager": {"transport": "ipc"}}) if hasattr(socket, "AF_UNIX") else Config()


def _to_html(executed: Path) -> Path:
    """One file with everything in it."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    # Code is for the notebook; the report shows prose, results and figures. No URLs: nothing is fetched.
    exporter = HTMLExporter(
        config=Config({"HTMLExporter": {"require_js_url": "", "mathjax_url": "", "exclude_input_prompt": True}})
    )
    body, _ = exporter.from_filename(str(executed))
    # plotly's renderer asks for MathJax beside each figure; none of ours has a formula.
    body = re.sub(r'<script src="https://cdnjs[^"]*/mathjax/[^"]*"></script>', "", body)
    return write_text(body, executed.with_suffix(".html"))


def _summary(executed: Path) -> str:
    """What the tagged cell prints; else the record, where the notebook leaves one."""
    import nbformat

    lines = []
    for cell in nbformat.read(executed, as_version=4).cells:
        if SUMMARY_TAG in cell.metadata.get("tags", []):
            lines += [output.text for output in cell.outputs if output.output_type == "stream"]
    record = executed.parent / RECORD
    if not lines and record.is_file():
        return documents.read(record, Evaluation).explain()
    return "".join(lines)
