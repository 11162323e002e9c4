"""Goals of a plan other than the least iteration time: each a query of the frontier.

``ddp_speed``
    The fewest GPU-seconds, of the plans that are no slower than data parallelism in the same cost model, on as many of
    the GPUs as it is fastest on of those on which it fits into memory. What they leave free costs the foreground
    nothing.
``cluster_throughput``
    The most samples per second of the foreground and of a background job in all its idle time, of the same plans. A
    plan of iteration time T that holds W of a cluster's N GPUs for W / T, with a global batch B, and a background job
    that takes s GPU-seconds a sample, train B / T + (N - W / T) / s; neither slows the other down.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from deeppool.base.number_checks import positive_number, whole_number
from deeppool.errors import InvalidValueError
from deeppool.profiling.table import Profile
from deeppool.units import format_count

Goal = Literal["fastest", "ddp_speed", "cluster_throughput"]


@dataclass(frozen=True, slots=True)
class GoalBackground:
    """A background job, as a goal counts it."""

    model: str
    sample_time: float
    """GPU-seconds per sample."""

    def __post_init__(self) -> None:
        positive_number("sample_time", self.sample_time)


def background_job(profile: Profile, background: Profile, batch: int | None = None) -> GoalBackground:
    """Returns the background job of a profile, at the profile's largest batch unless given.

    Raises:
        InvalidValueError: a batch above the profile's largest, or profiles of different devices.
    """
    check_device(background, profile.device_name, profile.device, profile.threads)
    largest = background.batch_sizes[-1]
    batch = largest if batch is None else whole_number("background_batch", batch, least=None)
    if not 1 <= batch <= largest:
        larger = f" (whether a larger one fits the device is not known: profile with --batch-sizes …,{batch})"
        raise InvalidValueError(
            f"background_batch must be from 1 to {largest}, the largest in the profile of {background.graph.model}, "
            f"got {batch}{larger * (batch > largest)}"
        )
    return GoalBackground(background.graph.model, background.step_time(batch) / batch)


def check_device(background: Profile, device_name: str, device: str, threads: int | None = None) -> None:
    """Raises InvalidValueError unless a background's times are of the foreground's device; a plan knows no threads."""
    theirs = f"{background.device_name} ({background.device}, {format_count(background.threads, 'thread')})"
    ours = f"{device_name} ({device}, {format_count(background.threads if threads is None else threads, 'thread')})"
    if ours != theirs:
        raise InvalidValueError(
            f"the foreground's {'plan' if threads is None else 'profile'} is of {ours}, the background's profile of "
            f"{theirs}: both must be of one kind of GPU (profile both on it)"
        )


def check_goal(goal: Goal, *, limited: bool, published: bool, background: bool) -> None:
    """Raises InvalidValueError for a goal that is unknown, or does not go with the other options."""
    if goal not in get_args(Goal):
        raise InvalidValueError(f"goal must be one of {', '.join(get_args(Goal))}, got '{goal}'")
    if background != (goal == "cluster_throughput"):
        raise InvalidValueError(
            "goal 'cluster_throughput' needs the profile of a background job (give background=, or --background)"
            if goal == "cluster_throughput"
            else f"only goal 'cluster_throughput' counts a background, got goal '{goal}' (leave out one of the two)"
        )
    if goal != "fastest" and limited:
        raise InvalidValueError(
            f"goal '{goal}' takes no amplification limit: it chooses how many GPU-seconds to spend "
            "(leave out the limit, or plan for goal 'fastest')"
        )
    if goal != "fastest" and published:
        raise InvalidValueError(f"goal '{goal}' needs search='exact': the paper's algorithm only searches for speed")
