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
holds everything: lambda then charges the parameters of a branch, too, and bounds nothing. Small changes make plans that
fit of these plans, of the fastest one of all and of data parallelism on one and on all GPUs, and then faster ones (see
``hill_climbing``). While a plan is too large, its changes do not depend on the capacity: so what they make of it for
some bytes is found with more bytes, too.

The bound of plans that run branches side by side, or whose all-reduces overlap the backward pass, is the fastest plan
of all; and whether anything fits stays open where only branches side by side might.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from deeppool.base.number_checks import LARGEST
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.errors import PlanError
from deeppool.graph.series_parallel import branching_blocks, decompose
from deeppool.planning.evaluate.memory import Integers, MemoryModel
from deeppool.planning.evaluate.memory_shortage import shortage_text
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.plan import LimitScope
from deeppool.planning.search.efficient_plans import search_within
from deeppool.planning.search.hill_climbing import improve, keep_limit
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import search_overlapping
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
    if not problem.size(first):
        return fastest
    allowed = math.inf if limit is None else limit * costs.single_gpu_time * (1 + TOLERANCE)

    def within(plan: Placement, layers: Iterable[int]) -> bool:
        return keep_limit(limit, plan, layers) if scope == "layer" else plan.gpu_seconds <= allowed

    # A limit on each layer keeps the same limit on the iteration.
    relaxed, *others = map(problem.relax, {limit} if scope == "layer" else dict.fromkeys((None, limit)))
    plans = [first, *problem.uniform, *relaxed.plans, *(plan for other in others for plan in other.plans)]
    starts = [plan for plan in dict.fromkeys(plans) if within(plan, range(problem.layers))]
    bound = max(relaxed.bound, fastest.iteration_time / optimality_factor(fastest.optimality))
    best = improve(starts, within, bound, problem.value)
    if problem.size(best):
        smallest = min((best, *starts), key=lambda plan: memory.peak(plan.gpus))
        request = smallest, memory, problem.capacity, limit, scope
        raise PlanError(shortage_text(*request, certain=relaxed.impossible, side_by_side=problem.may_divide))
    factor = best.iteration_time / bound
    claim = certificate(1.0 if factor <= 1 + TOLERANCE else factor)
    return SearchResult(best.options, best.starts, best.iteration_time, claim)


class _Relaxation(NamedTuple):
    """Plans and bound of the search for lambda."""

    plans: list[Placement]
    """Among them one of about the least memory."""
    bound: float = 0.0
    """Seconds that no plan within the limit can beat and fit."""
    impossible: bool = False
    """Whether certainly no plan within the limit fits."""


class _Problem:
    """A cost table with the memory model and the capacity of a GPU."""

    def __init__(self, costs: CostTable, memory: MemoryModel, capacity: float) -> None:
        self.costs, self.memory, self.capacity = costs, memory, min(math.floor(capacity), LARGEST)
        self.layers = len(costs.graph.layers)
        self.state: Integers = np.array([[memory.state(size)] for size in costs.graph.gradient_bytes])
        """(L, 1) bytes of parameters, gradients and optimizer state; tied parameters count for one layer."""
        shards = [-(-memory.global_batch // count) for count in costs.gpu_counts]
        self.activations: Integers = np.outer(memory.activations_per_sample, shards)
        """(L, K) bytes on GPU 0."""
        tree = decompose([layer.predecessors for layer in costs.graph.layers])
        self.may_divide = any(branching_blocks(tree)) and costs.network.cluster.gpus > 1
        """Whether branches may run side by side."""
        state = 0 if self.may_divide else memory.state(memory.graph.parameter_bytes)
        self.room = self.capacity - state
        """Bytes of a GPU; in sequence those for activations on GPU 0, which computes every layer."""
        self.uniform = [data_parallel(costs, option) for option in (0, len(costs.gpu_counts) - 1)]
        """Data parallelism on one GPU and on all."""
        edges = (costs.comm(size).max() for layer in costs.graph.layers for size in layer.input_bytes)
        self.most_seconds = float((costs.compute + costs.sync).max(axis=1).sum() + sum(edges))
        """More seconds than any plan takes."""

    def size(self, plan: Placement) -> float:
        """Returns a plan's bytes on its fullest GPUs (see :meth:`MemoryModel.size`); 0 where it fits."""
        return self.memory.size(plan.gpus, self.capacity)

    def value(self, plan: Placement) -> float:
        """Returns the seconds of a plan that fits, and more for any other one, the more the larger it is."""
        return self.most_seconds * self.size(plan) or plan.iteration_time

    def relax(self, limit: float | None) -> _Relaxation:
        """Searches for lambda under a limit on each layer."""
        large, _ = self._search(limit, 0.0)
        # At a price at which a byte outweighs any time, the search finds the least memory.
        small, claim = self._search(limit, self.most_seconds)
        if self._kept(small) > self.room:
            return self._result([large, small], impossible=claim == "exact" and not self.may_divide)
        plans, bound = [large, small], 0.0
        for _ in range(MOST_STEPS):
            if self._kept(large) <= max(self.room, self._kept(small)) or large.iteration_time >= small.iteration_time:
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
        timed = [Placement(self.costs, plan.options, plan.starts) for plan in plans]
        return _Relaxation(timed, 0.0 if self.may_divide or self.costs.overlap else bound, impossible)

    def _kept(self, plan: Placement) -> int:
        """Returns the bytes that ``room`` is for; in sequence on GPU 0, copies of resharded inputs not counted."""
        if self.may_divide:
            return self.memory.peak(plan.gpus)
        return int(self.activations[range(self.layers), plan.options].sum())

    def _search(self, limit: float | None, price: float) -> tuple[Placement, str]:
        """Returns the plan of least time + price x memory, at ``price`` seconds a byte, and its optimality."""
        # In sequence GPU 0 has all parameters: with them in what it compares, a factor would be of more than seconds.
        charged = self.activations + self.state * self.may_divide
        alone, extra = replace(self.costs, overlap=False), price * charged.astype(np.float64)
        # Nothing follows from a proof where branches may run side by side.
        found = search(alone, limit, extra, side_by_side=self.may_divide, proving=not self.may_divide)
        return Placement(alone, found.choices, found.starts), found.optimality
