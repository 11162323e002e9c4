"""Simulation of a background job on every GPU of a plan: slowdown of the foreground and harvest.

Each GPU is simulated separately (``simulation.device.collocated``) with the plan's idle times unchanged. The ranks
wait for the slowest one, so the plan slows down by at least the largest slowdown.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from deeppool.base.sharing import Sharing
from deeppool.device.kinds import find_kind
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.memory import gpu_names
from deeppool.planning.goal import background_beside, check_device
from deeppool.planning.plan import Plan
from deeppool.profiling.table import Profile
from deeppool.simulation.device.collocated import (
    CollocatedSimulation,
    DeviceModel,
    SimulatedPiece,
    SimulatedStep,
    simulate_collocated,
)
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.fidelity import Fidelity
from deeppool.simulation.plan.simulate import GpuActivity, gpu_activities
from deeppool.units import format_bytes, format_rate


@dataclass(frozen=True, slots=True)
class CollocatedPlan:
    """Simulations of a background job on each GPU that a plan uses."""

    KIND: ClassVar[str] = "collocated-plan"

    model: str
    background_model: str
    background_batch: int
    background_sample_time: float
    """Seconds per sample, alone."""
    interference: str
    """Device and date of the measurement."""
    gpus: tuple[CollocatedSimulation, ...]
    """Simulation of each GPU that the plan uses and that has room for the background, in ascending order."""
    fidelity: Fidelity | None = None
    """Errors against a live run of the plan, where one was given."""
    without_room: tuple[int, ...] = ()
    """GPUs that have no room for the background beside the plan, on which it trains nothing."""

    def __post_init__(self) -> None:
        if not self.gpus or self.background_sample_time <= 0:
            raise InvalidValueError(
                f"a collocated plan uses GPUs beside a background, got {len(self.gpus)} GPUs and "
                f"{self.background_sample_time:g} s a sample"
            )

    @property
    def slowdown(self) -> float:
        """Largest slowdown of any GPU."""
        return max(found.slowdown for found in self.gpus)

    @property
    def background_throughput(self) -> float:
        """Background samples per second over all these GPUs."""
        return sum(found.harvest for found in self.gpus) / self.background_sample_time

    def __str__(self) -> str:
        worst = max(self.gpus, key=lambda found: found.slowdown)
        idle = sum(found.idle_share for found in self.gpus)
        of_idle = f", {100 * sum(found.harvest for found in self.gpus) / idle:.0f} % of the idle time" if idle else ""
        text = (
            f"{self.model} beside {self.background_model} (batch {self.background_batch}) on each of {len(self.gpus)} "
            f"GPUs, {worst.sharing}: slowdown {100 * self.slowdown:.1f} % at least, "
            f"{format_rate(self.background_throughput)} background samples/s{of_idle}; "
            f"interference as on {self.interference}"
        )
        if self.without_room:
            text += f"; none on {gpu_names(self.without_room)}, without room for it"
        return text if self.fidelity is None else f"{text}\n{self.fidelity}"


def simulate_collocated_plan(
    plan: Plan,
    background: Profile,
    interference: Interference,
    sharing: Sharing,
    *,
    background_batch: int | None = None,
    iterations: int = 300,
) -> CollocatedPlan:
    """Simulates a background job on every GPU of a plan.

    A layer's forward or backward, and the update, count as one kernel of unknown intensity each, a transfer as a kernel
    of intensity 0.

    Args:
        plan: plan of the foreground.
        background: profile of the background job; pieces are the forward, the backward and the update of each layer.
        interference: measured between kernels on such a device.
        sharing: the sharing mechanisms.
        background_batch: batch size of the background; unless given that for which the plan was made, or the largest of
            its profile.
        iterations: number of simulated iterations.

    Raises:
        InvalidValueError: no interference was measured for the background's priority, or it has a share of the device.
        PlanError: no GPU that the plan uses has room for the background.
    """
    job = background_beside(plan.background, background, background_batch)
    batch, full = job.batch or 0, plan.without_room(job.memory)
    found: dict[int, CollocatedSimulation] = {}
    work, end = gpu_activities(plan)
    for one in work:
        if one.spans and (gpus := [gpu for gpu in one.gpus if gpu not in full]):
            beside = simulate_gpu(plan, one, end, background, batch, interference, sharing, iterations=iterations)
            found.update(dict.fromkeys(gpus, beside))
    if not found:
        raise PlanError(
            f"no GPU of the plan has room for {job.model} at batch {batch} beside {plan.model}: it needs "
            f"{format_bytes(job.memory or 0)} (give a smaller background_batch)"
        )
    return CollocatedPlan(
        model=plan.model,
        background_model=background.graph.model,
        background_batch=batch,
        background_sample_time=job.sample_time,
        interference=f"{interference.device_name}, {interference.date}",
        gpus=tuple(found[gpu] for gpu in sorted(found)),
        without_room=full,
    )


def simulate_gpu(
    plan: Plan,
    work: GpuActivity,
    iteration_time: float,
    background: Profile,
    batch: int,
    interference: Interference,
    sharing: Sharing,
    *,
    iterations: int,
) -> CollocatedSimulation:
    """Simulates a background job on one GPU of a plan.

    Args:
        plan: plan of the foreground.
        work: activity of the GPU, of :func:`deeppool.simulation.plan.simulate.gpu_activities`.
        iteration_time: iteration time of the plan.
        background: profile of the background job; pieces are the forward, the backward and the update of each layer.
        batch: batch size of the background.
        interference: measured between kernels on such a device.
        sharing: the sharing mechanisms.
        iterations: number of simulated iterations.

    Raises:
        InvalidValueError: no interference was measured for the background's priority, or it has a share of the device,
            or it was profiled on another one.
    """
    check_device(background, plan.device_name, plan.device)
    if sharing.share is not None:
        raise InvalidValueError(
            f"interference is of jobs that a device divides by their priority, not of a share of {sharing.share:g} "
            "(leave share out, or run it)"
        )
    times = [background.time(layer, batch) for layer in range(len(background.graph.layers))]
    seconds = [time.forward for time in times] + [time.backward for time in reversed(times)] + background.update_times()
    pieces = [SimulatedPiece(seconds=one) for one in seconds if one > 0]
    preempts = find_kind(plan.device).on_cores
    device = DeviceModel(rates=interference.rates(sharing.priority), preempts=preempts, queue=1 if preempts else 64)
    stages = {layer.name: index for index, layer in enumerate(plan.layers)}
    steps = _steps(work, stages, iteration_time, interference.idle_harvest(sharing.priority))
    return simulate_collocated(steps, pieces, sharing, device, iterations=iterations)


def _steps(work: GpuActivity, stages: dict[str, int], end: float, waits: IdleHarvest) -> list[SimulatedStep]:
    """Returns the operators of one GPU in an iteration; idle time at its end precedes the next one's first.

    A transfer for which a core computes nothing is none of them: it is a wait before the next one.
    """
    computing = [work.computed(span) > 0 for span in work.spans]
    # The first operator has all the idle time since the last one, of the iteration before.
    first = len(computing) - computing[::-1].index(True)
    spans = [replace(span, start=span.start - end, end=span.end - end) for span in work.spans[first:]]
    free_since = work.spans[first - 1].end - end
    steps = []
    waited = harvested = 0.0
    for span in (*spans, *work.spans[:first]):
        moves = span.kind in ("reshard", "sync")
        seconds = work.computed(span)
        # In a transfer the core waits before data arrive.
        gap, pauses = max(0.0, span.start - free_since), span.duration - seconds
        waited += gap + pauses
        harvested += waits.at(gap) * gap + waits.in_transfers * pauses
        free_since = span.end
        if seconds <= 0:
            continue
        steps.append(
            SimulatedStep(
                kind=span.kind,
                # As in a run, the update follows the last stage.
                stage=stages.get(span.name, len(stages) - 1),
                seconds=seconds,
                # Adjacent spans may differ in the last digit.
                idle=waited if waited > 1e-9 * end else 0.0,
                idle_rate=harvested / waited if waited else 1.0,
                intensity=0.0 if moves else None,
            )
        )
        waited = harvested = 0.0
    return steps
