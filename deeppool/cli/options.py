"""Options and arguments that several commands share, and how their text is read."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.errors import InvalidValueError
from deeppool.units import parse_bytes

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Policy = Literal["none", "naive", "nice", "priority", "paced", "feedback"]
PolicyOption = Annotated[
    Policy | None,
    typer.Option(
        help="How the background shares a core: as an equal (naive), at nice 19 (nice), at the lowest priority "
        "(priority, the default), so and in short pieces of which few are in flight (paced), or with those kept from "
        "operators of the foreground that suffer (feedback); none runs no background."
    ),
]
SlowdownOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Bound on the foreground's mean slowdown, for example 0.01 for 1 %: the background gets the share of the "
        "time at which it holds.",
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(help="Samples of a step of the background (4 unless given); a smaller batch keeps less in flight."),
]
EmulateOption = Annotated[
    int | None,
    typer.Option(
        metavar="RANK",
        help="Run this rank of the plan alone, on one GPU or core, as it would run among all of them: transfers and "
        "the other ranks are modelled waits.",
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Any classifier of torchvision (resnet50, …), bert_base, any language model of transformers (gpt2, …), "
        "or your own: package.module:callable."
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        help="Shape of one sample, for example 3,224,224, or 128 tokens; named models have their own. "
        "Of several inputs: input_ids=128,decoder_input_ids=64."
    ),
]
Granularity = Literal["operator", "module", "block"]
ProfileArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE", help="Made by: deeppool profile MODEL -o FILE; or a shipped one by its name: --list there."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="dgx-a100, dgx-h100, dgx-h200, ethernet-25g, loopback, or a cluster file. "
        "Default: loopback for a profile of a CPU, dgx-h100 or dgx-h200 for one of such GPUs, else dgx-a100. loopback "
        "holds one machine's numbers: deeppool network -o mine.json measures yours, and --cluster mine.json takes them."
    ),
]
NetworkOption = Annotated[
    Literal["ring", "halving-doubling", "hierarchical", "best", "measured", "paper"] | None,
    typer.Option(
        help="What prices all-reduces: a pattern, what deeppool network measured, or the simpler model of DeepPool's "
        "paper. Default: measured where the cluster file was, else ring."
    ),
]
CountsOption = Annotated[
    Literal["powers", "all"], typer.Option(help="GPU counts that a layer may have: powers of two, or any.")
]
OptimizerOption = Annotated[
    Literal["sgd", "momentum", "adam", "adamw"], typer.Option(help="Whose state each GPU holds, in fp32.")
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Memory of each GPU, for example 40GB or 37GiB; the cluster says it unless given."
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Notebooks that run at once; those that measure run alone, after the others. Up to four, as there are "
        "cores, unless given.",
    ),
]
NotebooksOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Your own notebooks; the project's unless given."),
]


def numbers(text: str, option: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{option} takes whole numbers with commas, got '{text}'") from None


def memory_size(text: str | None) -> float | None:
    """``40GB`` or ``37.5GiB`` in bytes."""
    try:
        return None if text is None else parse_bytes(text)
    except InvalidValueError:
        raise typer.BadParameter(f"--memory takes a size such as 40GB or 37.5GiB, got '{text}'") from None


def shape(text: str | None) -> tuple[int, ...] | dict[str, tuple[int, ...]] | None:
    """``3,224,224`` as a shape, or ``input_ids=128,decoder_input_ids=64`` as one per input."""
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


def default_cluster(device: str, device_name: str) -> str:
    """The cluster that times on a device are planned for: of such GPUs where it is known, else DGX A100s."""
    if device == "cpu":
        return "loopback"
    return next((f"dgx-{name.lower()}" for name in ("H100", "H200") if name in device_name), "dgx-a100")
