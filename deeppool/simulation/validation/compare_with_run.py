"""A plan's simulation beside a live run of it → :class:`Fidelity`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from deeppool.errors import InvalidValueError
from deeppool.planning.plan import Plan
from deeppool.profiling.table import Profile
from deeppool.records.run_record import RunRecord
from deeppool.simulation.cluster.job_costs import InterferenceEffect, interference_effect
from deeppool.simulation.device.idle_harvest import FULL_HARVEST, IdleHarvest
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.fidelity import Fidelity, Quantity
from deeppool.simulation.plan.simulate import GpuActivity, gpu_activities, sampled_activities


def compare_with_run(
    plan: Plan,
    run: RunRecord,
    *,
    background: Profile | None = None,
    interference: Interference | None = None,
    conditions: Conditions | None = None,
    iterations: int = 200,
) -> Fidelity:
    """Simulates what a live run did, and says how far off that is.

    Args:
        plan: that was run.
        run: its record.
        background: profile of the run's background job, where interference is given.
        interference: measured on the run's device; None: the background costs nothing and gets all idle time. What it
            gets of a wait depends on how long that is in each iteration that is drawn.
        conditions: under which the plan ran, other than planned; what is random is drawn.
        iterations: to draw, where something is random.

    Raises:
        InvalidValueError: the run was of another plan, or interference without the background's profile.
    """
    _check(plan, run, background, interference)
    waits = (
        FULL_HARVEST if interference is None or run.sharing is None else interference.idle_harvest(run.sharing.priority)
    )
    planned, planned_time = gpu_activities(plan)
    draws = [(planned, planned_time)] if conditions is None else sampled_activities(plan, conditions, iterations)
    ranks = [run.emulated_rank] if run.emulated_rank is not None else list(range(plan.gpus))
    by_rank = {gpu: one for one in planned for gpu in one.gpus}
    means = {rank: _mean_of(rank, draws, waits) for rank in ranks}
    passes = fmean(time for _, time in draws)
    updates = {rank: _update_time(run, rank) for rank in ranks}
    update = max(updates.values())
    alone = run.foreground.alone
    idle = [1 - (means[rank].held + updates[rank]) / (passes + update) for rank in ranks]
    middle = median(time for _, time in draws)
    quantities = [
        Quantity("iteration alone, without the update,", "s", middle, alone.iteration_time.p50 - update),
        Quantity("idle time alone", "", fmean(idle), fmean(alone.idle_share)),
    ]
    if run.background is not None:
        effects = {rank: _effect(plan, by_rank[rank], planned_time, run, background, interference) for rank in ranks}
        longer = max(effect.wait + (effect.stretch - 1) * means[rank].held for rank, effect in effects.items())
        harvest = []
        for rank, effect in effects.items():
            busy = effect.stretch * means[rank].held
            gaps = passes + longer + update - busy - updates[rank]
            usable = gaps - means[rank].lost
            harvest.append((effect.gaps * usable + effect.overlapped * busy) / (passes + longer + update))
        beside = run.foreground.iteration_time.p50 - update
        quantities += [
            Quantity("beside the background", "s", middle + longer, beside),
            Quantity("background harvest", "", fmean(harvest), run.background.harvest),
        ]
    return Fidelity(
        model=plan.model,
        where=run.where,
        date=run.date,
        policy=run.policy,
        background=None if run.background is None else run.background.model,
        interference=f"interference as on {interference.device_name}, {interference.date}"
        if interference is not None
        else "no interference modelled",
        update_time=update,
        quantities=tuple(quantities),
        conditions=conditions,
    )


@dataclass(frozen=True, slots=True)
class _Mean:
    """Of a rank's iterations, seconds."""

    held: float
    lost: float
    """Of its waits, to a background that has only just come in."""


def _mean_of(rank: int, draws: Sequence[tuple[Sequence[GpuActivity], float]], waits: IdleHarvest) -> _Mean:
    own = [(work, end) for all_work, end in draws for work in all_work if rank in work.gpus]
    return _Mean(
        held=fmean(work.held for work, _ in own),
        lost=fmean(end - work.held - work.harvest(end, waits) for work, end in own),
    )


def _check(plan: Plan, run: RunRecord, background: Profile | None, interference: Interference | None) -> None:
    for what, ours, theirs in (
        ("model", plan.model, run.model),
        ("global batch", plan.global_batch, run.global_batch),
        ("ranks", plan.gpus, run.ranks),
        ("device", plan.device, run.device),
    ):
        if ours != theirs:
            raise InvalidValueError(f"the run is of another plan: its {what} is {theirs}, this plan's is {ours}")
    if not math.isclose(plan.iteration_time, run.plan_iteration_time, rel_tol=1e-6):
        raise InvalidValueError(
            f"the run is of another plan: one of {run.plan_iteration_time:g} s an iteration, this one's is "
            f"{plan.iteration_time:g} s (give the plan file that was run)"
        )
    if interference is not None and run.background is not None and background is None:
        raise InvalidValueError(
            f"with interference, the profile of the background {run.background.model} is needed (--background PROFILE)"
        )


def _update_time(run: RunRecord, rank: int) -> float:
    """Seconds in the iteration that the run kept."""
    return sum(span.duration for span in run.timeline.spans if span.gpu == rank and span.kind == "update")


def _effect(
    plan: Plan,
    work: GpuActivity,
    iteration_time: float,
    run: RunRecord,
    background: Profile | None,
    interference: Interference | None,
) -> InterferenceEffect:
    if interference is None or background is None or run.sharing is None or run.background is None or not work.spans:
        return InterferenceEffect()
    batch = min(run.background.batch, background.batch_sizes[-1])
    # What the waits give is not a mean over the plan's here, but known of each iteration that is drawn.
    only_pairs = replace(interference, waits=None)
    return interference_effect(plan, work, iteration_time, background, batch, only_pairs, run.sharing)
