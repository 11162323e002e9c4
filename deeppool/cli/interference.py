"""The ``deeppool interference`` command."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, DeviceOption
from deeppool.cli.output import progress, show


def interference(
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the measurements (JSON).")],
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how two jobs on one device slow each other down, for simulations with a background job.

    Measures pairs of synthetic kernels by arithmetic intensity, duration and background priority (DeepPool, figure 12).
    On a CPU it also measures a background at the lowest priority during waits of a foreground, by their length, and
    during transfers. Takes some minutes, and needs an otherwise idle machine.

    Example: `deeppool interference -o pairs.json`

    Use the file: `deeppool simulate plan.json --background job.json --interference pairs.json`

    As heat maps: `deeppool show pairs.json --html pairs.html`
    """
    from deeppool.collocation.interference.measure import measure_interference

    with progress("interrupted; every process was ended, nothing was saved") as report:
        found = measure_interference(device=device, on_progress=report)
    advice = f"Simulate with it: deeppool simulate PLAN … --interference {shlex.quote(str(output))}"
    show(found, as_json, lambda: f"{found}\n\n{advice}", output=output)
