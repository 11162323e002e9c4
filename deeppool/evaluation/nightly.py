"""A nightly run: every notebook by papermill, compared with earlier runs, kept in a folder of the day.

The same call continues an interrupted run: notebooks that are done are not run again.
"""

import datetime
import math
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deeppool.advice.record import Finding, card_lines
from deeppool.base import serialization
from deeppool.base.number_checks import whole_number
from deeppool.device.cpu import usable_cores
from deeppool.device.environment import package_versions
from deeppool.errors import DeeppoolError, DocumentError, InvalidValueError
from deeppool.evaluation.archive import KEEP, NightlyArchive
from deeppool.evaluation.entries import Check
from deeppool.evaluation.execution import NotebookTask
from deeppool.evaluation.findings import machine
from deeppool.evaluation.index import INDEX, write_index
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome, Observation, State
from deeppool.evaluation.notebook_html import PLOTLY, write_plotly
from deeppool.evaluation.notebooks import Notebook, Preset, choose
from deeppool.evaluation.observations import observe
from deeppool.evaluation.process_pool import CompletedTask, default_jobs, run_tasks
from deeppool.evaluation.regression_report import RegressionReport, compare_with_earlier
from deeppool.planning.evaluate.baselines import Verdict
from deeppool.units import format_count

REPORT_FILE = "verdict.json"
MAX_AGE = datetime.timedelta(hours=24)
"""Age up to which an interrupted run is continued; an older one is closed, as its numbers are of another day."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished nightly run."""

    folder: Path
    report: RegressionReport
    command: tuple[str, ...]
    """Words of the command that made it, without names of notebooks."""
    names: tuple[str, ...]
    """Names of notebooks that were given."""

    def to_json(self) -> dict[str, Any]:
        """Returns the run as a JSON object."""
        return {"folder": str(self.folder), "fine": self.report.fine, "verdict": serialization.to_json(self.report)}

    def __str__(self) -> str:
        card = "\n".join(card_lines((finding := self.finding(),), [finding.next_step]))
        return f"{self.report.explain()}\n\nindex page    {self.folder / INDEX}\n\n{card}"

    def finding(self) -> Finding:
        """Returns whether the numbers, notebooks and checks are as before, and what to look at first if not."""
        report, again = self.report, shlex.join((*self.command, *self.names))
        runs = format_count(len(report.compared), "earlier run")
        evidence = (
            f"{format_count(report.judged, 'number')} compared with {runs}; {len(report.moved)} changed, "
            f"{format_count(len(report.broken), 'notebook')} failed, {len(report.not_run)} not run, "
            f"{len(report.unmet)} of {report.checks} checks do not hold"
        )
        names = [x.notebook for x in report.broken] + [x.notebook for x in report.moved]
        names += [x.notebook for x in report.unmet]
        step = f"{shlex.join((*self.command, names[0]))}, which runs that one again" if names else ""
        if report.not_run and not names:
            step = f"{again}, which starts with those that did not run"
        verdict: Verdict = "yes" if report.fine else "no"
        if report.fine and not report.judged:
            verdict, step = "unknown", f"{again}, whose numbers are compared with these"
        return Finding("as before", verdict, None, evidence, step)


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
) -> FinishedRun:
    """Runs notebooks, compares their numbers with earlier runs, and keeps everything in a folder of the day.

    Args:
        folder: folder of the nightly runs; see :mod:`deeppool.evaluation.archive`.
        names: names of notebooks; all by default.
        preset: preset of their parameters.
        budget: seconds after which running notebooks are ended and the run is closed. Those that were done longest
            ago start first.
        jobs: notebooks at once, unless they measure time; by default the number of cores, at most four.
        keep: newest runs of each preset and machine that are kept; older ones are removed.
        notebooks: folder with the notebooks; the project's own by default.
        on_progress: called with what happens, and the share that is done.

    Raises:
        InvalidValueError: an unknown notebook, or a number out of its bounds; before anything runs.
        RunError: another nightly writes to the folder.
        DocumentError: the folder cannot be written; finished notebooks are kept, and the same call continues.
    """
    if budget is not None and not budget > 0:
        raise InvalidValueError(f"budget must be more than 0 s, got {budget}")
    whole_number("keep", keep)
    jobs = default_jobs() if jobs is None else whole_number("jobs", jobs)
    chosen = choose(names, notebooks)
    archive = NightlyArchive(folder)
    with archive.locked():
        run = _begin(archive, chosen, preset)
        run = _execute(
            archive,
            run,
            chosen,
            budget=budget,
            jobs=jobs,
            on_progress=on_progress or (lambda text, share: None),
        )
        published, report = _close(archive, run)
        archive.remove_old(keep)
    command = ["deeppool", "nightly", "-o", str(folder), *(["--full"] if preset == "full" else [])]
    if notebooks is not None:
        command += ["--notebooks", str(notebooks)]
    return FinishedRun(published, report, tuple(command), tuple(names))


def machine_with_cores() -> str:
    """Returns this machine's GPUs or processor and its usable cores; runs of other machines are not compared."""
    return f"{machine()}, {len(usable_cores())} cores"


def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on, and the commit if deeppool runs from a checkout."""
    package = Path(__file__).resolve().parent.parent
    found = package_versions("deeppool", "torch", "torchvision", "numpy", "plotly")

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", package, *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return None if done.returncode else done.stdout.strip()

    # An installed package may lie in a folder that another repository ignores.
    if git("ls-files", "--error-unmatch", "__init__.py") and (commit := git("describe", "--always", "--dirty")):
        found["commit"] = commit
    return found


def _begin(archive: NightlyArchive, chosen: Sequence[Notebook], preset: Preset) -> NightlyRun:
    """Continues the interrupted run if it is the same and recent; otherwise closes it and begins a new one."""
    now = datetime.datetime.now().astimezone()
    run = NightlyRun(
        name="",
        preset=preset,
        device=machine_with_cores(),
        notebooks=tuple(notebook.name for notebook in chosen),
        started=now.isoformat(timespec="seconds"),
        finished="",
        versions=versions(),
        outcomes=(),
    )
    interrupted = archive.load_unfinished()
    if interrupted is None or not interrupted.outcomes:
        archive.discard_unfinished()
    elif replace(interrupted, started=run.started, outcomes=()) == run and now - interrupted.start <= MAX_AGE:
        run = interrupted
    else:
        _close(archive, _mark_not_run(interrupted, "the nightly run was interrupted"))
    by_name = {notebook.name: notebook for notebook in chosen}
    done = tuple(x for x in run.outcomes if x.state == "done" and _is_unchanged(x, by_name[x.name], preset))
    for name in by_name.keys() - {outcome.name for outcome in done}:
        archive.discard_unfinished(name)
    run = replace(run, outcomes=done)
    archive.save_unfinished(run)
    try:
        # Shared by the reports: with a copy in each, a run would take ten times the space.
        write_plotly(archive.unfinished)
    except OSError as error:
        raise DocumentError(f"cannot write {archive.unfinished}: {error.strerror} (free some space)") from error
    return run


def _is_unchanged(outcome: NotebookOutcome, notebook: Notebook, preset: str) -> bool:
    return (outcome.fingerprint, outcome.parameters) == (notebook.fingerprint, notebook.arguments(preset, {}))


def _mark_not_run(run: NightlyRun, problem: str) -> NightlyRun:
    """Marks notebooks without an outcome as ``not run``."""
    known = {outcome.name for outcome in run.outcomes}
    missing = tuple(
        NotebookOutcome(name, name, "not run", problem, False, {}, 0.0, "", "")
        for name in run.notebooks
        if name not in known
    )
    return replace(run, outcomes=run.outcomes + missing)


def _execute(
    archive: NightlyArchive,
    run: NightlyRun,
    chosen: Sequence[Notebook],
    *,
    budget: float | None,
    jobs: int,
    on_progress: Callable[[str, float], None],
) -> NightlyRun:
    """Runs the notebooks without an outcome, and saves the run after each of them."""
    done = {outcome.name for outcome in run.outcomes}
    by_name = {notebook.name: notebook for notebook in chosen}
    tasks = [
        NotebookTask(
            name=x.name,
            path=x.path,
            folder=archive.unfinished / x.name,
            arguments=x.arguments(run.preset, {}),
            measures=x.measures,
            script=f"../{PLOTLY}",
        )
        for x in _least_recent_first([x for x in chosen if x.name not in done], archive.runs())
    ]
    share = len(done) / len(chosen)
    for completed in run_tasks(
        tasks,
        jobs=jobs,
        budget=budget,
        on_progress=lambda text, part: on_progress(text, share + part * (1 - share)),
    ):
        outcome = _outcome(completed, by_name[completed.task.name], archive)
        run = replace(run, outcomes=(*run.outcomes, outcome))
        archive.save_unfinished(run)
    return run


def _least_recent_first(waiting: Sequence[Notebook], runs: Sequence[NightlyRun]) -> list[Notebook]:
    """Sorts notebooks so that a budget which is too small for all skips different ones each time."""
    last: dict[str, float] = {}
    for run in runs:
        last |= {outcome.name: run.start.timestamp() for outcome in run.outcomes if outcome.state == "done"}
    return sorted(waiting, key=lambda notebook: last.get(notebook.name, -math.inf))


def _outcome(completed: CompletedTask, notebook: Notebook, archive: NightlyArchive) -> NotebookOutcome:
    task = completed.task
    executed = task.folder / notebook.path.name
    problem = completed.problem
    state: State = "not run" if completed.out_of_time else "failed"
    observations: tuple[Observation, ...] = ()
    checks: tuple[Check, ...] = ()
    if completed.executed is not None:
        try:
            observations, checks = observe(task.folder)
            state = "done"
        except DeeppoolError as error:
            problem = str(error)
    return NotebookOutcome(
        name=notebook.name,
        title=notebook.title,
        state=state,
        # Paths relative to the run's folder, which is renamed when the run is finished.
        problem=problem.replace(f"{archive.unfinished}{os.sep}", ""),
        measures=notebook.measures,
        parameters=task.arguments,
        seconds=completed.seconds,
        notebook=_relative(executed, archive),
        html=_relative(executed.with_suffix(".html"), archive),
        observations=observations,
        checks=checks,
        fingerprint=notebook.fingerprint,
    )


def _relative(path: Path, archive: NightlyArchive) -> str:
    return path.relative_to(archive.unfinished).as_posix() if path.is_file() else ""


def _close(archive: NightlyArchive, run: NightlyRun) -> tuple[Path, RegressionReport]:
    """Compares the run with earlier ones, writes its report and index page, and publishes it in the folder returned."""
    run = replace(
        run,
        name=archive.free_name(run.started[:10]),
        finished=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        outcomes=tuple(sorted(run.outcomes, key=lambda outcome: run.notebooks.index(outcome.name))),
    )
    report = compare_with_earlier(run, archive.runs())
    serialization.write(report, archive.unfinished / REPORT_FILE)
    write_index(run, report, archive.unfinished)
    return archive.publish(run), report
