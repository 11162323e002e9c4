"""A night: every notebook by papermill, a verdict beside the nights before, a folder that stays.

A night that was interrupted is continued by the same call: notebooks that are done are not run again.
"""

import datetime
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.device.cpu import usable_cores
from deeppool.device.environment import package_versions
from deeppool.errors import DeeppoolError, DocumentError, InvalidValueError
from deeppool.evaluation.archive import Archive
from deeppool.evaluation.crew import Ended, run_tasks, usual_jobs
from deeppool.evaluation.findings import machine
from deeppool.evaluation.index import write_index
from deeppool.evaluation.lock import sole_writer
from deeppool.evaluation.nightly_record import NightlyRun, Observation, Outcome, State
from deeppool.evaluation.notebooks import Notebook, Preset, choose
from deeppool.evaluation.observations import observe
from deeppool.evaluation.record import Check
from deeppool.evaluation.regression_report import RegressionReport, compare_with_earlier
from deeppool.evaluation.retention import KEEP, superfluous
from deeppool.evaluation.task import Task
from deeppool.evaluation.thumbnails import PLOTLY, draw_thumbnails, write_plotly

VERDICT = "verdict.json"
STALE = datetime.timedelta(hours=24)
"""After which an interrupted night is closed as it is: its numbers are of another day."""


@dataclass(frozen=True, slots=True)
class Report:
    """A night that is over."""

    folder: Path
    verdict: RegressionReport

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"folder": str(self.folder), "fine": self.verdict.fine, "verdict": serialization.to_json(self.verdict)}

    def __str__(self) -> str:
        return f"{self.verdict.explain()}\n\nthe night     {self.folder / 'index.html'}"


def nightly(
    folder: str | os.PathLike[str],
    names: Sequence[str] = (),
    *,
    preset: Preset = "quick",
    budget: float | None = None,
    jobs: int | None = None,
    keep: int = KEEP,
    notebooks: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Report:
    """Runs notebooks, judges what they found, and keeps all of it in a folder named for the day.

    Args:
        folder: of the nights; see :mod:`deeppool.evaluation.archive`.
        names: of notebooks; all unless given.
        preset: of their parameters.
        budget: seconds after which what runs is ended and the night closed. Those that were done longest ago begin.
        jobs: notebooks that run at once, where they do not measure; up to four, as there are cores, unless given.
        keep: nights that stay in any case, see :mod:`deeppool.evaluation.retention`.
        notebooks: folder with the notebooks; the project's own unless given.
        on_progress: called with what happens, and the share that is done.

    Raises:
        InvalidValueError: an unknown notebook, or a number out of its bounds; before anything runs.
        RunError: another nightly writes to the folder.
        DocumentError: the folder cannot be written; what was done stays, and the same call goes on with it.
    """
    if budget is not None and budget <= 0:
        raise InvalidValueError(f"budget must be more than 0 s, got {budget}")
    superfluous((), keep)
    chosen = choose(names, notebooks)
    archive = Archive(folder)
    with sole_writer(archive.folder):
        archive.remove([])
        night = _begin(archive, chosen, preset, machine_with_cores(), versions())
        night = _run(
            archive,
            night,
            chosen,
            budget=budget,
            jobs=jobs or usual_jobs(),
            on_progress=on_progress or (lambda what, share: None),
        )
        report = _close(archive, night)
        archive.remove(superfluous(archive.nights(), keep))
    return report


def machine_with_cores() -> str:
    """Its GPUs or its processor, and how many cores there are: other ones are another series of nights."""
    return f"{machine()}, {len(usable_cores())} cores"


def versions() -> dict[str, str]:
    """Of what the numbers depend on, and the commit where deeppool runs from a checkout."""
    package = Path(__file__).resolve().parent.parent
    found = package_versions("deeppool", "torch", "torchvision", "numpy", "plotly")

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", package, *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return None if done.returncode else done.stdout.strip()

    # An installed package may lie in a folder that some other repository ignores.
    if git("ls-files", "--error-unmatch", "__init__.py") and (commit := git("describe", "--always", "--dirty")):
        found["commit"] = commit
    return found


def _begin(
    archive: Archive, chosen: Sequence[Notebook], preset: Preset, device: str, installed: dict[str, str]
) -> NightlyRun:
    """The interrupted night where it is this one; else a new one, and the other one is closed."""
    now = datetime.datetime.now().astimezone()
    fresh = NightlyRun(
        name="",
        preset=preset,
        device=device,
        notebooks=tuple(notebook.name for notebook in chosen),
        started=now.isoformat(timespec="seconds"),
        finished="",
        versions=installed,
        outcomes=(),
    )
    old = archive.resume()
    if old is None or not old.outcomes:
        archive.clear()
    elif replace(old, started=fresh.started, outcomes=()) == fresh and now - _started(old) <= STALE:
        fresh = old
    else:
        _close(archive, _without_outcomes(old, "the night was interrupted"))
    by_name = {notebook.name: notebook for notebook in chosen}
    done = tuple(x for x in fresh.outcomes if x.state == "done" and _same(x, by_name[x.name], preset))
    for name in by_name.keys() - {outcome.name for outcome in done}:
        archive.discard(name)
    night = replace(fresh, outcomes=done)
    archive.keep(night)
    try:
        # Reports share it: with one each, a night would be ten times as large.
        write_plotly(archive.unfinished)
    except OSError as error:
        raise DocumentError(f"cannot write {archive.unfinished}: {error.strerror} (free some space)") from error
    return night


def _same(outcome: Outcome, notebook: Notebook, preset: str) -> bool:
    return (outcome.fingerprint, outcome.parameters) == (notebook.fingerprint, notebook.arguments(preset, {}))


def _started(night: NightlyRun) -> datetime.datetime:
    return datetime.datetime.fromisoformat(night.started)


def _without_outcomes(night: NightlyRun, problem: str) -> NightlyRun:
    """A night in which what has no outcome did not run."""
    known = {outcome.name for outcome in night.outcomes}
    missing = tuple(
        Outcome(name, name, "not run", problem, False, {}, 0.0, "", "") for name in night.notebooks if name not in known
    )
    return replace(night, outcomes=night.outcomes + missing)


def _run(
    archive: Archive,
    night: NightlyRun,
    chosen: Sequence[Notebook],
    *,
    budget: float | None,
    jobs: int,
    on_progress: Callable[[str, float], None],
) -> NightlyRun:
    """Runs what has no outcome yet; each is written down when it is over."""
    done = {outcome.name for outcome in night.outcomes}
    by_name = {notebook.name: notebook for notebook in chosen}
    waiting = _longest_ago_first([x for x in chosen if x.name not in done], archive.nights())
    tasks = [
        Task(x.name, x.path, archive.unfinished / x.name, x.arguments(night.preset, {}), x.measures, f"../{PLOTLY}")
        for x in waiting
    ]
    share = len(done) / len(chosen)
    for ended in run_tasks(
        tasks,
        jobs=jobs,
        seconds=budget,
        on_progress=lambda what, part: on_progress(what, share + part * (1 - share)),
    ):
        night = replace(night, outcomes=(*night.outcomes, _outcome(ended, by_name[ended.task.name], archive)))
        archive.keep(night)
    return night


def _longest_ago_first(waiting: Sequence[Notebook], nights: Sequence[NightlyRun]) -> list[Notebook]:
    """So that a budget which is too small for all leaves out other notebooks each night."""
    last: dict[str, str] = {}
    for night in nights:
        last |= {outcome.name: night.started for outcome in night.outcomes if outcome.state == "done"}
    return sorted(waiting, key=lambda notebook: last.get(notebook.name, ""))


def _outcome(ended: Ended, notebook: Notebook, archive: Archive) -> Outcome:
    folder = ended.task.folder
    executed = folder / notebook.path.name
    html = executed.with_suffix(".html")
    problem = ended.problem
    state: State = "not run" if ended.out_of_time else "failed"
    observations: tuple[Observation, ...] = ()
    checks: tuple[Check, ...] = ()
    if ended.result is not None:
        try:
            observations, checks = observe(folder)
            state = "done"
        except DeeppoolError as error:
            problem = str(error)
    return Outcome(
        name=notebook.name,
        title=notebook.title,
        state=state,
        # Where it lies in the end.
        problem=problem.replace(f"{archive.unfinished}{os.sep}", ""),
        measures=notebook.measures,
        parameters=ended.task.arguments,
        seconds=ended.seconds,
        notebook=_below(executed, archive),
        html=_below(html, archive),
        observations=observations,
        checks=checks,
        fingerprint=notebook.fingerprint,
    )


def _below(path: Path, archive: Archive) -> str:
    return path.relative_to(archive.unfinished).as_posix() if path.is_file() else ""


def _close(archive: Archive, night: NightlyRun) -> Report:
    """Judges a night that is over, and makes it one of the archive's."""
    order = {name: place for place, name in enumerate(night.notebooks)}
    over = replace(
        night,
        name=archive.free_name(night.started[:10]),
        finished=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        outcomes=tuple(sorted(night.outcomes, key=lambda outcome: order[outcome.name])),
    )
    over = draw_thumbnails(over, archive.unfinished)
    found = compare_with_earlier(over, archive.nights())
    serialization.write(found, archive.unfinished / VERDICT)
    write_index(over, found, archive.unfinished)
    return Report(archive.publish(over), found)
