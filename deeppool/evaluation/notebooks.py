"""Finds the project's notebooks, runs them by papermill, and leaves HTML that needs no network."""

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from deeppool.documents import write_text
from deeppool.errors import DocumentError, InvalidValueError, RunError

SUMMARY_TAG = "summary"
"""The text that a cell with this tag prints is the notebook's summary."""

# The one renderer whose figures show in HTML with the network blocked: it carries plotly along. And nobody is there to
# use a widget.
KERNEL = {"PLOTLY_RENDERER": "notebook", "DEEPPOOL_STATIC": "1"}
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


def notebooks_folder() -> Path:
    """Where the notebooks are: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise RunError(f"the notebooks are neither in {package} nor beside it (install deeppool again)")


def find_notebooks() -> dict[str, Path]:
    """Notebooks by name: ``01-burst-parallel.ipynb`` is ``burst-parallel``."""
    return {path.stem.lstrip("0123456789-"): path for path in sorted(notebooks_folder().glob("[0-9]*.ipynb"))}


def evaluate(
    names: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    preset: Literal["quick", "full"] = "quick",
    parameters: Mapping[str, Any] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[Result]:
    """Runs notebooks, all of them when no name is given.

    Args:
        names: see :func:`find_notebooks`.
        folder: gets a folder per notebook; made where it is missing.
        preset: of the parameters, kept in each notebook's metadata.
        parameters: override the preset's.
        on_progress: called with what runs, and the share that is done.

    Raises:
        InvalidValueError: an unknown notebook or parameter; before anything runs.
        RunError: a notebook failed; it is kept, executed up to its error.
    """
    known = find_notebooks()
    for name in names:
        if name not in known:
            raise InvalidValueError(f"no notebook '{name}': there are {', '.join(known)}")
    chosen = {name: known[name] for name in names or known}
    arguments = {name: _arguments(path, preset, parameters or {}) for name, path in chosen.items()}
    results = []
    for index, (name, path) in enumerate(chosen.items()):
        if on_progress is not None:
            on_progress(f"running {name}", index / len(chosen))
        results.append(_run(name, path, Path(folder) / name, arguments[name]))
    return results


def _arguments(path: Path, preset: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The preset with the overrides. papermill only logs a name that it does not know, so names are checked here."""
    import nbformat
    import papermill

    known = papermill.inspect_notebook(str(path))
    for name in parameters:
        if name not in known:
            raise InvalidValueError(f"{path.name} has no parameter '{name}': it has {', '.join(known)}")
    presets = nbformat.read(path, as_version=4).metadata.get("deeppool", {})
    return {**presets.get(preset, {}), **parameters}


def _run(name: str, path: Path, folder: Path, arguments: dict[str, Any]) -> Result:
    import papermill

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot write {folder}: {error.strerror} (choose another folder)") from error
    executed = folder / path.name
    started = time.monotonic()
    try:
        with _environment(KERNEL):
            papermill.execute_notebook(
                str(path),
                str(executed),
                {**arguments, "output": str(folder)},
                kernel_name="python3",
                cwd=str(Path.cwd()),
                progress_bar=False,
                store_widget_state=False,
                config=_kernel_transport(),
            )
    except papermill.PapermillExecutionError as error:
        raise RunError(
            f"notebook {name} failed in cell {error.exec_count}: {error.ename}: {error.evalue} (see {executed})"
        ) from error
    html = _to_html(executed)
    return Result(name, str(executed), str(html), time.monotonic() - started, _summary(executed))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Of processes that start in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
    import nbformat

    lines = []
    for cell in nbformat.read(executed, as_version=4).cells:
        if SUMMARY_TAG in cell.metadata.get("tags", []):
            lines += [output.text for output in cell.outputs if output.output_type == "stream"]
    return "".join(lines)


def copy_notebooks(folder: str | os.PathLike[str]) -> Path:
    """Copies the notebooks into a folder of the user's; one that is there already is theirs, and is kept.

    Raises:
        InvalidValueError: the folder is the one that they come from.
        DocumentError: the folder cannot be written.
    """
    target = Path(folder)
    if target.resolve() == notebooks_folder().resolve():
        raise InvalidValueError(
            f"{target} holds deeppool's own notebooks, which stay as they are (name another folder)"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in find_notebooks().values():
            if not (target / path.name).exists():
                shutil.copy(path, target)
    except OSError as error:
        raise DocumentError(f"cannot write {target}: {error.strerror} (choose another folder)") from error
    return target


LAB = (
    "--ip=127.0.0.1",
    # JupyterLab asks for news, for newer versions and for a list of extensions on the network, unless told not to.
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)
"""Whatever the user's own settings are: nothing beyond this machine is asked for, or heard."""


def start_lab(folder: str | os.PathLike[str], *, port: int | None = None, browser: bool = True) -> NoReturn:
    """Becomes JupyterLab on a folder: this process, so that whatever ends it ends the server and its kernels.

    Args:
        folder: with the notebooks.
        port: to listen on, or to fail; the first free one from 8888 unless given.
        browser: whether to open one.
    """
    command = [sys.executable, "-m", "jupyterlab", *LAB, f"--ServerApp.root_dir={Path(folder).resolve()}"]
    if port is not None:
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
