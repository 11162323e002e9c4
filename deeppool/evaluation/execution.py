"""Runs one notebook by papermill in this process, and leaves its report."""

import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.errors import DocumentError, RunError
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.html import write_report
from deeppool.evaluation.record import Evaluation
from deeppool.evaluation.task import Task

SUMMARY_TAG = "summary"
"""The text that a cell with this tag prints is the notebook's summary."""

# Figures stay data, which JupyterLab draws, and of which reports and thumbnails are made; plotly's script, five
# megabytes, stays out of every notebook. And nobody is there to use a widget.
KERNEL = {"PLOTLY_RENDERER": "plotly_mimetype", "DEEPPOOL_STATIC": "1"}
"""Environment of the kernels."""


LONGEST_ADDRESS = 90
"""Characters; a Unix socket's path ends at 103 on macOS, at 107 on Linux."""


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


def execute(task: Task, sockets: Path) -> Result:
    """Runs a notebook; changes this process's environment, so that the kernel has it.

    Args:
        task: the notebook.
        sockets: a folder of nobody else's, for those between this process and the kernel.

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
            config=_kernel_transport(sockets),
        )
    except papermill.PapermillExecutionError as error:
        write_report(executed, task.script)
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
    html = write_report(executed, task.script)
    return Result(task.name, str(executed), str(html), time.monotonic() - started, _summary(executed))


def _kernel_transport(sockets: Path) -> Any:
    """Unix sockets between papermill and the kernel, where there are any: nothing listens on a port.

    Left to itself, jupyter_client puts them into the current folder under names that it takes for free when no file
    has them: two kernels that start at once there talk into each other's.
    """
    from traitlets.config import Config

    address = str(sockets / "kernel")
    if not hasattr(socket, "AF_UNIX") or len(address) > LONGEST_ADDRESS:
        return Config()
    return Config({"KernelManager": {"transport": "ipc", "ip": address}})


def _summary(executed: Path) -> str:
    """What the tagged cell prints; else the record, where the notebook leaves one."""
    import nbformat

    lines = []
    for cell in nbformat.read(executed, as_version=4).cells:
        if SUMMARY_TAG in cell.metadata.get("tags", []):
            lines += [output.text for output in cell.outputs if output.output_type == "stream"]
    record = executed.parent / RECORD
    if not lines and record.is_file():
        return serialization.read(record, Evaluation).explain()
    return "".join(lines)
