"""The ``deeppool calibrate`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, DeviceOption, Precision
from deeppool.cli.output import progress, show


def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the calibration (JSON).")],
    device: DeviceOption = "auto",
    precision: Annotated[
        Precision, typer.Option(help="bf16 and fp16 use autocast; tf32 requires an NVIDIA GPU.")
    ] = "fp32",
    seconds: Annotated[
        float, typer.Option(help="Maximum seconds for each of a dozen networks at each batch size.")
    ] = 1.5,
    as_json: AsJson = False,
) -> None:
    """Measure what kernels cost on this machine in about a minute, so that any model can be estimated for it.

    The file stands for a GPU's name in `deeppool estimate`. It states its own error: that of each measured network as
    estimated from all the others. Leave the machine idle meanwhile.

    Example: `deeppool calibrate --device cpu -o machine.json`

    Example: `deeppool estimate resnet50 --gpu machine.json -o resnet50.json`
    """
    from deeppool.profiling.calibrate.calibrate import calibrate as measure

    with progress() as report:
        found = measure(device=device, precision=precision, seconds=seconds, on_progress=report)
    show(found, as_json, output=output)
