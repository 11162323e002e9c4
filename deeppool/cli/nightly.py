"""``deeppool nightly``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, JobsOption, NotebooksOption
from deeppool.cli.output import progress
from deeppool.errors import InvalidValueError, RunError
from deeppool.units import parse_seconds


def nightly(
    folder: Annotated[Path, typer.Option("-o", "--output", help="Folder of the nightly runs; created if missing.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Notebooks to run; all by default.")
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Full or small parameters of the notebooks.")] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time limit, for example 3h or 90m: notebooks that still run are ended; those that did not run start "
            "first in the next run.",
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="RUNS",
            help="Number of newest runs of each preset and machine that are kept; older ones are removed.",
        ),
    ] = 30,
    jobs: JobsOption = None,
    notebooks: NotebooksOption = None,
    as_json: AsJson = False,
) -> None:
    """Run all notebooks, compare their numbers with earlier nightly runs, keep everything in a folder of the day.

    The folder holds each executed notebook, its HTML report, its records, and index.html with the regression report:
    numbers that changed beyond their noise, notebooks that failed, checks that do not hold. The same command continues
    an interrupted run; a second one at the same time in one folder is refused.

    Exit code 0: everything ran, no number changed, every check holds, expected failures aside. 1: a number changed, a
    notebook failed or was not run, a check does not hold, or the run could not be kept. 2: bad usage.

    Example: deeppool nightly -o nights --full --budget 3h
    """
    from deeppool.evaluation.nightly import nightly as run_nightly

    with progress() as report:
        try:
            finished = run_nightly(
                folder,
                names or [],
                preset="full" if full else "quick",
                budget=_seconds(budget),
                jobs=jobs,
                keep=keep,
                notebooks=notebooks,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise RunError("interrupted; the same command continues this run") from None
    print(json.dumps(finished.to_json()) if as_json else finished)
    if not finished.report.fine:
        sys.exit(1)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds(text)
    except InvalidValueError as error:
        raise typer.BadParameter(f"--budget: {error}") from None
