"""``deeppool env`` and ``deeppool profile``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, Device, ModelArgument, Precision, ShapeOption, numbers, shape
from deeppool.cli.output import progress, show
from deeppool.errors import RunError


def env(as_json: AsJson = False) -> None:
    """What this machine has: processors, GPUs, packages, the priority that a background job gets."""
    from deeppool.env import environment

    show(environment(), as_json)


def profile(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to save the profile (JSON).")],
    device: Annotated[Device, typer.Option(help="auto is CUDA where there is a GPU.")] = "auto",
    input_shape: ShapeOption = None,
    batch_sizes: Annotated[str, typer.Option(help="Per-GPU batch sizes to measure; a plan interpolates.")] = "1,2,4,8",
    precision: Annotated[Precision, typer.Option(help="bf16 and fp16 run under autocast.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Measure every distinct layer of MODEL, forward and backward.

    An interrupted profile keeps what it measured in FILE.partial; the same command goes on from there.

    Example: deeppool profile resnet50 --batch-sizes 1,4,16,64 -o resnet50.json
    """
    from deeppool.profiling.measure import profile as measure

    sizes = numbers(batch_sizes, "--batch-sizes")
    with progress() as report:
        try:
            found = measure(
                model,
                shape(input_shape),
                device=device,
                batch_sizes=sizes,
                precision=precision,
                output=output,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise RunError(
                f"interrupted; what was measured is in {output}.partial (the same command goes on)"
            ) from None
    show(found, as_json)
