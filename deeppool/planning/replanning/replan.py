"""``dp.replan``: the best plan for measured times of a run, and its gain over the plan that ran.

The measured times correct the profile (see ``profile_correction``), the old plan is costed again with the corrected
times, and the search runs again with the options of the old plan. With the costs of the old profile, only
layers whose times changed are costed again. Where all-reduces overlap the backward pass, measured times of it include
what they slow it down by beyond what the plan predicts.
"""

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from deeppool.base.arguments import typed
from deeppool.base.number_checks import real_number
from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.costs.communication import Network
from deeppool.costs.table import CostTable, price, reprice
from deeppool.errors import InvalidValueError
from deeppool.planning.best_buckets import with_best_buckets
from deeppool.planning.evaluate.schedule import busy_gpu_seconds
from deeppool.planning.layer_assignment import WHOLE_ITERATION, LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.planning.planner import plan_from_costs
from deeppool.planning.replanning.profile_correction import (
    NOISE,
    CorrectedProfile,
    Correction,
    MeasuredTimes,
    check_profile_matches,
    correct_profile,
    describe_source,
)
from deeppool.planning.report.diff import PlanDiff, diff
from deeppool.planning.report.tables import render, table
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.profiling.table import Profile
from deeppool.units import format_percent, format_seconds

HYSTERESIS = 0.05
"""Relative gain above which another plan is recommended. If noise makes times 2.5 % longer in the old plan and as much
shorter in the new one, the predicted gain of 5 % is none, and a new plan costs a restart of every rank."""


@dataclass(frozen=True)
class Replan:
    """A plan at the measured times of a run, and the best plan at these times."""

    KIND: ClassVar[str] = "replan"

    source: str
    """The run that was measured."""
    corrections: tuple[Correction, ...]
    """Stages or layers whose measured times differ from the profile's by more than noise."""
    changed_layers: tuple[str, ...]
    """Layers whose times changed: those that were corrected, and those of equal signature."""
    before: Plan
    """The old plan at the corrected times."""
    after: Plan
    """The best plan at the corrected times. Neither plan holds costs of other GPU counts."""
    over_limit: tuple[str, ...]
    """Layers of the old plan that exceed the amplification limit at the corrected times."""
    gain: float
    """Predicted seconds that an iteration of the new plan saves; negative where the old one exceeded its limit."""
    relative_gain: float
    """gain over the old plan's iteration time: 0.03 is 3 %."""
    hysteresis: float
    """The least ``relative_gain``, or excess of an amplification over its limit, to recommend another plan."""
    recommended: bool
    """Whether to change to the new plan."""
    search_time: float
    """Seconds of correction, costs and search."""
    changes: PlanDiff
    """Differences from ``before`` to ``after``."""
    profile: Profile
    """The corrected profile."""

    def check_totals(self) -> None:
        """Compares the totals of both plans with their layers, as the reader of files does."""
        self.before.check_totals()
        self.after.check_totals()

    @property
    def plan(self) -> Plan:
        """The plan to run from now on: the new one if it is recommended, else the old one."""
        return self.after if self.recommended else self.before

    def explain(self) -> str:
        """Returns tables of the corrections and of the changes."""
        return _replan_text(self)

    def __str__(self) -> str:
        count, limit = len(self.before.layers), self.before.amplification_limit
        text = (
            f"{self.before.model}: times of {len(self.changed_layers)} of {count} layers changed; predicted with them, "
            f"the plan takes {format_seconds(self.before.iteration_time)} an iteration, the best one found "
            f"{format_seconds(self.after.iteration_time)}: gain {format_seconds(self.gain)} "
            f"({format_percent(self.relative_gain)})"
        )
        if self.over_limit:
            text += f", and {', '.join(self.over_limit[:3])}{', …' * (len(self.over_limit) > 3)} over limit {limit:g}"
        advice = "change to the new plan" if self.recommended else "keep the plan"
        return f"{text}; {advice} (found in {format_seconds(self.search_time)})"


@typed
def replan(
    plan: Plan,
    profile: Profile,
    live: MeasuredTimes,
    *,
    hysteresis: float = HYSTERESIS,
    noise: float = NOISE,
    prices: CostTable | None = None,
) -> Replan:
    """Returns the best plan at the measured times of a run, and whether to change to it.

    Args:
        plan: plan that ran.
        profile: layer times that it was made of; see
            :func:`deeppool.planning.replanning.profile_correction.correct_profile`.
        live: a run's record, or forward and backward seconds by layer.
        hysteresis: the new plan is recommended if it saves more than this fraction of the iteration time, or if
            the old one exceeds its amplification limit by more than this fraction.
        noise: relative difference below which measured times do not change the profile's.
        prices: the result of :func:`costs_for_replan`, to keep it from one replan to the next.

    Raises:
        PlanError: profile, plan and run do not match, or the run did not measure the plan's GPUs.
        InvalidValueError: an unknown layer, an invalid time or fraction, or costs of another plan.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    hysteresis = real_number("hysteresis", hysteresis)
    if not 0 <= hysteresis < 1:
        raise InvalidValueError(f"hysteresis must be a fraction from 0 up to 1, got {hysteresis:g}")
    started = time.perf_counter()
    corrected = correct_profile(profile, plan, live, noise=noise)
    known = costs_for_replan(plan, profile) if prices is None else prices
    _check_costs(known, plan, profile)
    costs = with_best_buckets(reprice(known, corrected.profile, corrected.layers)) if corrected.layers else known
    after = plan_again(plan, corrected.profile, costs, explained=False)
    before = _at_new_times(plan, replace(costs, buckets=plan.buckets), after)
    search_time = time.perf_counter() - started
    return _record(corrected, describe_source(live), before, after, hysteresis, search_time)


def plan_again(plan: Plan, profile: Profile, costs: CostTable, *, explained: bool = True) -> Plan:
    """Returns the plan that the search finds with the options of another plan."""
    return plan_from_costs(
        profile,
        costs,
        plan.amplification_limit,
        plan.limit_scope,
        goal=plan.goal,
        jobs=() if plan.background is None else (plan.background,),
        search=plan.search,
        optimizer=plan.optimizer,
        explained=explained,
    )


def costs_for_replan(plan: Plan, profile: Profile) -> CostTable:
    """Returns the costs of a search with the plan's options; ``replan`` then updates only what changed.

    Raises:
        PlanError: the profile is not of the plan's graph, device and precision.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    check_profile_matches(plan, profile)
    costs = price(profile, Network(plan.cluster, plan.network_model), plan.global_batch, plan.gpu_counts)
    return with_best_buckets(replace(costs, overlap=plan.overlap_sync))


def _check_costs(costs: CostTable, plan: Plan, profile: Profile) -> None:
    wanted = (Network(plan.cluster, plan.network_model), plan.global_batch, plan.gpu_counts)
    if costs.graph is not profile.graph or (costs.network, costs.global_batch, costs.gpu_counts) != wanted:
        raise InvalidValueError(
            "prices are costs of another plan or profile (make them by costs_for_replan(plan, profile))"
        )


def _record(
    corrected: CorrectedProfile, source: str, before: Plan, after: Plan, hysteresis: float, search_time: float
) -> Replan:
    changes = diff(before, after)
    # Equal plans gain nothing, whatever the order of additions.
    other = not _runs_alike(before, after)
    gain = before.iteration_time - after.iteration_time if other else 0.0
    relative_gain = gain / before.iteration_time
    recommended = other and (relative_gain > hysteresis or bool(_over_limit(before, hysteresis)))
    return Replan(
        source=source,
        corrections=corrected.corrections,
        changed_layers=tuple(corrected.profile.graph.layers[index].name for index in corrected.layers),
        before=before,
        after=after,
        over_limit=_over_limit(before, TOLERANCE),
        gain=gain,
        relative_gain=relative_gain,
        hysteresis=hysteresis,
        recommended=recommended,
        search_time=search_time,
        changes=changes,
        profile=corrected.profile,
    )


def _over_limit(plan: Plan, excess: float) -> tuple[str, ...]:
    """Returns the layers that exceed the plan's limit by more than a fraction of it."""
    if plan.amplification_limit is None:
        return ()
    most = plan.amplification_limit * (1 + excess)
    if plan.limit_scope == "iteration":
        return (WHOLE_ITERATION,) if plan.amplification > most else ()
    return tuple(x.name for x in plan.layers if x.amplification > most)


def _at_new_times(plan: Plan, costs: CostTable, best: Plan) -> Plan:
    """Returns the plan on the GPUs and in the buckets that it has, at other prices of its layers."""
    options = [costs.gpu_counts.index(layer.gpu_count) for layer in plan.layers]
    rows = np.arange(len(options))
    priced = (costs.forward[rows, options], costs.backward[rows, options], costs.compute[:, 0], costs.update)
    layers = tuple(map(_layer_at, plan.layers, *(seconds.tolist() for seconds in priced)))
    plan = replace(plan, layers=layers, sync_computing=costs.network.sync_computing)
    times = plan.schedule
    iteration_time, gpu_seconds = times.iteration_time, sum(layer.time * layer.gpu_count for layer in layers)
    if plan.overlap_sync:
        gpu_seconds = busy_gpu_seconds(times, plan.gpu_sets, layers)
    far = (costs.extrapolated[rows, options] | costs.extrapolated[:, 0]).tolist()
    over_limit = _over_limit(plan, TOLERANCE) if plan.search == "published" else ()
    made = replace(
        plan,
        over_limit=over_limit,
        profile_fingerprint=best.profile_fingerprint,
        extrapolated_layers=tuple(layer.name for layer, beyond in zip(layers, far, strict=True) if beyond),
        iteration_time=iteration_time,
        data_parallel_iteration_time=best.data_parallel_iteration_time,
        data_parallel_on_fewer=best.data_parallel_on_fewer,
        data_parallel_memory=best.data_parallel_memory,
        data_parallel_micro_steps=best.data_parallel_micro_steps,
        single_gpu_iteration_time=costs.single_gpu_time,
        gpu_seconds=gpu_seconds,
        amplification=amplification(gpu_seconds, 1, costs.single_gpu_time),
    )
    return replace(made, optimality=best.optimality if _runs_alike(made, best) else _bound(made, best))


def _runs_alike(one: Plan, other: Plan) -> bool:
    """Whether two plans have all layers on the same GPUs, and their gradients in the same buckets."""
    return one.gpu_sets == other.gpu_sets and one.buckets == other.buckets


def _layer_at(
    layer: LayerAssignment, forward: float, backward: float, single_gpu_time: float, update: float
) -> LayerAssignment:
    total = layer.reshard + (forward + backward) + layer.sync
    return replace(
        layer,
        time=total,
        amplification=amplification(total, layer.gpu_count, single_gpu_time),
        forward=forward,
        backward=backward,
        single_gpu_time=single_gpu_time,
        update=update,
        alternatives=(),
    )


def _bound(plan: Plan, best: Plan) -> str:
    """Returns the optimality of a plan that the search did not choose."""
    if best.optimality == "heuristic":
        return best.optimality
    factor = optimality_factor(best.optimality) * _cost(plan) / _cost(best)
    return certificate(factor) if factor > 1 else "bound 1.000"


def _cost(plan: Plan) -> float:
    """Returns what the goal of a plan wants as little of as there can be."""
    if plan.goal == "ddp_speed":
        return plan.gpu_seconds
    if plan.background is None:
        return plan.iteration_time
    # Seconds of the cluster for each sample that it trains.
    beside = plan.idle_gpu_seconds(plan.background.memory) / plan.background.sample_time
    return plan.iteration_time / (plan.global_batch + beside)


def _replan_text(record: Replan) -> str:
    """Returns the recommendation, the corrections and the changes, as tables."""
    corrections = table(
        *("ran", "layers", "batch", "profiled", "measured", "forward", "backward"),
        title=f"corrected by {record.source}",
    )
    for item in record.corrections:
        corrections.add_row(
            item.name,
            str(len(item.layers)),
            str(item.batch),
            format_seconds(item.profiled),
            format_seconds(item.measured),
            f"x{item.forward_ratio:.2f}",
            f"x{item.backward_ratio:.2f}",
        )
    return render(str(record), *[corrections] * bool(record.corrections)) + "\n\n" + record.changes.explain()
