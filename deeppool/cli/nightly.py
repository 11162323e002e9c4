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
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the nights; made where it is missing.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Notebooks; all unless given.")] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="The notebooks' full or quick preset.")] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="For example 3h or 90m: what runs then is ended, the rest does not run, and begins the next night.",
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="NIGHTS",
            help="Of each preset and machine these latest nights stay; of those before, one a week for a year, and the "
            "latest complete one. The others are removed.",
        ),
    ] = 14,
    jobs: JobsOption = None,
    notebooks: NotebooksOption = None,
    as_json: AsJson = False,
) -> None:
    """Run all notebooks, compare their numbers with the nights before, keep everything in a folder of the day.

    The folder has each notebook as it ran, a report that needs no network, the records, and index.html with the
    verdict: which numbers moved beyond their own noise, which notebook broke, which check does not hold. The same
    command goes on with a night that was interrupted; two at once in one folder are refused.

    Exit code 0: everything ran, nothing moved, every check holds, but for differences from the paper that the notebooks
    know of. 1: something moved, broke, did not run or does not hold, or the night could not be kept. 2: bad usage.

    Example: deeppool nightly -o nights --budget 3h
    """
    from deeppool.evaluation.nightly import nightly as run_night

    with progress() as report:
        try:
            night = run_night(
                output,
                names or [],
                preset="full" if full else "quick",
                budget=_seconds(budget),
                jobs=jobs,
                keep=keep,
                notebooks=notebooks,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise RunError("interrupted; the same command goes on with this night") from None
    print(json.dumps(night.to_json()) if as_json else night)
    if not night.verdict.fine:
        sys.exit(1)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds(text)
    except InvalidValueError as error:
        raise typer.BadParameter(f"--budget: {error}") from None
