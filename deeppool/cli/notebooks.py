"""``deeppool evaluate`` and ``deeppool lab``."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deeppool.cli.options import AsJson, JobsOption, NotebooksOption, refuse
from deeppool.cli.output import progress
from deeppool.errors import RunError


def evaluate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Notebooks to run; all by default.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output folder for executed notebooks, reports and records.")
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Full or small parameters of the notebooks.")] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Override one parameter; may be repeated."),
    ] = None,
    jobs: JobsOption = None,
    notebooks: NotebooksOption = None,
    listed: Annotated[bool, typer.Option("--list", help="List the notebooks and their titles, and run none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run notebooks with papermill; each is kept as executed, with an HTML report that needs no network.

    Example: deeppool evaluate burst-parallel -p global_batch=32 -o reports
    """
    from deeppool.evaluation.notebooks import evaluate as run_notebooks
    from deeppool.evaluation.process_pool import default_jobs

    if listed:
        refuse(
            "is for running notebooks: --list runs none (leave it out)",
            output=folder,
            full=full or None,
            parameter=parameter or None,
            jobs=jobs,
        )
        _list(names or [], notebooks, as_json)
        return
    if folder is None:
        raise typer.BadParameter(
            "missing option -o: an output folder for notebooks, reports and records (--list lists the names)"
        )
    with progress() as report:
        try:
            results = run_notebooks(
                names or [],
                folder,
                preset="full" if full else "quick",
                parameters=_assignments(parameter),
                jobs=jobs or default_jobs(),
                notebooks=notebooks,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise RunError(f"interrupted; finished notebooks are in {folder}") from None
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
    print(render("Notebooks (--list --json shows their parameters)", rows))


def lab(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of your copies of the notebooks; created if missing.")
    ] = Path("deeppool-notebooks"),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on; by default the first free one from 8888.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")] = True,
) -> None:
    """Open JupyterLab on your own copies of the notebooks; it listens on this machine only and requires its token.

    Edited copies are kept; delete one to restore the original. Ctrl-C ends JupyterLab.

    Example: deeppool lab my-notebooks --no-browser --port 8890
    """
    from deeppool.evaluation.notebooks import copy_notebooks, start_lab

    copies = copy_notebooks(folder)
    print(
        f"Your notebooks are in {copies.resolve()}: edited copies are kept, delete one to restore the original.",
        file=sys.stderr,
    )
    start_lab(copies, port=port, browser=browser)


def _assignments(pairs: list[str] | None) -> dict[str, Any]:
    """Parses ``NAME=VALUE`` pairs; values are JSON, or text if they are not valid JSON."""
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
