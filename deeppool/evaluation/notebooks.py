"""Finds the project's notebooks, or a user's own, and says what each takes; copies them for JupyterLab."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from deeppool.errors import DocumentError, InvalidValueError, RunError
from deeppool.evaluation.crew import run_tasks
from deeppool.evaluation.execution import Result
from deeppool.evaluation.task import Task

EVALUATION = "evaluation"
"""Folder of the notebooks that make one table or figure each, within that of the notebooks."""

Preset = Literal["quick", "full"]


@dataclass(frozen=True, slots=True)
class Notebook:
    """One notebook as it lies in its folder."""

    name: str
    """By which commands call it."""
    path: Path
    title: str
    """Its first heading."""
    measures: bool
    """It reads clocks, so it runs with nothing beside it: ``"measures": true`` in its metadata's ``deeppool``."""
    parameters: tuple[str, ...]
    presets: dict[str, dict[str, Any]]
    """``quick`` and ``full``, in its metadata's ``deeppool`` as well."""

    def arguments(self, preset: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The preset with the overrides.

        Raises:
            InvalidValueError: a parameter that the notebook does not have; papermill only logs it.
        """
        for name in parameters:
            if name not in self.parameters:
                raise InvalidValueError(
                    f"{self.path.name} has no parameter '{name}': it has {', '.join(self.parameters)}"
                )
        return {**self.presets.get(preset, {}), **parameters}

    @property
    def fingerprint(self) -> str:
        """Equal for equal notebooks."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "name": self.name,
            "title": self.title,
            "measures": self.measures,
            "parameters": list(self.parameters),
            "presets": self.presets,
        }


def notebooks_folder() -> Path:
    """Where the notebooks are: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise RunError(f"the notebooks are neither in {package} nor beside it (install deeppool again)")


def find_notebooks(folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Notebooks by name, those of the workbench first, then the evaluations.

    ``01-burst-parallel.ipynb`` is ``burst-parallel``, ``evaluation/fig10-cluster-partitions.ipynb`` is ``fig10``.

    Args:
        folder: with the notebooks; the project's own unless given.

    Raises:
        InvalidValueError: there are none, or two of one name.
    """
    home = notebooks_folder() if folder is None else Path(folder)
    found: dict[str, Path] = {}
    pairs = [(path.stem.lstrip("0123456789-") or path.stem, path) for path in _sorted(home)]
    pairs += [(path.stem.split("-")[0], path) for path in _sorted(home / EVALUATION)]
    for name, path in pairs:
        if name in found:
            raise InvalidValueError(f"{found[name]} and {path} are both '{name}' (rename one)")
        found[name] = path
    if not found:
        raise InvalidValueError(f"there is no notebook in {home} (give a folder with some)")
    return found


def _sorted(folder: Path) -> list[Path]:
    """By name, where 9 comes before 10."""

    def key(path: Path) -> tuple[str, int, str]:
        kind = path.stem.split("-")[0]
        letters = kind.rstrip("0123456789")
        return letters, int(kind[len(letters) :] or 0), path.name

    return sorted(folder.glob("[!.]*.ipynb"), key=key)


def read_notebook(name: str, path: Path) -> Notebook:
    """What a notebook says about itself.

    Raises:
        DocumentError: it is none.
    """
    import nbformat
    import papermill

    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path} as a notebook: {error} (is it one?)") from error
    told = notebook.metadata.get("deeppool", {})
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
        measures=bool(told.get("measures", False)),
        parameters=tuple(papermill.inspect_notebook(str(path))),
        presets={preset: dict(told.get(preset, {})) for preset in ("quick", "full")},
    )


def choose(names: Sequence[str], folder: str | os.PathLike[str] | None = None) -> list[Notebook]:
    """The notebooks of these names, all of them when none is given; ``evaluation/fig10`` is ``fig10`` too.

    Raises:
        InvalidValueError: an unknown name.
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
) -> list[Result]:
    """Runs notebooks, all of them when no name is given; each in a process of its own.

    Args:
        names: see :func:`find_notebooks`.
        folder: gets a folder per notebook; made where it is missing.
        preset: of the parameters, kept in each notebook's metadata.
        parameters: override the preset's.
        jobs: notebooks that run at once; those that measure run alone in any case, after the others.
        notebooks: folder with the notebooks; the project's own unless given.
        on_progress: called with what runs, and the share that is done.

    Raises:
        InvalidValueError: an unknown notebook or parameter; before anything runs.
        RunError: a notebook failed; it is kept, executed up to its error, and the others are whole.
    """
    tasks = [
        Task(each.name, each.path, Path(folder) / each.name, each.arguments(preset, parameters or {}), each.measures)
        for each in choose(names, notebooks)
    ]
    results: dict[str, Result] = {}
    problems: list[str] = []
    for ended in run_tasks(tasks, jobs=jobs, on_progress=on_progress):
        if ended.result is None:
            problems.append(ended.problem)
        else:
            results[ended.task.name] = ended.result
    if problems:
        others = f"; {len(problems) - 1} more failed" if len(problems) > 1 else ""
        raise RunError(problems[0] + others)
    return [results[task.name] for task in tasks]


def copy_notebooks(folder: str | os.PathLike[str]) -> Path:
    """Copies the notebooks into a folder of the user's; one that is there already is theirs, and is kept.

    Raises:
        InvalidValueError: the folder is the one that they come from.
        DocumentError: the folder cannot be written.
    """
    target, home = Path(folder), notebooks_folder()
    if target.resolve() == home.resolve():
        raise InvalidValueError(
            f"{target} holds deeppool's own notebooks, which stay as they are (name another folder)"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in find_notebooks().values():
            copy = target / path.relative_to(home)
            if not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                shutil.copy(path, copy)
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
