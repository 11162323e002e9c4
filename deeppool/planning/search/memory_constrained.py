"""The fastest plan under a limit that fits into the memory of a GPU.

While branches run one after another every layer computes on GPU 0, so GPU 0 holds most: all parameters, and
of each layer the largest shard's activations a(i) x ceil(B / g). Charging lambda seconds a byte for those makes the
exact search minimise time + lambda x memory. For any lambda, the least value of that minus lambda x capacity bounds
the time of every plan that fits from below (Lagrangian duality); the best lambda lies where the fastest
plan that is too large and the fastest that is small enough cost the same, and the search there finds
either a new plan between them or that there is none (G. Y. Handler and I. Zang, "A dual algorithm for the
constrained shortest path problem", Networks 10, 1980). Plans off the lower convex hull of (memory, time)
are not found: hence a bound and not always the optimum.

Copies of resharded inputs depend on two layers, so lambda does not charge them, and with branches side by side no GPU
holds everything. So plans that are too large, with the fastest one of all among them, are made smaller by small changes
until they fit, and the fastest one that fits is made faster by changes that keep it so (see ``hill_climbing``).

The bound of plans that run branches side by side, or whose all-reduces overlap the backward pass, is the fastest plan
of all; and whether anything fits stays open where only branches side by side might.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from deeppool.base.number_checks import LARGEST
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.errors import PlanError
from deeppool.graph.series_parallel import branching_blocks, decompose
from deeppool.planning.evaluate.memory import Integers, MemoryModel
from deeppool.planning.evaluate.memory_shortage import shortage_text
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import LimitScope
from deeppool.planning.search.efficient_plans import search_within
from deeppool.planning.search.hill_climbing import SECONDS, Permitted, climb, improve, keep_limit
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import PROVED, search_overlapping
from deeppool.planning.search.search import SearchResult, search

MOST_STEPS = 60
"""Most steps of the search for lambda, which takes about ten."""


def search_fitting(
    costs: CostTable, limit: float | None, scope: LimitScope, memory: MemoryModel, *, proving: bool = True
) -> SearchResult:
    """Returns the fastest plan found that keeps the amplification limit and fits, with a bound on the optimum.

    Args:
        costs: costs of layers and transfers.
        limit: limit on the amplification of ``scope``.
        scope: see :class:`~deeppool.planning.plan.Plan`.
        memory: what plans hold; no plan is refused where it is unknown.
        proving: see :func:`~deeppool.planning.search.overlap.search_overlapping`; where its plan fits.

    Raises:
        PlanError: nothing fits, or nothing was found to.
    """
    fastest = search_overlapping(costs, limit, proving=proving) if scope == "layer" else search_within(costs, limit)
    capacity = costs.network.cluster.memory
    if capacity is None or not memory.known:
        return fastest
    problem, first = _Problem(costs, memory, capacity), Placement(costs, fastest.choices, fastest.starts)
    if not problem.excess(first):
        return fastest
    allowed = math.inf if limit is None else limit * costs.single_gpu_time * (1 + TOLERANCE)

    def within(plan: Placement, layers: Iterable[int]) -> bool:
        return keep_limit(limit, plan, layers) if scope == "layer" else plan.gpu_seconds <= allowed

    best, bound = _fitting(problem, first, within, limit, scope)
    bound = max(bound, fastest.iteration_time / optimality_factor(fastest.optimality))
    if best.iteration_time > bound * PROVED:
        best = improve([best], lambda plan, layers: within(plan, layers) and not problem.excess(plan), bound)
    factor = best.iteration_time / bound
    claim = certificate(1.0 if factor <= 1 + TOLERANCE else factor)
    return SearchResult(best.options, best.starts, best.iteration_time, claim)


def _fitting(
    problem: "_Problem", first: Placement, within: Permitted, limit: float | None, scope: LimitScope
) -> tuple[Placement, float]:
    """Returns the fastest plan found that fits, by the search for lambda and by making plans smaller, and its bound."""
    # A limit on each layer keeps the same limit on the iteration.
    relaxation, *others = map(problem.relax, {limit} if scope == "layer" else dict.fromkeys((None, limit)))
    plans = (*relaxation.plans, *(plan for other in others for plan in other.plans))
    kept = [first, *(plan for plan in plans if within(plan, range(problem.layers)))]
    smallest = min(kept, key=problem.excess)
    if problem.excess(smallest) and not relaxation.impossible:
        smallest = improve([smallest], within, 0, problem.excess)
    if problem.excess(smallest):
        # What all GPUs together lack guides the changes; what a plan needs of each GPU is on its fullest one.
        smallest = min((smallest, *kept), key=lambda plan: problem.memory.peak(plan.gpus))
        request = smallest, problem.memory, problem.capacity, limit, scope
        raise PlanError(shortage_text(*request, certain=relaxation.impossible, side_by_side=problem.may_divide))
    smaller = [climb(plan, within, value=problem.excess) for plan in kept if problem.excess(plan)]
    fitting = [plan for plan in (smallest, *kept, *smaller) if not problem.excess(plan)]
    return min(fitting, key=SECONDS), relaxation.bound


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """Plans and bound of the search for lambda."""

    plans: tuple[Placement, ...]
    """Among them one of the least memory, copies of resharded inputs not counted."""
    bound: float = 0.0
    """Seconds that no plan within the limit can beat and fit."""
    impossible: bool = False
    """Whether certainly no plan within the limit fits."""


class _Problem:
    """A cost table with the memory model and the capacity of a GPU."""

    def __init__(self, costs: CostTable, memory: MemoryModel, capacity: float) -> None:
        self.costs, self.memory, self.capacity = costs, memory, min(math.floor(capacity), LARGEST)
        self.layers = len(costs.graph.layers)
        shards = [-(-memory.global_batch // count) for count in costs.gpu_counts]
        self.activations: Integers = np.outer(memory.activations_per_sample, shards)
        """(L, K) bytes on GPU 0."""
        self.room = self.capacity - memory.state(memory.graph.parameter_bytes)
        """Bytes for activations on a GPU that computes every layer."""
        tree = decompose([layer.predecessors for layer in costs.graph.layers])
        self.may_divide = any(branching_blocks(tree)) and len(costs.gpu_counts) > 1
        """Whether branches may run side by side."""

    def excess(self, plan: Placement) -> int:
        """Returns the bytes by which a plan exceeds the memory of a GPU."""
        return self.memory.excess(plan.gpus, self.capacity)

    def relax(self, limit: float | None) -> _Relaxation:
        """Searches for lambda, branches one after another, under a limit on each layer."""
        large, _ = self._search(limit, 0.0)
        # At a price at which a byte outweighs any time, the search finds the least memory.
        small, claim = self._search(limit, self._most_seconds())
        if self._kept(small) > self.room:
            return self._result([small], impossible=claim == "exact" and not self.may_divide)
        plans, bound = [large, small], 0.0
        for _ in range(MOST_STEPS):
            if self._kept(large) <= self.room or large.iteration_time >= small.iteration_time:
                break
            # Seconds a byte at which both plans cost the same.
            price = (small.iteration_time - large.iteration_time) / (self._kept(large) - self._kept(small))
            middle, claim = self._search(limit, price)
            value = middle.iteration_time + price * self._kept(middle)
            # Each addition of the search may be off by a rounding, and a bound must not be too high.
            rounding = 4 * self.layers * sys.float_info.epsilon * value
            bound = max(bound, value / optimality_factor(claim) - price * self.room - rounding)
            if value >= (large.iteration_time + price * self._kept(large)) * (1 - TOLERANCE):
                break
            plans.append(middle)
            large, small = (large, middle) if self._kept(middle) <= self.room else (middle, small)
        return self._result(plans, bound)

    def _result(self, plans: list[Placement], bound: float = 0.0, *, impossible: bool = False) -> _Relaxation:
        timed = tuple(Placement(self.costs, plan.options, plan.starts) for plan in plans)
        return _Relaxation(timed, 0.0 if self.may_divide or self.costs.overlap else bound, impossible)

    def _kept(self, plan: Placement) -> int:
        """Returns the bytes of activations on GPU 0, copies of resharded inputs not counted."""
        return int(self.activations[range(self.layers), plan.options].sum())

    def _search(self, limit: float | None, price: float) -> tuple[Placement, str]:
        """Returns the plan of least time + price x memory, at ``price`` seconds a byte, and its optimality."""
        alone = replace(self.costs, overlap=False)
        found = search(alone, limit, np.asarray(price * self.activations, dtype=np.float64), side_by_side=False)
        return Placement(alone, found.choices, found.starts), found.optimality

    def _most_seconds(self) -> float:
        """Returns more seconds than any plan takes."""
        edges = (self.costs.comm(size).max() for layer in self.costs.graph.layers for size in layer.input_bytes)
        return float((self.costs.compute + self.costs.sync).max(axis=1).sum() + sum(edges))
