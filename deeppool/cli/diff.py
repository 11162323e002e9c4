"""The ``deeppool diff`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson
from deeppool.cli.output import show


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="File of any kind that deeppool wrote.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another of the same kind.")],
    as_json: AsJson = False,
) -> None:
    """Compare two files of one kind.

    Plans: parameters, totals, and each layer whose GPUs changed; a layer's change in time is the sum of three parts:
    compute, transfer of its inputs, and gradient synchronisation. Runs and profiles: what changed beyond noise. Other
    kinds: the fields that differ.

    Example: `deeppool diff limit2.json limit4.json`

    Two runs: `deeppool diff monday.json tuesday.json`
    """
    from deeppool.planning.report.comparison import compare_records
    from deeppool.records.files import load

    found = compare_records(load(before), load(after))
    show(found, as_json, found.explain)
