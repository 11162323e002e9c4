"""The fastest plan under a limit that fits into the memory of a GPU.

While branches run one after another every layer computes on GPU 0, so GPU 0 holds most: all parameters, and
of each layer the largest shard's activations a(i) x ceil(B / g). Charging lambda seconds a byte for those makes the
exact search minimise time + lambda x memory. For any lambda, the least value of that minus lambda x capacity bounds
the time of every plan that fits from below (Lagrangian duality); the best lambda lies where the fastest
plan that is too large and the fastest that is small enough cost the same, and the search there finds
either a new plan between them or that there is none (G. Y. Handler and I. Zang, "A dual algorithm for the
constrained shortest path problem", Networks 10, 1980). Plans off the lower convex hull of (memory, time)
are not found: hence a bound and not always the optimum.

Blocks that are equal leave large GPU counts all at one lambda. Prices that differ a little along the layers
then find plans which only some of the blocks leave; being plans, they need no argument.

Plans that run branches side by side are taken where they fit; their bound is the
fastest plan of all, and whether anything fits stays open where only such a plan might.

Copies of resharded inputs depend on two layers, so lambda does not charge them; where they make the plan
found too large, the search is repeated for as many bytes fewer.

Where all-reduces overlap the backward pass, the plan that fits without overlap is timed with it, beside the efficient
plans under a limit on the iteration: how much memory a plan needs does not depend on overlap. The bound is then that of
all plans, fitting or not. A plan that may be far from it is improved by small changes that fit (see ``hill_climbing``).
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.errors import PlanError
from deeppool.graph.series_parallel import branching_blocks, decompose
from deeppool.planning.evaluate.memory import Integers, MemoryModel
from deeppool.planning.evaluate.memory_shortage import shortage_text
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import LimitScope
from deeppool.planning.search.efficient_plans import efficient_plans, search_within
from deeppool.planning.search.hill_climbing import improve, keep_limit
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import PROVED, search_overlapping, uniform_plans
from deeppool.planning.search.search import SearchResult, search
from deeppool.units import format_bytes

MOST_STEPS = 60
"""Most steps of the search for lambda, which takes about ten."""
MOST_REPETITIONS = 8
"""Most repetitions of the search, each with less memory for copies of resharded inputs."""
SPREADS = (0.05, 0.3)
"""Relative spread of the prices over the layers; a plan that splits a run of equal blocks pays transfers for it."""


def search_fitting(
    costs: CostTable,
    limit: float | None,
    scope: LimitScope,
    memory: MemoryModel,
    *,
    proving: bool = True,
    too_large: Sequence[Placement] = (),
) -> SearchResult:
    """Returns the fastest plan found that keeps the amplification limit and fits, with a bound on the optimum.

    Args:
        costs: costs of layers and transfers.
        limit: limit on the amplification of ``scope``.
        scope: see :class:`~deeppool.planning.plan.Plan`.
        memory: what plans hold; no plan is refused where it is unknown.
        proving: see :func:`~deeppool.planning.search.overlap.search_overlapping`; where its plan fits.
        too_large: plans within the limit that are known not to fit.

    Raises:
        PlanError: nothing fits, or nothing was found to.
    """
    fastest = search_overlapping(costs, limit, proving=proving) if scope == "layer" else search_within(costs, limit)
    capacity = costs.network.cluster.memory
    if capacity is None or not memory.known:
        return fastest
    problem, first = _Problem(costs, memory, capacity), Placement(costs, fastest.choices, fastest.starts)
    if problem.fits(first):
        return fastest
    found, bound = (problem.as_run if costs.overlap else problem.relaxed)(limit, scope, (*too_large, first))
    best = min(found, key=lambda plan: plan.iteration_time)
    bound = max(bound, fastest.iteration_time / optimality_factor(fastest.optimality))

    def permitted(plan: Placement, layers: Iterable[int]) -> bool:
        within = keep_limit(limit, plan, layers) if scope == "layer" else problem.keeps(plan, limit, scope)
        return within and problem.fits(plan)

    if best.iteration_time > bound * PROVED:
        best = improve([best], permitted, bound)
    factor = best.iteration_time / bound
    claim = certificate(1.0 if factor <= 1 + TOLERANCE else factor)
    return SearchResult(best.options, best.starts, best.iteration_time, claim)


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """Plans and bound of the search for lambda."""

    plans: tuple[Placement, ...]
    """Among them one of the least memory, copies of resharded inputs not counted."""
    bound: float = -math.inf
    """Seconds that no plan within the limit can beat and fit."""
    impossible: bool = False
    """Whether certainly no plan within the limit fits."""


class _Problem:
    """A cost table with the memory model and the capacity of a GPU."""

    def __init__(self, costs: CostTable, memory: MemoryModel, capacity: float) -> None:
        self.costs, self.memory, self.capacity = costs, memory, math.floor(capacity)
        shards = [-(-memory.global_batch // count) for count in costs.gpu_counts]
        self.activations: Integers = np.outer(memory.activations_per_sample, shards)
        """(L, K) bytes on GPU 0."""
        self.room = self.capacity - memory.state(memory.graph.parameter_bytes)
        """Bytes for activations on a GPU that computes every layer."""
        tree = decompose([layer.predecessors for layer in costs.graph.layers])
        self.may_divide = any(branching_blocks(tree)) and len(costs.gpu_counts) > 1
        """Whether branches may run side by side."""

    def fits(self, plan: Placement) -> bool:
        return self.memory.peak(plan.gpus) <= self.capacity

    def kept(self, plan: Placement) -> int:
        """Returns the bytes of activations on GPU 0, copies of resharded inputs not counted."""
        return int(self.activations[range(len(plan.options)), plan.options].sum())

    def keeps(self, plan: Placement, limit: float | None, scope: LimitScope) -> bool:
        """Whether a plan keeps a limit on the iteration; one on each layer is kept by all."""
        budget = math.inf if limit is None else limit * self.costs.single_gpu_time * (1 + TOLERANCE)
        return scope == "layer" or plan.gpu_seconds <= budget

    def as_run(
        self, limit: float | None, scope: LimitScope, too_large: Sequence[Placement]
    ) -> tuple[list[Placement], float]:
        """Returns plans that keep the limit and fit, found without overlap and on the frontier; and no bound."""
        alone = search_fitting(replace(self.costs, overlap=False), limit, scope, self.memory, too_large=too_large)
        found = [Placement(self.costs, alone.choices, alone.starts)]
        if scope == "iteration":
            efficient = efficient_plans(self.costs)
            found += [Placement(self.costs, *efficient.trace(point)) for point in range(len(efficient.time))]
        fitting = [plan for plan in found if self.keeps(plan, limit, scope) and self.fits(plan)]
        if not fitting:
            raise PlanError(
                f"no plan of {self.costs.graph.model} within amplification limit {limit:g} was found to fit into "
                f"{format_bytes(self.capacity)} (use a larger limit, or more GPUs)"
            )
        return fitting, -math.inf

    def relaxed(
        self, limit: float | None, scope: LimitScope, too_large: Sequence[Placement]
    ) -> tuple[list[Placement], float]:
        """Returns plans that keep the limit and fit, and seconds that none of all such plans can beat."""
        of_layer = limit if scope == "layer" else None
        relaxation = self._relax(of_layer)
        found = [*relaxation.plans, *uniform_plans(self.costs, of_layer)]
        if scope == "iteration" and limit is not None:
            # A limit on each layer keeps the same limit on the iteration.
            found += [*self._relax(limit).plans, *uniform_plans(self.costs, limit)]
        kept = [plan for plan in found if self.keeps(plan, limit, scope)]
        fitting = [plan for plan in kept if self.fits(plan)]
        if not fitting:
            smallest = min([*kept, *too_large], key=lambda plan: self.memory.peak(plan.gpus))
            side_by_side, certain = self.may_divide, relaxation.impossible and not self.may_divide
            request = smallest, self.memory, self.capacity, limit, scope
            raise PlanError(shortage_text(*request, certain=certain, side_by_side=side_by_side))
        return fitting, -math.inf if self.may_divide else relaxation.bound

    def _relax(self, limit: float | None) -> _Relaxation:
        """Searches for lambda, and again with less room while copies of resharded inputs make plans too large."""
        room = self.room
        relaxation = self._relax_within(limit, room)
        plans = list(relaxation.plans)
        for _ in range(MOST_REPETITIONS):
            small = [plan for plan in plans if self.kept(plan) <= room]
            fastest = min(small, key=lambda plan: plan.iteration_time, default=None)
            if fastest is None or self.fits(fastest):
                break
            copies = self.memory.peak(fastest.gpus) - (self.capacity - self.room) - self.kept(fastest)
            room = min(room - 1, self.room - copies)
            plans += self._relax_within(limit, room).plans
        return replace(relaxation, plans=tuple(plans))

    def _relax_within(self, limit: float | None, room: int) -> _Relaxation:
        large, _ = self._search(limit, 0.0)
        # At a price at which a byte outweighs any time, the search finds the least memory.
        small, claim = self._search(limit, self._most_seconds())
        if self.kept(small) > room:
            return _Relaxation((small,), impossible=claim == "exact")
        plans, bound = [large, small], -math.inf
        for _ in range(MOST_STEPS):
            price = self._price(room, large, small)
            if not price:
                break
            middle, claim = self._search(limit, price)
            value = middle.iteration_time + price * self.kept(middle)
            # Each addition of the search may be off by a rounding, and a bound must not be too high.
            rounding = 4 * len(middle.options) * sys.float_info.epsilon * value
            bound = max(bound, value / optimality_factor(claim) - price * room - rounding)
            if value >= (large.iteration_time + price * self.kept(large)) * (1 - TOLERANCE):
                break
            plans.append(middle)
            large, small = (large, middle) if self.kept(middle) <= room else (middle, small)
        return _Relaxation((*plans, *self._between(limit, room, self._price(room, large, small))), bound)

    def _price(self, room: int, large: Placement, small: Placement) -> float:
        """Returns the seconds a byte at which two plans cost the same; 0 where the faster one is small enough."""
        if self.kept(large) <= room or large.iteration_time >= small.iteration_time:
            return 0.0
        return (small.iteration_time - large.iteration_time) / (self.kept(large) - self.kept(small))

    def _between(self, limit: float | None, room: int, price: float) -> list[Placement]:
        """Returns plans with a split run of equal blocks, which change GPUs at one price, all or none of them.

        Layers up to some point pay more than the price, those after it less; bisection finds the point.
        """
        layers = np.arange(len(self.costs.graph.layers))[:, None]
        found = []
        for spread in SPREADS if price else ():
            first, last = 0, len(layers)
            while first < last:
                point = (first + last) // 2
                plan, _ = self._search(limit, price * np.where(layers < point, 1 + spread, 1 - spread))
                found.append(plan)
                first, last = (first, point) if self.kept(plan) <= room else (point + 1, last)
        return found

    def _search(self, limit: float | None, price: float | Floats) -> tuple[Placement, str]:
        """Returns the plan of least time + price x memory, at ``price`` seconds a byte, and its optimality."""
        extra = np.asarray(price * self.activations, dtype=np.float64)
        found = search(self.costs, limit, extra, side_by_side=False)
        return Placement(self.costs, found.choices, found.starts), found.optimality

    def _most_seconds(self) -> float:
        """Returns more seconds than any plan takes."""
        edges = (self.costs.comm(size).max() for layer in self.costs.graph.layers for size in layer.input_bytes)
        return float((self.costs.compute + self.costs.sync).max(axis=1).sum() + sum(edges))
