"""Options and arguments that several commands share, and parsers of their values."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.base.sharing import Policy
from deeppool.device.kinds import find_kind
from deeppool.errors import InvalidValueError
from deeppool.units import parse_bytes

AsJson = Annotated[
    # Eager: known to the callbacks of other options, wherever it stands.
    bool,
    typer.Option("--json", is_eager=True, help="Print exactly one JSON object to standard output."),
]


def device_name(text: str) -> str:
    """Checks the name of a device."""
    try:
        if text != "auto":
            find_kind(text, also="auto")
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        callback=device_name,
        help="auto, cpu, cuda, emulated, or emulated:GPU, a GPU of `deeppool estimate --gpu list` in virtual time; "
        "auto selects CUDA if there is a GPU.",
    ),
]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PolicyOption = Annotated[
    Policy | None,
    typer.Option(
        help="How the background shares a core: naive (equal priority), nice (nice 19), priority (lowest priority, the "
        "default), paced (lowest priority, in short pieces with an in-flight limit), feedback (paced, and not during "
        "foreground operators that it slows down), none (no background)."
    ),
]
SlowdownOption = Annotated[
    float | None,
    typer.Option(
        metavar="FRACTION",
        help="Bound on the foreground's mean slowdown, for example 0.01 for 1 %. A controller limits the background's "
        "share of the time accordingly.",
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        help="Shape of one sample, for example 3,224,224, or 128 for tokens. Named models have a default. Several "
        "inputs: input_ids=128,decoder_input_ids=64."
    ),
]
RestartsOption = Annotated[int, typer.Option(help="Maximum number of restarts after a rank died or hung.")]
MinRanksOption = Annotated[
    int | None,
    typer.Option(
        help="Go on with fewer ranks after a GPU was lost, down to this number, and with all when it is back. Requires "
        "--profile, --checkpoints and --restarts.",
    ),
]
PlansProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="PROFILE", help="Profile that PLAN was made from, to plan for fewer ranks."),
]
ProfileArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE",
        help="File written by `deeppool profile MODEL -o FILE`, or the name of a shipped profile (`deeppool profile "
        "--list`).",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="dgx-a100, dgx-h100, dgx-h200, ethernet-25g, loopback, or a cluster file written by `deeppool network -o "
        "FILE`. Default: loopback (measured on one machine) for CPU profiles, dgx-h100 or dgx-h200 for profiles of "
        "those GPUs, else dgx-a100."
    ),
]
NetworkOption = Annotated[
    Literal["ring", "halving-doubling", "hierarchical", "best", "nccl", "measured", "paper"] | None,
    typer.Option(
        help="Cost model of all-reduces: a pattern, measured times of the cluster file, or the simpler model of "
        "DeepPool's paper. Default: measured if the cluster file has measurements, else nccl for GPUs of several "
        "nodes, else ring."
    ),
]
CountsOption = Annotated[
    Literal["powers", "all"],
    typer.Option(
        help="Allowed GPU counts of a layer. powers: powers of two, and all GPUs. all: any; of those with the same "
        "largest shard only the smallest."
    ),
]
OptimizerOption = Annotated[
    Literal["sgd", "momentum", "adam", "adamw"],
    typer.Option(help="Optimizer, for the memory estimate (state in fp32)."),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of each GPU, for example 40GB or 37GiB. Default: the cluster's; without --cluster the profile's "
        "GPU's.",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of notebooks that run in parallel. Notebooks that measure time run alone, after the others. "
        "Default: the number of cores, at most 4.",
    ),
]
NotebooksOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder with your own notebooks. Default: the project's."),
]


def refuse(why: str, **options: object) -> None:
    """Rejects the first of some options that is given, by the name of its parameter."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(f"--{given[0].replace('_', '-')} {why}")


def refuse_given(context: typer.Context, why: str, *names: str) -> None:
    """Rejects the first of some options that is on the command line, also with the value of its default.

    Names of options that the command does not have count as not given.
    """
    sources = {name: context.get_parameter_source(name) for name in names}
    refuse(why, **{name: source for name, source in sources.items() if source and source.name == "COMMANDLINE"})


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Parses numbers such as ``1,2,4``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{option} takes whole numbers with commas, got '{text}'") from None


def memory_size(text: str | None) -> float | None:
    """Parses a size such as ``40GB`` or ``37.5GiB`` to bytes."""
    try:
        return None if text is None else parse_bytes(text)
    except InvalidValueError:
        raise typer.BadParameter(f"--memory takes a size such as 40GB or 37.5GiB, got '{text}'") from None


def shape(text: str | None) -> tuple[int, ...] | dict[str, tuple[int, ...]] | None:
    """Parses a shape such as ``3,224,224``, or ``input_ids=128,decoder_input_ids=64`` for several inputs."""
    if text is None:
        return None
    from deeppool.graph.shapes import parse_shapes

    try:
        found = parse_shapes(text)
    except InvalidValueError:
        found = None
    if found is None:
        raise typer.BadParameter(f"--input-shape takes whole numbers with commas, got '{text}'")
    return found if isinstance(found, tuple) else dict(found)
