"""``deeppool estimate``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, ModelArgument, Precision, ShapeOption, numbers, shape
from deeppool.cli.output import progress, show


def _list_gpus(name: str) -> str:
    """``--gpu list`` prints what is known of each and ends."""
    from deeppool.device.datasheet import GPUS

    if name == "list":
        print("\n".join(map(str, GPUS.values())))
        raise typer.Exit
    return name


def estimate(
    model: ModelArgument,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="a100-40, a100-80, h100 or h200; list shows their peaks.",
            callback=_list_gpus,
            is_eager=True,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to save the profile (JSON).")],
    input_shape: ShapeOption = None,
    batch_sizes: Annotated[
        str, typer.Option(help="Per-GPU batch sizes to estimate; a plan interpolates.")
    ] = "1,2,4,8,16,32,64",
    precision: Annotated[
        Precision, typer.Option(help="tf32, as PyTorch does convolutions; fp32 without; bf16 and fp16 under autocast.")
    ] = "tf32",
    as_json: AsJson = False,
) -> None:
    """Estimate every distinct layer of MODEL on a GPU that is not here, from its data sheet.

    Nothing is run. On A100 layers over 100 us of models not fitted on, half of the estimates are within 7 % and nine in
    ten within 17 % (benchmarks/estimates); on other GPUs and in 16 bits the error is not known. The profile, and every
    plan made of it, say that they are estimated.

    Example: deeppool estimate vgg16 --gpu h100 --precision bf16 -o vgg16-h100.json
    """
    from deeppool.profiling.estimate.estimate import estimate as compute

    sizes = numbers(batch_sizes, "--batch-sizes")
    with progress() as report:
        found = compute(
            model,
            shape(input_shape),
            gpu=gpu,
            batch_sizes=sizes,
            precision=precision,
            output=output,
            on_progress=report,
        )
    show(found, as_json)
