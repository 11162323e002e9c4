"""``dp.check``: a plan timed again from a profile, and how far from the optimum it is, proved without the search."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from deeppool.base.arguments import typed
from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.costs.communication import Network
from deeppool.costs.table import CostTable, price
from deeppool.errors import PlanError
from deeppool.planning.evaluate.baselines import data_parallel_times
from deeppool.planning.evaluate.lower_bound import LowerBound, longest_path
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.profile_correction import check_profile_matches
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_count, format_seconds

SAME_TIME = 1e-6
"""Relative difference between two times that count as equal."""
AGAIN = "plan again; was the file edited, or made by another version?"


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """A plan whose times and limits hold, and the factor within which it is proved to be optimal."""

    KIND: ClassVar[str] = "plan-check"

    model: str
    gpus: int
    iteration_time: float
    """Seconds, from the profile."""
    gpu_seconds: float
    lower_bound: float
    """Seconds that no plan over the same GPU counts and within the same limit can beat."""
    proved_factor: float
    """Iteration time over that bound: no plan is faster by more."""
    optimality: str
    """Claim of the plan; of its goal if that is not ``fastest``."""
    goal: str
    amplification_limit: float | None
    over_limit: tuple[str, ...]
    """Layers over the limit, as a plan of the published search says of itself."""
    decided: bool
    """Whether the bound is the optimum, so that the claim was compared with it: chains in the paper's model with a
    limit on each layer or none."""

    def __str__(self) -> str:
        if self.decided:
            verdict = f"the optimum is {format_seconds(self.lower_bound)}: the claim '{self.optimality}' holds"
        else:
            verdict = (
                f"no plan is faster than {format_seconds(self.lower_bound)}, a factor of "
                f"{math.ceil(1000 * self.proved_factor) / 1000:.3f}; the search claims '{self.optimality}'"
            )
            if self.goal != "fastest":
                verdict += f" of its goal {self.goal}, which is not checked"
        if self.over_limit:
            limit = f"{len(self.over_limit)} layers over the limit {self.amplification_limit:g}, as the plan says"
        elif self.amplification_limit is None:
            limit = "no limit"
        else:
            limit = f"limit {self.amplification_limit:g} kept"
        return (
            f"{self.model} on {format_count(self.gpus, 'GPU')}: {format_seconds(self.iteration_time)} an iteration and "
            f"{format_seconds(self.gpu_seconds)} of GPU time, as planned; {limit}; {verdict}"
        )


@typed
def check(plan: Plan, profile: Profile) -> PlanCheck:
    """Times a plan again from its profile, and proves how far it is at most from the fastest one.

    Costs come from the profile and the plan's cluster, start times from the schedule of a run, and the bound from
    :mod:`deeppool.planning.evaluate.lower_bound`, which shares no code with the search.

    Args:
        plan: as made by :func:`deeppool.plan`.
        profile: the profile that it was made of.

    Raises:
        PlanError: the profile is another one, a time, limit or GPU's memory is not as the plan says, or a claim is
            disproved.
    """
    if plan.profile_fingerprint != profile.fingerprint:
        raise PlanError(
            f"the plan was made of another profile of {plan.model}: fingerprint {plan.profile_fingerprint[:12]}, not "
            f"{profile.fingerprint[:12]} (pass the one it was made of, or plan again)"
        )
    check_profile_matches(plan, profile)
    if plan.provenance != profile.provenance:
        raise PlanError(
            f"provenance is '{plan.provenance}' in the plan, and '{profile.provenance}' by its profile ({AGAIN})"
        )
    _check_graph(plan, profile)
    network = Network(plan.cluster, plan.network_model)
    priced = price(profile, network, plan.global_batch, _counts(plan))
    costs = replace(priced, overlap=plan.overlap_sync, buckets=plan.buckets)
    placement = _placement(plan, costs)
    _check_times(plan, profile, placement)
    _check_limits(plan, placement)
    _check_memory(plan, profile, placement)
    by_layer = plan.amplification_limit if plan.limit_scope == "layer" and not plan.over_limit else None
    by_iteration = plan.amplification_limit if plan.limit_scope == "iteration" else None
    sources = [layer.predecessors for layer in plan.layers]
    path = longest_path(sources, [layer.time for layer in plan.layers])
    bound = LowerBound(costs, path, by_layer).seconds(by_iteration)
    chain = all(set(before) <= {index - 1} for index, before in enumerate(sources)) and len(path) == len(sources)
    paper = plan.network_model == "paper" and not costs.overlap
    decided = chain and paper and by_iteration is None and plan.search == "exact"
    factor = max(1.0, placement.iteration_time / bound)
    # A plan that had to fit into memory may be slower than the fastest one.
    constrained = plan.cluster.memory is not None and bool(plan.memory)
    decided = decided and plan.goal == "fastest" and (not constrained or factor <= 1 + SAME_TIME)
    made = PlanCheck(
        model=plan.model,
        gpus=plan.gpus,
        iteration_time=placement.iteration_time,
        gpu_seconds=placement.gpu_seconds,
        lower_bound=bound,
        proved_factor=factor,
        optimality=plan.optimality,
        goal=plan.goal,
        amplification_limit=plan.amplification_limit,
        over_limit=plan.over_limit,
        decided=decided,
    )
    if decided and made.proved_factor > _claimed(plan) * (1 + SAME_TIME):
        raise PlanError(
            f"the plan claims '{plan.optimality}' and takes {format_seconds(made.iteration_time)}, but the optimum is "
            f"{format_seconds(bound)} ({AGAIN})"
        )
    return made


def _claimed(plan: Plan) -> float:
    """Returns the factor of a claim: 1 for ``exact``, infinity for ``heuristic``."""
    if plan.optimality == "exact":
        return 1.0
    claim, _, factor = plan.optimality.partition(" ")
    if claim == "heuristic":
        return math.inf
    try:
        return float(factor) if claim == "bound" else math.nan
    except ValueError:
        return math.nan


def _counts(plan: Plan) -> tuple[int, ...]:
    """Returns the counts that were searched, and one GPU, with which layers are compared."""
    return tuple(sorted({1, *plan.gpu_counts}))


def _placement(plan: Plan, costs: CostTable) -> Placement:
    """Returns the plan's GPUs as a placement."""
    if not _claimed(plan) >= 1:
        raise PlanError(f"optimality is '{plan.optimality}', expected exact, 'bound x' or heuristic ({AGAIN})")
    for layer in plan.layers:
        first = layer.gpus[0]
        if layer.gpu_count not in plan.gpu_counts or layer.gpus != tuple(range(first, first + layer.gpu_count)):
            raise PlanError(
                f"layer '{layer.name}' has GPUs {list(layer.gpus)[:9]}, expected neighbouring ones, as many as one of "
                f"gpu_counts {list(plan.gpu_counts)} (check the plan before its GPUs are renumbered)"
            )
    options = tuple(costs.gpu_counts.index(layer.gpu_count) for layer in plan.layers)
    return Placement(costs, options, tuple(layer.gpus[0] for layer in plan.layers))


def _check_graph(plan: Plan, profile: Profile) -> None:
    """Compares the plan's layers with those of its profile."""
    stated = [(layer.name, list(layer.predecessors)) for layer in plan.layers]
    found = [(layer.name, list(layer.predecessors)) for layer in profile.graph.layers]
    if len(stated) != len(found):
        raise PlanError(f"the plan has {format_count(len(stated), 'layer')}, its profile {len(found)} ({AGAIN})")
    for (name, reads), (own, sources) in zip(stated, found, strict=True):
        if (name, reads) != (own, sources):
            raise PlanError(
                f"layer '{name}' reads layers {reads[:9]} in the plan, and is '{own}' by its profile, which reads "
                f"{sources[:9]} ({AGAIN})"
            )


def _check_times(plan: Plan, profile: Profile, placement: Placement) -> None:
    """Compares the plan's times, and what they follow from, with those of its profile."""
    costs, gpu_seconds = placement.costs, placement.gpu_seconds
    *fewer, everywhere = data_parallel_times(profile, costs, memory_model(profile, plan.global_batch, plan.optimizer))
    times = [
        ("iteration_time", plan.iteration_time, placement.iteration_time),
        ("gpu_seconds", plan.gpu_seconds, gpu_seconds),
        ("single_gpu_iteration_time", plan.single_gpu_iteration_time, costs.single_gpu_time),
        ("data_parallel_iteration_time", plan.data_parallel_iteration_time, everywhere.seconds),
        ("data_parallel_micro_steps", plan.data_parallel_micro_steps, everywhere.micro_steps),
        ("amplification", plan.amplification, gpu_seconds / costs.single_gpu_time),
        ("sync_computing", plan.sync_computing, costs.network.sync_computing),
    ]
    own = plan.data_parallel_on_fewer or fewer
    times += [
        (f"{name} of data_parallel_on_fewer", getattr(one, name), getattr(other, name))
        for one, other in zip(own, fewer, strict=False)
        for name in ("gpus", "seconds", "micro_steps")
    ]
    times.append(("length of data_parallel_on_fewer", len(own), len(fewer)))
    for index, layer in enumerate(plan.layers):
        seconds, alone = placement.time(index), float(costs.compute[index, 0])
        found = placement.layer_times[index]._asdict()
        if layer.later_users != (users := found.pop("later_users")):
            raise PlanError(
                f"later_users of layer '{layer.name}' are {list(layer.later_users)} in the plan, and {list(users)} by "
                f"its profile ({AGAIN})"
            )
        found |= {
            "time": seconds,
            "single_gpu_time": alone,
            "amplification": amplification(seconds, layer.gpu_count, alone),
        }
        times += [(f"{name} of layer '{layer.name}'", getattr(layer, name), value) for name, value in found.items()]
    for name, stated, computed in times:
        if not math.isclose(stated, computed, rel_tol=SAME_TIME, abs_tol=1e-12):
            raise PlanError(f"{name} is {stated:g} in the plan, and {computed:g} by its profile ({AGAIN})")


def _check_limits(plan: Plan, placement: Placement) -> None:
    """Checks the amplification of the iteration or of every layer; only the published search may exceed it."""
    limit, costs = plan.amplification_limit, placement.costs
    found = {}
    if limit is not None and plan.limit_scope == "iteration":
        found["the iteration"] = placement.gpu_seconds / costs.single_gpu_time
    elif limit is not None:
        for index, layer in enumerate(plan.layers):
            alone = float(costs.compute[index, 0])
            found[layer.name] = amplification(placement.time(index), layer.gpu_count, alone)
    stated = plan.over_limit if plan.search == "published" else ()
    for what, value in found.items():
        over = limit is not None and value > limit * (1 + 2 * TOLERANCE)
        if over and what not in stated:
            raise PlanError(f"{what} has amplification {value:.4g}, over the limit of {limit:g} ({AGAIN})")
    kept = [name for name in plan.over_limit if not (limit is not None and found.get(name, 0.0) > limit)]
    if kept:
        raise PlanError(f"over_limit names {', '.join(kept)}, which keeps the limit ({AGAIN})")


def _check_memory(plan: Plan, profile: Profile, placement: Placement) -> None:
    """Compares what each GPU holds, where the plan says it; only the published search may exceed its memory."""
    model, capacity = memory_model(profile, plan.global_batch, plan.optimizer), plan.cluster.memory
    for one in plan.comparison.data_parallel:
        samples = -(-plan.global_batch // one.gpus // one.micro_steps)
        needed = replace(model, global_batch=one.gpus * samples).replica(one.gpus)
        if one.memory not in (None, needed):
            raise PlanError(
                f"data parallelism on {format_count(one.gpus, 'GPU')} needs {one.memory} bytes of each by the plan, "
                f"and {needed} by its profile ({AGAIN})"
            )
    if not plan.memory or not model.known:
        return
    fullest, *others = model.use(placement.gpus, plan.cluster.gpus)
    uses = [use for use in (fullest, *others) if use.total]
    if sorted(map(repr, uses)) != sorted(repr(use) for use in plan.memory if use.total):
        raise PlanError(f"memory is not what the layers on each GPU hold by the profile: {fullest} ({AGAIN})")
    if plan.search == "exact" and capacity is not None and fullest.total > capacity:
        raise PlanError(f"GPU {fullest.gpus[0]} has {format_bytes(capacity)}, and would hold more: {fullest} ({AGAIN})")
