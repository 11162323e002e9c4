"""Executes one notebook with papermill and writes its HTML report; run as a process by the pool.

The process takes a folder and a task as arguments, and writes its answer into the folder. It exits when its standard
input ends, as that means that the process which started it is gone; the kernel exits with it.
"""

import json
import os
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.errors import DeeppoolError, DocumentError, RunError
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.notebook_html import write_report
from deeppool.evaluation.record import Evaluation

ANSWER = "answer.json"
"""File with the executed notebook, or with what failed."""
SUMMARY_TAG = "summary"
"""Cells with this tag print the notebook's summary."""

# Figures stay data: JupyterLab draws them, reports are made of them, and plotly's script of five megabytes stays out
# of every notebook. Widgets are shown without controls, as there is no user.
KERNEL_ENVIRONMENT = {"PLOTLY_RENDERER": "plotly_mimetype", "DEEPPOOL_STATIC": "1"}
"""Environment variables of the kernels."""

KERNEL_SECONDS = 600
"""Limit for the start of a kernel, and for a cell's output after its end; they take a moment on an idle machine."""
MAX_SOCKET_PATH = 90
"""Characters; a Unix socket's path is limited to 103 on macOS and to 107 on Linux."""


@dataclass(frozen=True, slots=True)
class NotebookTask:
    """One notebook to execute."""

    name: str
    path: Path
    folder: Path
    """Output folder for the executed notebook, its report and its files; created if missing."""
    arguments: dict[str, Any]
    """Parameters; ``output`` is set to the folder."""
    measures: bool
    """Whether it measures time, and therefore runs alone."""
    script: str = ""
    """Address of plotly's script, relative to the report; empty: the report contains the script."""

    def to_json(self) -> dict[str, Any]:
        """Returns the task as a JSON object."""
        return asdict(self) | {"path": str(self.path), "folder": str(self.folder)}


@dataclass(frozen=True, slots=True)
class ExecutedNotebook:
    """An executed notebook and its report."""

    name: str
    notebook: str
    """Path of the executed notebook."""
    html: str
    """Path of the report."""
    seconds: float
    summary: str

    def to_json(self) -> dict[str, Any]:
        """Returns the executed notebook as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.summary.rstrip()}\nreport       {self.html} ({self.seconds:.0f} s)"


def execute(task: NotebookTask, sockets: Path) -> ExecutedNotebook:
    """Executes a notebook.

    Args:
        task: the notebook.
        sockets: a private folder for the sockets between this process and the kernel.

    Raises:
        RunError: a cell failed or the kernel died; the notebook up to there is kept, with its report.
        DocumentError: the output folder cannot be written.
    """
    import nbclient.exceptions
    import papermill

    try:
        task.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot write {task.folder}: {error.strerror} (choose another folder)") from error
    executed = task.folder / task.path.name
    started = time.monotonic()
    try:
        papermill.execute_notebook(
            literal_path(task.path),
            literal_path(executed),
            {**task.arguments, "output": str(task.folder)},
            kernel_name="python3",
            # Papermill takes it from the notebook by default, and one that no JupyterLab saved does not name it.
            language="python",
            start_timeout=KERNEL_SECONDS,
            iopub_timeout=KERNEL_SECONDS,
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
        write_report(executed, task.script)
        raise RunError(
            f"the kernel of notebook {task.name} died (out of memory? see {executed}, and the system's log)"
        ) from error
    except OSError as error:
        raise DocumentError(
            f"cannot write {executed}: {error.strerror} (free some space, or choose another)"
        ) from error
    html = write_report(executed, task.script)
    return ExecutedNotebook(task.name, str(executed), str(html), time.monotonic() - started, _summary(executed))


def literal_path(path: Path) -> str:
    """Returns a path for papermill, which takes braces in it for the names of parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _kernel_transport(sockets: Path) -> Any:
    """Configures Unix sockets between papermill and the kernel, where available: no port is opened.

    By default jupyter_client names sockets in the current folder by the first number without a file, so two kernels
    that start at once in one folder would share theirs; and it keeps the connection file where nobody removes it if
    this process is killed.
    """
    from traitlets.config import Config

    address, manager = str(sockets / "kernel"), {"connection_file": str(sockets / "connection.json")}
    if hasattr(socket, "AF_UNIX") and len(address) <= MAX_SOCKET_PATH:
        manager |= {"transport": "ipc", "ip": address}
    return Config({"KernelManager": manager})


def _summary(executed: Path) -> str:
    """Returns the text printed by the tagged cell, or the record as text where there is no such cell."""
    import nbformat

    lines = []
    for cell in nbformat.read(executed, as_version=4).cells:
        if SUMMARY_TAG in cell.metadata.get("tags", []):
            lines += [output.text for output in cell.outputs if output.output_type == "stream"]
    record = executed.parent / RECORD
    if not lines and record.is_file():
        return serialization.read(record, Evaluation).explain()
    return "".join(lines)


def main() -> None:
    """Executes the task given by the arguments and writes the answer."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    scratch, fields = Path(sys.argv[1]), json.loads(sys.argv[2])
    task = NotebookTask(**fields | {"path": Path(fields["path"]), "folder": Path(fields["folder"])})
    answer: dict[str, Any]
    try:
        answer = {"executed": execute(task, scratch).to_json()}
    except DeeppoolError as error:
        answer = {"problem": str(error)}
    except Exception as error:
        # Of papermill, jupyter_client or nbconvert; this line is all that the nightly's index page shows of it.
        answer = {"problem": f"notebook {task.name} could not be run: {type(error).__name__}: {error}"}
    (scratch / ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _exit_with_parent() -> None:
    # Not sys.stdin, whose lock a daemon thread must not hold while the interpreter exits.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
