"""The ``deeppool estimate`` command."""

import json
from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.inputs import warn
from deeppool.cli.options import AsJson, Precision, ShapeOption, numbers, shape
from deeppool.cli.output import progress, show


def _list_gpus(context: typer.Context, name: str) -> str:
    """Prints the data sheets of all GPUs for ``--gpu list``."""
    from deeppool.base import serialization
    from deeppool.device.datasheet import GPUS

    if name == "list":
        if context.params["as_json"]:
            print(json.dumps({"gpus": [serialization.to_json(sheet) for sheet in GPUS.values()]}))
        else:
            print("\n".join(map(str, GPUS.values())))
        raise typer.Exit
    return name


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A torchvision classifier (resnet50, …), bert_base, a language model of transformers (gpt2, …), or "
            "your own model as package.module:callable.",
        ),
    ],
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="GPU, or a file with its data sheet or with the calibration of a machine (`deeppool calibrate`); list "
            "prints the known GPUs and their peak rates.",
            callback=_list_gpus,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the profile (JSON).")],
    input_shape: ShapeOption = None,
    batch_sizes: Annotated[
        str, typer.Option(help="Per-GPU batch sizes to estimate; plans interpolate.")
    ] = "1,2,4,8,16,32,64",
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="tf32 is PyTorch's default for convolutions; bf16 and fp16 use autocast. Default: tf32, or what the "
            "calibration measured."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the layer times of MODEL on a GPU from its data sheet, or on a machine from its calibration.

    Against published training throughputs of 64 models and settings that nothing was fitted to, half of the
    iteration times are within 8 % and nine in ten within 24 % (benchmarks/estimates). The profile and its plans are
    marked as estimated, with the error for their precision.

    Example: `deeppool estimate vgg16 --gpu h100 --precision bf16 -o vgg16-h100.json`
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
            on_progress=report,
        )
    show(found, as_json, output=output)
    warn(found.caveats())
