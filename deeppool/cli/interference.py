"""``deeppool interference``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, Device
from deeppool.cli.output import progress, show
from deeppool.errors import RunError


def interference(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to save it (JSON).")],
    device: Annotated[Device, typer.Option(help="auto is CUDA where there is a GPU.")] = "auto",
    seconds: Annotated[float, typer.Option(help="Of each pair in each round.")] = 0.2,
    rounds: Annotated[int, typer.Option(help="Whose median counts.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure what two jobs on one device cost each other, for simulations of a background beside a plan.

    Synthetic kernels by arithmetic intensity and duration, each beside each, by the background's priority: figure 12 of
    DeepPool's paper. On a CPU also what a background at the lowest priority gets done while a foreground waits, by
    the length of the wait, and inside transfers. Some minutes, on a machine that does nothing else.

    Example: deeppool interference -o pairs.json

    Simulate with it: deeppool simulate plan.json --background job.json --interference pairs.json

    The heat maps of all pairs, in a notebook: dp.figures.of(dp.load("pairs.json"))
    """
    from deeppool.base import serialization
    from deeppool.collocation.interference.measure import measure_interference

    serialization.check_writable(output)
    with progress() as report:
        try:
            found = measure_interference(device=device, seconds=seconds, rounds=rounds, on_progress=report)
        except KeyboardInterrupt:
            raise RunError("interrupted; every process was ended, nothing was saved") from None
    serialization.write(found, output)
    show(found, as_json, lambda: f"{found}\n\nSimulate with it: deeppool simulate PLAN … --interference {output}")
