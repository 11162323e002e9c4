"""Finds notebooks, the project's or the user's own, runs them, and copies them for JupyterLab."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from deeppool.errors import DocumentError, InvalidValueError, RunError
from deeppool.evaluation.execution import ExecutedNotebook, NotebookTask
from deeppool.evaluation.process_pool import run_tasks

EVALUATION = "evaluation"
"""Subfolder of the notebooks that reproduce one table or figure each."""

Preset = Literal["quick", "full"]


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook file and its metadata."""

    name: str
    """Name on the command line."""
    path: Path
    title: str
    """First heading of the notebook."""
    measures: bool
    """Whether it measures time and therefore runs alone: ``"measures": true`` under ``deeppool`` in its metadata."""
    parameters: tuple[str, ...]
    presets: dict[str, dict[str, Any]]
    """Parameters of ``quick`` and ``full``, also under ``deeppool`` in its metadata."""
    fingerprint: str
    """Hash of the file as it was read: one that is edited before it is executed counts as changed afterwards."""

    def arguments(self, preset: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters of a preset, with overrides.

        Raises:
            InvalidValueError: unknown parameter, for which papermill only logs a warning; or ``output``.
        """
        found = {**self.presets.get(preset, {}), **parameters}
        for name in found:
            if name not in self.parameters:
                of = "" if name in parameters else f" of its preset {preset}"
                raise InvalidValueError(
                    f"{self.path.name} has no parameter '{name}'{of}: it has {', '.join(self.parameters) or 'none'}"
                )
        if "output" in found:
            raise InvalidValueError(f"{self.path.name} gets its output folder as 'output' (give that with -o)")
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the notebook as a JSON object."""
        return {
            "name": self.name,
            "title": self.title,
            "measures": self.measures,
            "parameters": list(self.parameters),
            "presets": self.presets,
        }


def notebooks_folder() -> Path:
    """Returns the folder of the project's notebooks: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise RunError(f"the notebooks are neither in {package} nor beside it (install deeppool again)")


def find_notebooks(folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Finds notebooks by name, those of the workbench first, then the evaluations.

    ``01-burst-parallel.ipynb`` is ``burst-parallel``, ``evaluation/fig10-cluster-partitions.ipynb`` is ``fig10``.

    Args:
        folder: folder with the notebooks; the project's own by default.

    Raises:
        InvalidValueError: there are no notebooks, or two of one name.
    """
    root = notebooks_folder() if folder is None else Path(folder)
    found: dict[str, Path] = {}
    pairs = [(path.stem.lstrip("0123456789-") or path.stem, path) for path in _sorted(root)]
    pairs += [(path.stem.split("-")[0], path) for path in _sorted(root / EVALUATION)]
    for name, path in pairs:
        if name in found:
            raise InvalidValueError(f"{found[name]} and {path} are both '{name}' (rename one)")
        found[name] = path
    if not found:
        raise InvalidValueError(f"there is no notebook in {root} (give a folder with some)")
    return found


def _sorted(folder: Path) -> list[Path]:
    """Returns the notebooks of a folder by name, 9 before 10."""

    def key(path: Path) -> tuple[str, int, str]:
        kind = path.stem.split("-")[0]
        letters = kind.rstrip("0123456789")
        return letters, int(kind[len(letters) :] or 0), path.name

    return sorted(folder.glob("[!.]*.ipynb"), key=key)


def read_notebook(name: str, path: Path) -> Notebook:
    """Reads a notebook's title, parameters and metadata.

    Raises:
        DocumentError: the file is not a notebook.
    """
    import nbformat
    import papermill

    try:
        fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path} as a notebook: {error} (is it one?)") from error
    metadata = notebook.metadata.get("deeppool", {})
    # What it runs by. Papermill does not find parameters without, and a program other than JupyterLab may leave it out.
    notebook.metadata |= {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}}
    headings = (
        line.lstrip("# ")
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("#")
    )
    return Notebook(
        name=name,
        path=path,
        title=next(headings, name),
        measures=bool(metadata.get("measures", False)),
        parameters=tuple(papermill.inspect_notebook(notebook)),
        presets={preset: dict(metadata.get(preset, {})) for preset in ("quick", "full")},
        fingerprint=fingerprint,
    )


def choose(names: Sequence[str], folder: str | os.PathLike[str] | None = None) -> list[Notebook]:
    """Returns the notebooks of these names, or all if there are none; ``evaluation/fig10`` means ``fig10``.

    Raises:
        InvalidValueError: unknown name.
    """
    known = find_notebooks(folder)
    wanted = [name.removeprefix(f"{EVALUATION}/") for name in names]
    for name in wanted:
        if name not in known:
            raise InvalidValueError(f"no notebook '{name}': there are {', '.join(known)}")
    return [read_notebook(name, known[name]) for name in dict.fromkeys(wanted or known)]


def evaluate(
    names: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    preset: Preset = "quick",
    parameters: Mapping[str, Any] | None = None,
    jobs: int = 1,
    notebooks: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> list[ExecutedNotebook]:
    """Runs notebooks, all of them if no name is given; each in a process of its own.

    Args:
        names: see :func:`find_notebooks`.
        folder: output folder, with a subfolder per notebook; created if missing.
        preset: preset of the parameters, from each notebook's metadata.
        parameters: overrides of the preset's parameters.
        jobs: notebooks at once; those that measure time run alone, after the others.
        notebooks: folder with the notebooks; the project's own by default.
        on_progress: called with the names of the running notebooks, and the share that is done.

    Raises:
        InvalidValueError: unknown notebook or parameter; before anything runs.
        RunError: a notebook failed; it is kept, executed up to its error, and the others are complete.
    """
    tasks = [
        NotebookTask(
            each.name, each.path, Path(folder) / each.name, each.arguments(preset, parameters or {}), each.measures
        )
        for each in choose(names, notebooks)
    ]
    results: dict[str, ExecutedNotebook] = {}
    problems: list[str] = []
    for completed in run_tasks(tasks, jobs=jobs, on_progress=on_progress):
        if completed.executed is None:
            problems.append(completed.problem)
        else:
            results[completed.task.name] = completed.executed
    if problems:
        others = f"; {len(problems) - 1} more failed" if len(problems) > 1 else ""
        raise RunError(problems[0] + others)
    return [results[task.name] for task in tasks]


def copy_notebooks(folder: str | os.PathLike[str]) -> Path:
    """Copies the notebooks into a folder; existing files there are kept.

    Raises:
        InvalidValueError: the folder is the notebooks' own.
        DocumentError: the folder cannot be written.
    """
    target, root = Path(folder), notebooks_folder()
    if target.resolve() == root.resolve():
        raise InvalidValueError(
            f"{target} holds deeppool's own notebooks, which stay as they are (name another folder)"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in find_notebooks().values():
            copy = target / path.relative_to(root)
            if not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                shutil.copy(path, copy)
    except OSError as error:
        raise DocumentError(f"cannot write {target}: {error.strerror} (choose another folder)") from error
    return target


LAB_OPTIONS = (
    "--ip=127.0.0.1",
    # By default JupyterLab fetches news, newer versions and a list of extensions.
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)
"""Options that keep JupyterLab local, whatever the user's settings: it fetches nothing and listens on this machine."""
LAB_CONFIGURATION = Path(__file__).parent / "jupyter"
"""Defaults of JupyterLab's settings, which the user's own settings override, and the list of runs in its sidebar.

No question about news, and no check for every page of whether JupyterLab should be built again, which would fetch its
packages. Widgets' messages go to the kernel's main thread: ipykernel drops those of a subshell that
JupyterLab has deleted, and buttons are dead from then on, in every tab.
"""


def start_lab(folder: str | os.PathLike[str], *, port: int | None = None, browser: bool = True) -> NoReturn:
    """Replaces this process by JupyterLab on a folder, so that a signal to it ends the server and its kernels.

    Args:
        folder: folder with the notebooks.
        port: port to listen on, an error if it is taken; by default the first free one from 8888.
        browser: whether to open a browser.
    """
    command = [
        *(sys.executable, "-m", "jupyterlab", *LAB_OPTIONS),
        f"--ServerApp.root_dir={Path(folder).resolve()}",
        f"--LabApp.extra_labextensions_path={LAB_CONFIGURATION / 'labextensions'}",
    ]
    if port is not None:
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    sys.stdout.flush()
    sys.stderr.flush()
    path = os.pathsep.join(filter(None, [str(LAB_CONFIGURATION), os.environ.get("JUPYTER_CONFIG_PATH")]))
    os.execve(command[0], command, {**os.environ, "JUPYTER_CONFIG_PATH": path})
