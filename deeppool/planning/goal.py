"""Goals of a plan other than the least iteration time: each a query of the frontier.

``ddp_speed``
    The fewest GPU-seconds, of the plans that are no slower than data parallelism in the same cost model, on as many of
    the GPUs as it is fastest on of those on which it fits into memory. What they leave free costs the foreground
    nothing. Where DDP is faster in buckets that plans do not have, they are as fast as the fastest plan.
``cluster_throughput``
    The most samples per second of the foreground and of a background job in all its idle time, of the same plans. A
    plan of iteration time T that holds W of a cluster's N GPUs for W / T, with a global batch B, and a background job
    that takes s GPU-seconds a sample, train B / T + (N - W / T) / s; neither slows the other down. The background
    trains only on GPUs that have room for it beside the plan, at the batch of its profile with which it trains most.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from deeppool.base.number_checks import positive_number, whole_number
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.memory import memory_model
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_count

Goal = Literal["fastest", "ddp_speed", "cluster_throughput"]


@dataclass(frozen=True, slots=True)
class GoalBackground:
    """A background job, as a goal counts it."""

    model: str
    sample_time: float
    """GPU-seconds per sample."""
    batch: int | None = None
    """Its batch on each GPU; None: unknown, as the next in files of earlier versions."""
    memory: int | None = None
    """Bytes that it needs on each GPU."""

    def __post_init__(self) -> None:
        positive_number("sample_time", self.sample_time)

    def fits(self, capacity: float | None, held: float = 0) -> bool:
        """Whether a GPU of some bytes, of which others hold a part, has room for it; true where that is unknown."""
        return capacity is None or self.memory is None or held + self.memory <= capacity


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
    return _job(background, batch)


def _job(background: Profile, batch: int) -> GoalBackground:
    needed = memory_model(background, batch).replica(1)
    return GoalBackground(background.graph.model, background.step_time(batch) / batch, batch, needed)


def background_beside(counted: GoalBackground | None, background: Profile, batch: int | None = None) -> GoalBackground:
    """Returns the background job of a profile beside a plan, which may have been made for it.

    Args:
        counted: background that the plan's goal counts.
        background: profile of the background job.
        batch: its batch. Default: that of the goal if it counts this model, else the profile's largest.
    """
    if batch is None and counted is not None and counted.model == background.graph.model:
        batch = counted.batch
    return _job(background, background.batch_sizes[-1] if batch is None else batch)


def background_jobs(profile: Profile, background: Profile, capacity: float | None) -> tuple[GoalBackground, ...]:
    """Returns the background job at each batch of its profile that fits into a GPU by itself, the largest one first.

    Args:
        profile: profile of the foreground.
        background: profile of the background job.
        capacity: bytes of each GPU; None: unknown.

    Raises:
        PlanError: none fits.
        InvalidValueError: profiles of different devices.
    """
    jobs = [background_job(profile, background, batch) for batch in reversed(background.batch_sizes)]
    check_fits(jobs[-1], capacity)
    return tuple(job for job in jobs if job.fits(capacity))


def check_fits(job: GoalBackground, capacity: float | None) -> None:
    """Raises PlanError unless a background fits into a GPU by itself."""
    if not job.fits(capacity):
        raise PlanError(
            f"background {job.model} does not fit: at batch {job.batch} it needs {format_bytes(job.memory or 0)}, and "
            f"a GPU has {format_bytes(capacity or 0)} (profile it at smaller batches, or take another one)"
        )


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
