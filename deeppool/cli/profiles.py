"""The ``deeppool env`` and ``deeppool profile`` commands."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import AsJson, DeviceOption, Precision, ShapeOption, numbers, refuse, refuse_given, shape
from deeppool.cli.output import progress, show
from deeppool.errors import DocumentError

READING = {"model", "output", "compare", "list_shipped", "as_json"}
"""Parameters of ``deeppool profile`` where it reads profiles; all others are for measuring a model."""


def env(as_json: AsJson = False) -> None:
    """Show processors, GPUs and their features for sharing, package versions, and the background priority.

    Example: deeppool env --json
    """
    from deeppool.device.environment import environment

    show(environment(), as_json)


def profile(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A named model (vgg16, resnet50, …) or your own: package.module:callable."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File for the profile or the comparison (JSON); required with MODEL."),
    ] = None,
    device: DeviceOption = "auto",
    input_shape: ShapeOption = None,
    batch_sizes: Annotated[str, typer.Option(help="Per-GPU batch sizes to measure; plans interpolate.")] = "1,2,4,8",
    precision: Annotated[
        Precision, typer.Option(help="bf16 and fp16 use autocast; tf32 requires an NVIDIA GPU.")
    ] = "fp32",
    granularity: Annotated[
        Literal["operator", "module", "block"],
        typer.Option(
            help="What counts as one layer: an operator, a module with the activation and normalisation after it, or a "
            "block of modules (residual block, transformer layer)."
        ),
    ] = "module",
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Measure under CUDA graphs, as in runs. Default: on CUDA, emulated."),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(
            help="Number of CPU cores that train at the same time while one is measured, because cores share memory "
            "and power. Use the ranks of the intended plan."
        ),
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            help="Maximum seconds per batch size if its iteration times do not become steady earlier; increase it for "
            "slow models and noisy machines."
        ),
    ] = 6.0,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="BEFORE AFTER", help="List the layers that changed beyond noise between two profiles."),
    ] = None,
    list_shipped: Annotated[
        bool, typer.Option("--list", help="List the shipped profiles, whose names commands accept as PROFILE.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure every layer of MODEL, forward and backward, and check that the layers add up to the whole iteration.

    An interrupted measurement is kept in FILE.partial; the same command resumes it.

    Example: `deeppool profile resnet50 --batch-sizes 1,4,16,64 -o resnet50.json`

    Example: `deeppool profile bert_base --input-shape 128 --granularity block -o bert.json`

    Example: `deeppool profile --compare resnet50.json new.json`
    """
    if (model is not None) + (compare is not None) + list_shipped != 1:
        raise typer.BadParameter("takes one of MODEL, --compare BEFORE AFTER and --list")
    if model is None:
        refuse_given(
            context, "is for measuring MODEL (leave it out)", *(each for each in context.params if each not in READING)
        )
    if list_shipped:
        refuse("is for a profile or a comparison: --list writes none (leave it out)", output=output)
        from deeppool.profiling.shipped import list_profiles

        show(list_profiles(), as_json)
    elif compare is not None:
        from deeppool.profiling.comparison import compare_profiles

        found = compare_profiles(*map(read_profile, compare))
        show(found, as_json, found.explain, output=output)
    elif model is not None:
        if output is None:
            raise typer.BadParameter("MODEL needs -o FILE, the file for the profile")
        # These load torch, which the other two do without.
        from deeppool.graph.capture.capture import capture
        from deeppool.profiling.measure.profile import profile as measure
        from deeppool.profiling.table import Profile

        sample, sizes = shape(input_shape), numbers(batch_sizes, "--batch-sizes")
        unsaved: DocumentError | None = None
        with progress(
            f"interrupted; the same command goes on from {output}.partial, if a measurement was finished"
        ) as report:
            try:
                measured = measure(
                    capture(model, sample, granularity=granularity),
                    device=device,
                    batch_sizes=sizes,
                    precision=precision,
                    graphs=graphs,
                    ranks=ranks,
                    seconds=seconds,
                    output=output,
                    on_progress=report,
                )
            except DocumentError as error:
                if not isinstance(error.record, Profile):
                    raise
                unsaved, measured = error, error.record
        show(measured, as_json, measured.explain)
        if unsaved is not None:
            raise unsaved
