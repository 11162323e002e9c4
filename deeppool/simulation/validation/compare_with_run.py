"""Comparison of a plan's simulation with a live run of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.planning.goal import check_device
from deeppool.planning.plan import Plan
from deeppool.profiling.table import Profile
from deeppool.records.run_record import RunRecord
from deeppool.simulation.cluster.job_costs import InterferenceEffect, interference_effect
from deeppool.simulation.device.idle_harvest import FULL_HARVEST, IdleHarvest
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.fidelity import Fidelity, Quantity
from deeppool.simulation.plan.simulate import GpuActivity, gpu_activities, sampled_activities


@typed
def compare_with_run(
    plan: Plan,
    run: RunRecord,
    *,
    background: Profile | None = None,
    interference: Interference | None = None,
    conditions: Conditions | None = None,
    iterations: int = 200,
) -> Fidelity:
    """Simulates a live run and reports the errors.

    Args:
        plan: the plan that was run.
        run: record of the run.
        background: profile of the run's background job, where interference is given; one of another model is named.
        interference: measured on the run's device; None: the background does not slow the foreground down and uses
            all idle time. The harvest of a wait depends on its length in each drawn iteration.
        conditions: deviations from the plan under which it ran.
        iterations: number of iterations to draw, where conditions are random.

    Raises:
        InvalidValueError: the run was of another plan, interference without the background's profile, or one of
            another device.
    """
    _check(plan, run, background, interference)
    waits = (
        FULL_HARVEST if interference is None or run.sharing is None else interference.idle_harvest(run.sharing.priority)
    )
    planned, planned_time = gpu_activities(plan)
    draws = [(planned, planned_time)] if conditions is None else sampled_activities(plan, conditions, iterations)
    ranks = [run.emulated_rank] if run.emulated_rank is not None else list(range(plan.gpus))
    by_rank = {gpu: one for one in planned for gpu in one.gpus}
    means = {rank: _rank_means(rank, draws, waits) for rank in ranks}
    passes = fmean(time for _, time in draws)
    updates = {rank: 0.0 if plan.update_time else _update_time(run, rank) for rank in ranks}
    update = max(updates.values())
    alone = run.foreground.alone
    idle = [1 - (means[rank].held + updates[rank]) / (passes + update) for rank in ranks]
    median_time = median(time for _, time in draws)
    quantities = [
        Quantity(
            "iteration alone" if plan.update_time else "iteration alone, without the update,",
            "s",
            median_time,
            alone.iteration_time.p50 - update,
        ),
        Quantity("idle time alone", "", fmean(idle), fmean(alone.idle_share)),
    ]
    if run.background is not None:
        effects = {rank: _effect(plan, by_rank[rank], planned_time, run, background, interference) for rank in ranks}
        delay = max(effect.wait + (effect.stretch - 1) * means[rank].held for rank, effect in effects.items())
        harvest = []
        for rank, effect in effects.items():
            busy = effect.stretch * means[rank].held
            gaps = passes + delay + update - busy - updates[rank]
            usable = gaps - means[rank].lost
            harvest.append((effect.gaps * usable + effect.overlapped * busy) / (passes + delay + update))
        collocated_time = run.foreground.iteration_time.p50 - update
        quantities += [
            Quantity("beside the background", "s", median_time + delay, collocated_time),
            Quantity("background harvest", "", fmean(harvest), run.background.harvest),
        ]
    return Fidelity(
        model=plan.model,
        where=run.where,
        date=run.date,
        policy=run.policy,
        background=None if run.background is None else run.background.model,
        interference=_modelled(run, background, interference),
        update_time=update,
        quantities=tuple(quantities),
        conditions=conditions,
    )


@dataclass(frozen=True, slots=True)
class _RankMeans:
    """Means over a rank's iterations, in seconds."""

    held: float
    lost: float
    """Idle time that a background cannot use."""


def _rank_means(rank: int, draws: Sequence[tuple[Sequence[GpuActivity], float]], waits: IdleHarvest) -> _RankMeans:
    own = [(work, end) for all_work, end in draws for work in all_work if rank in work.gpus]
    return _RankMeans(
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
    if background is not None:
        check_device(background, plan.device_name, plan.device)
    if interference is not None and run.background is not None and background is None:
        raise InvalidValueError(
            f"with interference, the profile of the background {run.background.model} is needed (--background PROFILE)"
        )
    if run.background is not None and background is not None and run.background.batch > background.batch_sizes[-1]:
        raise InvalidValueError(
            f"the background of the run had batches of {run.background.batch}, its profile ends at "
            f"{background.batch_sizes[-1]} (profile it with --batch-sizes …,{run.background.batch})"
        )


def _modelled(run: RunRecord, background: Profile | None, interference: Interference | None) -> str:
    """Returns the interference that is simulated, and of which model if that is not the run's."""
    if interference is None:
        return "no interference modelled"
    text = f"interference as on {interference.device_name}, {interference.date}"
    # Not refused: a background job may have a label in place of its model's name.
    if run.background is None or background is None or background.graph.model == run.background.model:
        return text
    return f"{text}, with the profile of {background.graph.model} for the run's background {run.background.model}"


def _update_time(run: RunRecord, rank: int) -> float:
    """Returns the seconds of the update in the recorded iteration."""
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
    # The harvest of waits is computed per drawn iteration, not from the plan.
    only_pairs = replace(interference, waits=None)
    return interference_effect(plan, work, iteration_time, background, run.background.batch, only_pairs, run.sharing)
