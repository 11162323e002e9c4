"""The fastest plan that fits into the memory of a GPU.

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
"""

import math
import sys
from dataclasses import dataclass, replace

import numpy as np

from deeppool.costs.amplification import TOLERANCE, time_allowance
from deeppool.costs.table import CostTable, Floats
from deeppool.errors import PlanError
from deeppool.graph.series_parallel import ParallelBlock, decompose, parts_of
from deeppool.planning.evaluate.gpu_sets import Gpus
from deeppool.planning.evaluate.memory import Integers, MemoryModel
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import LimitScope
from deeppool.planning.search.efficient_plans import search_within
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.search import SearchResult, search
from deeppool.units import format_bytes

MOST_STEPS = 60
"""Most steps of the search for lambda, which takes about ten."""
MOST_REPETITIONS = 8
"""Most repetitions of the search, each with less memory for copies of resharded inputs."""
SPREADS = (0.05, 0.3)
"""Relative spread of the prices over the layers; a plan that splits a run of equal blocks pays transfers for it."""


def search_memory_constrained(
    costs: CostTable, limit: float | None, scope: LimitScope, memory: MemoryModel, capacity: float
) -> SearchResult:
    """Returns the fastest plan found that keeps the amplification limit and fits, with a bound on the optimum.

    Args:
        costs: costs of layers and transfers.
        limit: limit on the amplification of ``scope``.
        scope: see :class:`~deeppool.planning.plan.Plan`.
        memory: memory model of the layers.
        capacity: bytes of each GPU.

    Raises:
        PlanError: nothing fits.
    """
    fastest = search(costs, limit) if scope == "layer" else search_within(costs, limit)
    problem = _Problem(costs, memory, capacity)
    if problem.fits(fastest):
        return fastest
    relaxation = problem.relax(limit if scope == "layer" else None)
    found = [*relaxation.plans, *problem.uniform(limit if scope == "layer" else None)]
    if scope == "iteration" and limit is not None:
        # A limit on each layer keeps the same limit on the iteration.
        found += [*problem.relax(limit).plans, *problem.uniform(limit)]
        found = [plan for plan in found if problem.work(plan) <= limit * costs.single_gpu_time * (1 + TOLERANCE)]
    fitting = [plan for plan in found if problem.fits(plan)]
    if not fitting:
        raise PlanError(
            _error_text(
                problem,
                limit,
                scope,
                min(found, key=problem.peak),
                certain=relaxation.impossible and not problem.may_divide,
            )
        )
    best = min(fitting, key=lambda plan: plan.iteration_time)
    bound = -math.inf if problem.may_divide else relaxation.bound
    factor = best.iteration_time / max(bound, fastest.iteration_time / optimality_factor(fastest.optimality))
    return replace(best, optimality=certificate(1.0 if factor <= 1 + TOLERANCE else factor))


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """Plans and bound of the search for lambda."""

    plans: tuple[SearchResult, ...]
    """Among them one of the least memory, copies of resharded inputs not counted."""
    bound: float = -math.inf
    """Seconds that no plan within the limit can beat and fit."""
    impossible: bool = False
    """Whether certainly no plan within the limit fits."""


class _Problem:
    """A cost table with the memory model and the capacity of a GPU."""

    def __init__(self, costs: CostTable, memory: MemoryModel, capacity: float) -> None:
        self.costs = costs
        self.memory = memory
        self.capacity = math.floor(capacity)
        self.own: Floats = costs.compute + costs.sync
        shards = [-(-memory.global_batch // count) for count in costs.gpu_counts]
        self.activations: Integers = np.outer(memory.activations_per_sample, shards)
        """(L, K) bytes on GPU 0."""
        self.state = memory.state(memory.graph.parameter_bytes)
        parts = parts_of(decompose([layer.predecessors for layer in costs.graph.layers]))
        several = any(isinstance(part, ParallelBlock) and len(part.branches) > 1 for part in parts)
        self.may_divide = several and len(costs.gpu_counts) > 1
        """Whether branches may run side by side."""
        self._peaks: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}

    def sets(self, plan: SearchResult) -> Gpus:
        """Returns the GPUs of each layer."""
        return Placement(self.costs, plan.choices, plan.starts).gpus

    def peak(self, plan: SearchResult) -> int:
        """Returns the bytes on the GPU that holds most."""
        key = plan.choices, plan.starts
        if key not in self._peaks:
            self._peaks[key] = self.memory.peak(self.sets(plan))
        return self._peaks[key]

    def fits(self, plan: SearchResult) -> bool:
        return self.peak(plan) <= self.capacity

    def kept(self, plan: SearchResult) -> int:
        """Returns the bytes of activations on GPU 0, copies of resharded inputs not counted."""
        return int(self.activations[range(len(plan.choices)), plan.choices].sum())

    def work(self, plan: SearchResult) -> float:
        """Returns the GPU-seconds."""
        return Placement(self.costs, plan.choices, plan.starts).gpu_seconds

    def uniform(self, limit: float | None) -> list[SearchResult]:
        """Returns a plan per permitted count with every layer on the same GPUs: such plans hold no copies."""
        counts = np.array(self.costs.gpu_counts, dtype=float)
        allowed = np.array(
            [time_allowance(math.inf if limit is None else limit, counts, alone) for alone in self.costs.compute[:, 0]]
        )
        layers = len(self.costs.graph.layers)
        times = self.own.sum(axis=0)
        permitted = np.flatnonzero((self.own <= allowed).all(axis=0))
        return [SearchResult((int(k),) * layers, (0,) * layers, float(times[k]), "") for k in permitted]

    def relax(self, limit: float | None) -> _Relaxation:
        """Searches for lambda, and again with less room while copies of resharded inputs make plans too large."""
        room = self.capacity - self.state
        relaxation = self._relax(limit, room)
        plans = list(relaxation.plans)
        for _ in range(MOST_REPETITIONS):
            small = [plan for plan in plans if self.kept(plan) <= room]
            fastest = min(small, key=lambda plan: plan.iteration_time, default=None)
            if fastest is None or self.fits(fastest):
                break
            copies = self.peak(fastest) - self.state - self.kept(fastest)
            room = min(room - 1, self.capacity - self.state - copies)
            plans += self._relax(limit, room).plans
        return replace(relaxation, plans=tuple(plans))

    def _relax(self, limit: float | None, room: int) -> _Relaxation:
        large = search(self.costs, limit, side_by_side=False)
        # At a price at which a byte outweighs any time, the search finds the least memory.
        small = self._search(limit, self._most_seconds())
        if self.kept(small) > room:
            return _Relaxation((small,), impossible=small.optimality == "exact")
        plans, bound = [large, small], -math.inf
        for _ in range(MOST_STEPS):
            if self.kept(large) <= room or large.iteration_time >= small.iteration_time:
                break
            price = (small.iteration_time - large.iteration_time) / (self.kept(large) - self.kept(small))
            middle = self._search(limit, price)
            value = middle.iteration_time + price * self.kept(middle)
            # Each addition of the search may be off by a rounding, and a bound must not be too high.
            rounding = 4 * len(middle.choices) * sys.float_info.epsilon * value
            bound = max(bound, value / optimality_factor(middle.optimality) - price * room - rounding)
            if value >= (large.iteration_time + price * self.kept(large)) * (1 - TOLERANCE):
                break
            plans.append(middle)
            large, small = (large, middle) if self.kept(middle) <= room else (middle, small)
        return _Relaxation((*plans, *self._between(limit, room, large, small)), bound)

    def _between(self, limit: float | None, room: int, large: SearchResult, small: SearchResult) -> list[SearchResult]:
        """Returns plans with a split run of equal blocks, which change GPUs at one price, all or none of them.

        Layers up to some point pay more than the price, those after it less; bisection finds the point.
        """
        if self.kept(large) <= room or large.iteration_time >= small.iteration_time:
            return []
        price = (small.iteration_time - large.iteration_time) / (self.kept(large) - self.kept(small))
        layers = np.arange(len(self.costs.graph.layers))[:, None]
        found = []
        for spread in SPREADS:
            first, last = 0, len(layers)
            while first < last:
                point = (first + last) // 2
                prices = price * np.where(layers < point, 1 + spread, 1 - spread)
                plan = search(self.costs, limit, prices * self.activations, side_by_side=False)
                found.append(plan)
                if self.kept(plan) <= room:
                    last = point
                else:
                    first = point + 1
        return found

    def _search(self, limit: float | None, price: float) -> SearchResult:
        """Returns the plan of least time + price x memory, at ``price`` seconds a byte."""
        extra = np.asarray(price * self.activations, dtype=np.float64)
        return search(self.costs, limit, extra, side_by_side=False)

    def _most_seconds(self) -> float:
        """Returns more seconds than any plan takes."""
        edges = (self.costs.comm(size).max() for layer in self.costs.graph.layers for size in layer.input_bytes)
        return float(self.own.max(axis=1).sum() + sum(edges))


def _error_text(
    problem: _Problem, limit: float | None, scope: LimitScope, smallest: SearchResult, *, certain: bool
) -> str:
    """Returns the error text: why nothing fits, and what would."""
    costs, memory = problem.costs, problem.memory
    (fullest, *_) = memory.use(problem.sets(smallest), costs.network.cluster.gpus)
    state = fullest.parameters + fullest.gradients + fullest.optimizer_state
    heaviest = fullest.heaviest[0]
    within = "" if limit is None else f" within amplification limit {limit:g}"
    return (
        f"no plan of {costs.graph.model}{within} {'fits' if certain else 'was found to fit'}: in the smallest one GPU "
        f"{fullest.gpus[0]} needs {format_bytes(fullest.total)}, {format_bytes(fullest.total - problem.capacity)} more "
        f"than its {format_bytes(problem.capacity)}; {format_bytes(state)} are parameters, gradients and optimizer "
        f"({memory.optimizer}), {format_bytes(fullest.activations + fullest.received)} activations, and layer "
        f"'{heaviest.name}' takes the most, {format_bytes(heaviest.total)} at per-GPU batch {heaviest.batch} "
        f"({_next_step(problem, scope)})"
    )


def _next_step(problem: _Problem, scope: LimitScope) -> str:
    """Returns a change that makes data parallelism fit, which takes the least memory of all plans."""
    costs, memory = problem.costs, problem.memory
    gpus, batch = costs.gpu_counts[-1], memory.global_batch
    layers = len(costs.graph.layers)
    everywhere = SearchResult((len(costs.gpu_counts) - 1,) * layers, (0,) * layers, 0.0, "")
    if problem.fits(everywhere):
        times, alone = problem.own[:, -1], costs.compute[:, 0]
        spent = float((times / alone).max() if scope == "layer" else times.sum() / alone.sum())
        return f"data parallelism on {gpus} GPUs fits: an amplification limit of {_up(spent * gpus)} permits it"
    if samples := _samples_that_fit(memory, problem.capacity):
        largest = samples * gpus
        return f"data parallelism fits from {-(-batch // samples)} GPUs, or on {gpus} up to a global batch of {largest}"
    too_much = "even one sample a GPU is too much for data parallelism"
    if samples := _samples_that_fit(replace(memory, optimizer="sgd"), problem.capacity):
        return f"{too_much}; with optimizer sgd data parallelism fits from {-(-batch // samples)} GPUs"
    # Branches on GPUs of their own divide the parameters, so a plan with them may still fit.
    certainty = "no plan was found that holds this model" if problem.may_divide else "only larger GPUs hold this model"
    return f"{too_much}, whatever the optimizer: {certainty}"


def _samples_that_fit(memory: MemoryModel, capacity: int) -> int:
    """Returns the largest per-GPU batch at which a GPU can hold all layers."""
    per_sample = int(memory.activations_per_sample.sum())
    room = capacity - memory.state(memory.graph.parameter_bytes)
    if not per_sample:
        return memory.global_batch if room >= 0 else 0
    return max(0, room // per_sample)


def _up(value: float) -> str:
    """Rounds up to hundredths, but for a limit's tolerance."""
    return f"{math.ceil(100 * value * (1 - TOLERANCE)) / 100:.10g}"
