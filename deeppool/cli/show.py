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

    A run or a training beside its plan is judged by what the plan says of DDP.

    Example: `deeppool show plan.json run.json --html report.html`
    """
    from deeppool.advice.card import text_with_card
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.records.files import load

    records = [load(path) for path in files]
    if as_json:
        documents = [serialization.to_json(record) for record in records]
        print(json.dumps(documents[0] if len(documents) == 1 else {"records": documents}), flush=True)
    else:
        # Each plan has a time of its own, which its run repeats.
        plans = {
            (record.model, record.iteration_time): (record, str(path))
            for path, record in zip(files, records, strict=True)
            if isinstance(record, Plan)
        }
        texts = []
        for path, record in zip(files, records, strict=True):
            ran = plans.get((getattr(record, "model", ""), getattr(record, "plan_iteration_time", 0.0)), ())
            text = text_with_card(record, *ran)
            texts.append(f"{path}:\n{text}" if len(files) > 1 else text)
        print("\n\n".join(texts), flush=True)
    if html is not None:
        from deeppool.figures.record_page import record_page

        parts = [(f"{path.name}: {record.KIND}", record) for path, record in zip(files, records, strict=True)]
        serialization.write_text(record_page(", ".join(path.name for path in files), parts), html)
