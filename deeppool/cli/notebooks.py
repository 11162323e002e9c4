"""``deeppool evaluate`` and ``deeppool lab``."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deeppool.cli.options import AsJson, JobsOption, NotebooksOption
from deeppool.cli.output import progress
from deeppool.errors import RunError


def evaluate(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Notebooks; all unless given.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for notebooks, HTML and records.")
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="The notebook's full or quick preset.")] = False,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Overrides one parameter.")
    ] = None,
    jobs: JobsOption = None,
    notebooks: NotebooksOption = None,
    listed: Annotated[bool, typer.Option("--list", help="List the notebooks with their titles; run none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run notebooks by papermill; leaves each executed, with an HTML report that needs no network.

    Example: deeppool evaluate burst-parallel -p global_batch=32 -o reports
    """
    from deeppool.evaluation.crew import usual_jobs
    from deeppool.evaluation.notebooks import evaluate as run_notebooks

    if listed:
        _list(names or [], notebooks, as_json)
        return
    if output is None:
        raise typer.BadParameter("missing option -o: a folder for notebooks, HTML and records (--list lists the names)")
    with progress() as report:
        try:
            results = run_notebooks(
                names or [],
                output,
                preset="full" if full else "quick",
                parameters=_assignments(parameter),
                jobs=jobs or usual_jobs(),
                notebooks=notebooks,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise RunError(f"interrupted; finished notebooks are in {output}") from None
    if as_json:
        print(json.dumps({"notebooks": [result.to_json() for result in results]}))
    else:
        print("\n\n".join(map(str, results)))


def _list(names: list[str], folder: Path | None, as_json: bool) -> None:
    from deeppool.evaluation.notebooks import choose
    from deeppool.planning.report.tables import render, table

    found = choose(names, folder)
    if as_json:
        print(json.dumps({"notebooks": [notebook.to_json() for notebook in found]}))
        return
    rows = table("name")
    rows.add_column("title", overflow="fold")
    rows.add_column("runs")
    for notebook in found:
        rows.add_row(notebook.name, notebook.title, "alone" if notebook.measures else "beside others")
    print(render("Notebooks; their parameters are in --list --json", rows))


def lab(
    folder: Annotated[Path, typer.Argument(help="Where your copies of the notebooks are, or shall be.")] = Path(
        "deeppool-notebooks"
    ),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="To listen on; the first free one from 8888 unless given.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")] = True,
) -> None:
    """Open JupyterLab on your own copy of the notebooks: on this machine only, behind its token.

    What you edit in a copy is kept; delete one to get it as it was. Ctrl-C ends JupyterLab.

    Example: deeppool lab my-notebooks --no-browser --port 8890
    """
    from deeppool.evaluation.notebooks import copy_notebooks, start_lab

    copies = copy_notebooks(folder)
    print(
        f"Your notebooks are in {copies.resolve()}: what you edit there is kept, delete one to get it as it was.",
        file=sys.stderr,
    )
    start_lab(copies, port=port, browser=browser)


def _assignments(pairs: list[str] | None) -> dict[str, Any]:
    """``NAME=VALUE`` pairs; values are JSON where they can be, else text."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"-p takes NAME=VALUE, got '{pair}'")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found
