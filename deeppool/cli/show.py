"""The ``deeppool show`` command."""

import json
from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson


def show_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Files of any kind that deeppool wrote: plans, runs, …")
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="HTML page to write, with the figures; it needs no network."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show records: plans, profiles, runs, trainings, simulations and all other files of deeppool.

    Example: `deeppool show plan.json run.json --html report.html`
    """
    from deeppool.advice.card import text_with_card
    from deeppool.base import serialization
    from deeppool.records.files import load

    records = [load(path) for path in files]
    if as_json:
        documents = [serialization.to_json(record) for record in records]
        print(json.dumps(documents[0] if len(documents) == 1 else {"records": documents}), flush=True)
    else:
        headings = [f"{path}:\n" if len(files) > 1 else "" for path in files]
        texts = [heading + text_with_card(record) for heading, record in zip(headings, records, strict=True)]
        print("\n\n".join(texts), flush=True)
    if html is not None:
        from deeppool.figures.record_page import record_page

        parts = [(f"{path.name}: {record.KIND}", record) for path, record in zip(files, records, strict=True)]
        serialization.write_text(record_page(", ".join(path.name for path in files), parts), html)
