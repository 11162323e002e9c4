"""Options of simulations that say how the cluster deviates from the plan and how a background shares a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deeppool.base.sharing import Policy
from deeppool.cli.options import refuse_given
from deeppool.errors import InvalidValueError

if TYPE_CHECKING:
    from deeppool.simulation.device.interference import Interference
    from deeppool.simulation.plan.conditions import Conditions

SLOW = "Deviations from the plan"
InterferenceOption = Annotated[
    Path | None,
    typer.Option(help="File written by `deeppool interference -o FILE`, for the cost of a background job."),
]
SharingOption = Annotated[
    Policy | None, typer.Option(help="How backgrounds share the GPUs, with --interference (default: priority).")
]
SpeedOption = Annotated[
    list[str] | None,
    typer.Option(metavar="GPU=FACTOR", help="Speed of a GPU: 3=0.5 makes GPU 3 half as fast.", rich_help_panel=SLOW),
]
JitterOption = Annotated[
    float, typer.Option(help="Log-normal spread of compute times between iterations.", rich_help_panel=SLOW)
]
StragglingOption = Annotated[
    float, typer.Option(help="Probability that a GPU is a straggler in an iteration.", rich_help_panel=SLOW)
]
DelayOption = Annotated[
    float, typer.Option(help="Mean relative delay of a straggler: 1 takes twice as long.", rich_help_panel=SLOW)
]
SeedOption = Annotated[int, typer.Option(help="Random seed.", rich_help_panel=SLOW)]


def read_interference(path: Path | None, policy: Policy | None, max_slowdown: float | None) -> "Interference | None":
    """Reads a file of measured interference, if one is given; it is needed for how backgrounds share the GPUs.

    Raises:
        typer.BadParameter: it is not given.
    """
    from deeppool.base import serialization
    from deeppool.simulation.device.interference import Interference

    if path is not None:
        return serialization.read(path, Interference)
    if policy is not None or max_slowdown is not None:
        raise typer.BadParameter(
            "it says how backgrounds share the GPUs: give --interference too",
            param_hint="--max-slowdown" if policy is None else "--policy",
        )
    return None


def refuse_unused(context: typer.Context, given: "Conditions", randomness: str) -> None:
    """Rejects options of random deviations that are on the command line, where these conditions have none.

    Args:
        context: of the command.
        given: its conditions.
        randomness: the options that make some.
    """
    if not given.straggling:
        refuse_given(context, "is how late a straggler is (give --straggling too)", "delay")
    if not given.random:
        refuse_given(context, f"is for random deviations, and there are none (give {randomness})", "seed", "iterations")


def conditions(speeds: list[str] | None, **others: Any) -> "Conditions":
    """Parses speeds such as ``3=0.5``; the other arguments are those of Conditions.

    Raises:
        InvalidValueError: a text is no GPU with its speed, or an argument is out of its bounds.
    """
    from deeppool.cluster.cluster import MAXIMUM_GPUS
    from deeppool.simulation.plan.conditions import Conditions

    by_gpu: dict[int, float] = {}
    for text in speeds or []:
        gpu, _, factor = text.partition("=")
        try:
            number, speed = int(gpu), float(factor)
        except ValueError:
            raise InvalidValueError(f"a speed is, for example, 3=0.5 for GPU 3 at half, got '{text}'") from None
        if number < 0:
            raise InvalidValueError(f"GPUs count from 0, got the speed '{text}'")
        if number >= MAXIMUM_GPUS:
            raise InvalidValueError(f"a cluster has at most {MAXIMUM_GPUS} GPUs, from 0 on, got the speed '{text}'")
        if number in by_gpu:
            raise InvalidValueError(f"GPU {number} has two speeds, {by_gpu[number]:g} and {speed:g} (give one)")
        by_gpu[number] = speed
    return Conditions(speeds=tuple(by_gpu.get(gpu, 1.0) for gpu in range(max(by_gpu, default=-1) + 1)), **others)
