"""``deeppool env``, ``deeppool profile`` and ``deeppool estimate``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import AsJson, Device, Granularity, Precision, ShapeOption, numbers, shape
from deeppool.cli.output import progress, show
from deeppool.errors import RunError


def env(as_json: AsJson = False) -> None:
    """What this machine has: processors, GPUs and what each can do for two jobs, packages, a background's priority."""
    from deeppool.device.environment import environment

    show(environment(), as_json)


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A named model (vgg16, resnet50, …) or your own: package.module:callable."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to save the profile (JSON); needed with MODEL.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto is CUDA where there is a GPU.")] = "auto",
    input_shape: ShapeOption = None,
    batch_sizes: Annotated[str, typer.Option(help="Per-GPU batch sizes to measure; a plan interpolates.")] = "1,2,4,8",
    precision: Annotated[
        Precision, typer.Option(help="bf16 and fp16 run under autocast; tf32 is for an NVIDIA GPU.")
    ] = "fp32",
    granularity: Annotated[
        Granularity,
        typer.Option(
            help="What is planned as one layer: each operator, a module with what follows it, or a block of modules "
            "(a residual block, a transformer layer)."
        ),
    ] = "module",
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Measure CUDA graphs, as jobs run; on CUDA that is the default."),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(
            help="CPU cores that train at the same time, of which one is measured, for plans of as many: cores share "
            "memory and power."
        ),
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            help="To spend on a batch size whose iterations are not steady before; more for a slow model, or a noisy "
            "machine."
        ),
    ] = 6.0,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="BEFORE AFTER", help="Say which layers changed between two profiles, beyond noise."),
    ] = None,
    list_shipped: Annotated[
        bool, typer.Option("--list", help="List the profiles that come with deeppool; PROFILE may be their name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure every layer of MODEL, forward and backward, and check that the layers add up to the whole iteration.

    An interrupted profile keeps what it measured in FILE.partial; the same command goes on from there.

    Example: deeppool profile resnet50 --batch-sizes 1,4,16,64 -o resnet50.json
    or: deeppool profile bert_base --input-shape 128 --granularity block -o bert.json

    Example: deeppool profile --compare resnet50.json new.json
    """
    if (model is not None) + (compare is not None) + list_shipped != 1:
        raise typer.BadParameter("takes one of MODEL, --compare BEFORE AFTER and --list")
    if list_shipped:
        from deeppool.profiling.shipped import list_profiles

        show(list_profiles(), as_json)
    elif compare is not None:
        from deeppool.profiling.comparison import compare_profiles

        found = compare_profiles(*map(read_profile, compare))
        show(found, as_json, found.explain)
    elif model is not None:
        if output is None:
            raise typer.BadParameter("MODEL needs -o FILE, where to save the profile")
        _measure(
            model,
            output,
            device,
            shape(input_shape),
            numbers(batch_sizes, "--batch-sizes"),
            precision,
            granularity,
            graphs,
            ranks,
            seconds,
            as_json,
        )


def _measure(
    model: str,
    output: Path,
    device: Device,
    sample: tuple[int, ...] | dict[str, tuple[int, ...]] | None,
    sizes: tuple[int, ...],
    precision: Precision,
    granularity: Granularity,
    graphs: bool | None,
    ranks: int,
    seconds: float,
    as_json: bool,
) -> None:
    from deeppool.graph.capture.capture import capture
    from deeppool.profiling.measure.profile import profile as measure

    with progress() as report:
        try:
            found = measure(
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
        except KeyboardInterrupt:
            raise RunError(
                f"interrupted; what was measured is in {output}.partial (the same command goes on)"
            ) from None
    show(found, as_json, found.explain)
