"""A plan's simulation beside a live run of it → :class:`Fidelity`."""

import math
from statistics import fmean

from deeppool.errors import InvalidValueError
from deeppool.job import RunRecord
from deeppool.planning.plan import Plan
from deeppool.profiling.table import Profile
from deeppool.simulation.fidelity import Fidelity, Quantity
from deeppool.simulation.interference import Interference
from deeppool.simulation.pricing import Effect, effect_beside
from deeppool.simulation.replay import GpuWork, work_of


def compare_with_run(
    plan: Plan,
    run: RunRecord,
    *,
    background: Profile | None = None,
    interference: Interference | None = None,
) -> Fidelity:
    """Simulates what a live run did, and says how far off that is.

    Args:
        plan: that was run.
        run: its record.
        background: profile of the run's background job, where interference is given.
        interference: measured on the run's device; None: the background costs nothing and gets all idle time.

    Raises:
        InvalidValueError: the run was of another plan, or interference without the background's profile.
    """
    _check(plan, run, background, interference)
    work, passes = work_of(plan)
    ranks = [run.emulated_rank] if run.emulated_rank is not None else list(range(plan.gpus))
    by_rank = {gpu: one for one in work for gpu in one.gpus}
    updates = {rank: _update_time(run, rank) for rank in ranks}
    update = max(updates.values())
    alone = run.foreground.alone
    idle = [1 - (by_rank[rank].held + updates[rank]) / (passes + update) for rank in ranks]
    quantities = [
        Quantity("iteration alone, without the update,", "s", passes, alone.iteration_time.p50 - update),
        Quantity("idle time alone", "", fmean(idle), fmean(alone.idle_share)),
    ]
    if run.background is not None:
        effects = {rank: _effect(plan, by_rank[rank], passes, run, background, interference) for rank in ranks}
        longer = max(effect.wait + (effect.stretch - 1) * by_rank[rank].held for rank, effect in effects.items())
        harvest = []
        for rank, effect in effects.items():
            busy = effect.stretch * by_rank[rank].held
            gaps = passes + longer + update - busy - updates[rank]
            harvest.append((effect.gaps * gaps + effect.beside * busy) / (passes + longer + update))
        beside = run.foreground.iteration_time.p50 - update
        quantities += [
            Quantity("beside the background", "s", passes + longer, beside),
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
    work: GpuWork,
    iteration_time: float,
    run: RunRecord,
    background: Profile | None,
    interference: Interference | None,
) -> Effect:
    if interference is None or background is None or run.sharing is None or run.background is None or not work.spans:
        return Effect()
    batch = min(run.background.batch, background.batch_sizes[-1])
    return effect_beside(plan, work, iteration_time, background, batch, interference, run.sharing)
