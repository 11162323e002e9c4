"""Shortest paths through a series of layers, on several sets of GPUs at once."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from deeppool.costs.communication import Locality
from deeppool.costs.table import Floats
from deeppool.planning.search.limited_costs import LimitedCosts


class Choice(NamedTuple):
    """GPU count and first GPU of one layer."""

    layer: int
    option: int
    """Index of its GPU count."""
    start: int
    """First GPU."""


class PartialPlan(NamedTuple):
    """A plan of some layers, with its seconds."""

    time: float
    """Seconds, forward and backward, and the price of the GPU-seconds."""
    forward: float
    """Seconds in the forward pass."""
    lower: float
    """Seconds that no way with the same ends can beat; equal to ``time`` where this is the best one."""
    parts: tuple["Choice | tuple[PartialPlan, int, int]", ...]
    """Choices, and partial plans with the offsets to add to their layers and to their first GPUs."""
    added: float = 0.0
    """Price of the GPU-seconds."""

    @property
    def backward(self) -> float:
        """Seconds in the backward pass."""
        return self.time - self.forward - self.added

    def choices(self, layers: int = 0, start: int = 0) -> Iterator[Choice]:
        """Yields every choice of this way."""
        for part in self.parts:
            if isinstance(part, Choice):
                yield Choice(part.layer + layers, part.option, part.start + start)
            else:
                passage, further, later = part
                yield from passage.choices(layers + further, start + later)


INFEASIBLE = PartialPlan(math.inf, math.inf, math.inf, ())


def efficient(ways: list[PartialPlan]) -> list[PartialPlan]:
    """Returns the ways that no other one beats in forward, backward and the price of GPU-seconds."""
    kept: list[PartialPlan] = []
    least: list[tuple[float, float]] = []
    for way in sorted(ways, key=lambda way: (way.forward, way.time)):
        backward, added = way.backward, way.added
        if not any(b <= backward and a <= added for b, a in least):
            least = [(b, a) for b, a in least if b < backward or a < added]
            least.append((backward, added))
            kept.append(way)
    if any(way.lower < way.time for way in ways):
        lower = min(way.lower for way in ways)
        kept = [way._replace(lower=lower) for way in kept]
    return kept


class Step(Protocol):
    """Protocol of the step from a layer of a series to the next one, included; S sets of GPUs, or 1 for all of them."""

    lower: Floats
    """(S, before, after) seconds that no way can beat; inf where the limit permits none."""
    guess: Floats
    """(S, before, after) estimated seconds: ``lower``, but for steps that are not evaluated exactly."""

    @property
    def passes(self) -> Floats:
        """(S, 3, before, after) forward, backward and price of GPU-seconds that no way can beat."""

    @property
    def version(self) -> int:
        """Counter that grows whenever a price changes."""

    def settle(self, slot: int, before: int, after: int) -> PartialPlan:
        """Returns the best way, with its exact price."""

    def front(self, slot: int, before: int, after: int, cap: float) -> list[PartialPlan]:
        """Returns all ways within ``cap`` seconds that trade forward for backward."""


class Edge:
    """Step to a layer from the one that it reads."""

    version = 0

    def __init__(self, prices: LimitedCosts, source: int, layer: int, places: Sequence[Locality]) -> None:
        """Takes the locality of the layer's GPUs relative to the source's: per set of GPUs, or once for all of them."""
        edges = [prices.edge(source, layer, place) for place in places]
        self.layer = layer
        self.lower: Floats = edges[0][0][None] if len(edges) == 1 else np.stack([edge[0] for edge in edges])
        self.guess = self.lower
        self._forward, self._added = [edge[1] for edge in edges], [edge[2] for edge in edges]

    @functools.cached_property
    def passes(self) -> Floats:
        """(S, 3, before, after) seconds of the transfer and the layer in each pass, and price of GPU-seconds."""
        forward, added = np.stack(self._forward), np.stack(self._added)
        never = np.where(np.isfinite(self.lower), 0.0, np.inf)
        return np.stack([forward + never, self.lower - forward - added, added + never], axis=1)

    def settle(self, slot: int, before: int, after: int) -> PartialPlan:
        """Returns the transfer and the layer."""
        slot = slot if len(self._forward) > 1 else 0
        time = float(self.lower[slot, before, after])
        forward, added = float(self._forward[slot][before, after]), float(self._added[slot][before, after])
        return PartialPlan(time, forward, time, (Choice(self.layer, after, 0),), added)

    def front(self, slot: int, before: int, after: int, cap: float) -> list[PartialPlan]:
        """Returns the only way."""
        found = self.settle(slot, before, after)
        return [found] if found.time <= cap else []


class ExhaustedError(Exception):
    """Raised where a proof of optimality would take too long."""


class Budget:
    """Bounds the work that the search spends on proving the last fraction of a per cent."""

    def __init__(self, pairs: int) -> None:
        """Allows a number of pairs of ways."""
        self.left = pairs

    def spend(self, pairs: int) -> None:
        """Counts pairs that are about to be tried.

        Raises:
            ExhaustedError: there are too many of them.
        """
        self.left -= pairs
        if self.exhausted:
            raise ExhaustedError

    @property
    def exhausted(self) -> bool:
        """Whether a proof was given up."""
        return self.left < 0


class PathTable:
    """Best plans of a series, from each GPU count before it to each of its last layer.

    S sets of GPUs at once: each is a slot.
    """

    def __init__(self, steps: list[tuple[Step, int]], fits: Floats, budget: Budget) -> None:
        """Prices all ways.

        Args:
            steps: each with what to add to its layers.
            fits: (S, 1, K) 0 where a GPU count fits into a slot, else inf.
            budget: budget of :meth:`front`.
        """
        self.steps, self._fits, self._budget = steps, fits, budget
        self._versions = [-1] * len(steps)
        self._times: list[Floats] = [np.empty(0)] * len(steps)
        self._settled: dict[tuple[int, int, int], PartialPlan] = {}
        self._fronts: dict[tuple[int, int, int], tuple[float, list[PartialPlan]]] = {}
        """Per ends the most seconds that were asked for, and the ways."""
        self._refresh()

    @property
    def guess(self) -> Floats:
        """(S, before, last) seconds that the search reckons with."""
        return self._times[-1]

    @property
    def lower(self) -> Floats:
        """(S, before, last) seconds that no way can beat."""
        if all(step.lower is step.guess for step, _ in self.steps):
            return self._times[-1]
        first = self.steps[0][0].lower + self._fits
        return functools.reduce(lambda ways, step: shortest(ways, step[0].lower) + self._fits, self.steps[1:], first)

    @functools.cached_property
    def passes(self) -> Floats:
        """(S, 3, before, last) forward, backward and price of GPU-seconds that no way can beat."""
        fits = self._fits[:, None]
        first = self.steps[0][0].passes + fits
        return functools.reduce(lambda ways, step: shortest(ways, step[0].passes) + fits, self.steps[1:], first)

    def settle(self, slot: int, before: int, last: int) -> PartialPlan:
        """Returns the best way with these ends, with its real price."""
        while (slot, before, last) not in self._settled:
            if not np.isfinite(self.guess[slot, before, last]):
                return INFEASIBLE
            ends = itertools.pairwise(self._path(slot, before, last))
            passages = [step.settle(slot, *pair) for (step, _), pair in zip(self.steps, ends, strict=True)]
            if self._refresh():
                continue
            time = sum(passage.time for passage in passages)
            self._settled[slot, before, last] = PartialPlan(
                time,
                sum(passage.forward for passage in passages),
                min(float(self.lower[slot, before, last]), time),
                tuple((passage, layers, 0) for passage, (_, layers) in zip(passages, self.steps, strict=True)),
                sum(passage.added for passage in passages),
            )
        return self._settled[slot, before, last]

    def front(self, slot: int, before: int, last: int, cap: float) -> list[PartialPlan]:
        """Returns all ways with these ends within ``cap`` seconds that trade forward for backward."""
        ends = slot, before, last
        most, ways = self._fronts.get(ends, (-math.inf, []))
        if most < cap:
            ways = self._front(slot, before, last, cap)
            self._fronts[ends] = cap, ways
        return [way for way in ways if way.time <= cap]

    def _front(self, slot: int, before: int, last: int, cap: float) -> list[PartialPlan]:
        fronts: dict[int, list[PartialPlan]] = {before: [PartialPlan(0.0, 0.0, 0.0, ())]}
        for (step, layers), rest in zip(self.steps, self._rests(slot, last), strict=True):
            lower = step.lower[slot if len(step.lower) > 1 else 0]
            longer: dict[int, list[PartialPlan]] = {}
            for source, ways in fronts.items():
                least = min(way.time for way in ways)
                for target in np.nonzero(least + lower[source] + rest <= cap)[0].tolist():
                    pieces = step.front(slot, source, target, cap - least - float(rest[target]))
                    self._budget.spend(len(ways) * len(pieces))
                    longer.setdefault(target, []).extend(
                        _joined(way, piece, layers)
                        for way in ways
                        for piece in pieces
                        if way.time + piece.time + rest[target] <= cap
                    )
            fronts = {target: efficient(ways) for target, ways in longer.items() if ways}
        return fronts.get(last, [])

    def _rests(self, slot: int, last: int) -> list[Floats]:
        """Returns, after each step and per GPU count, the seconds that the later steps take at least."""
        fits = self._fits[slot, 0]
        rest: Floats = np.full(len(fits), np.inf)
        rest[last] = 0.0
        found = [rest]
        for step, _ in self.steps[:0:-1]:
            rest = (step.lower[slot if len(step.lower) > 1 else 0] + rest).min(axis=1) + fits
            found.append(rest)
        return found[::-1]

    def _path(self, slot: int, before: int, last: int) -> list[int]:
        """Returns the GPU counts before, between and after the steps of the shortest way."""
        path = [last]
        for (step, _), times in zip(self.steps[:0:-1], self._times[-2::-1], strict=True):
            prices = step.guess[slot if len(step.guess) > 1 else 0]
            path.append(int((times[slot, before] + prices[:, path[-1]]).argmin()))
        return [before, *reversed(path)]

    def _refresh(self) -> bool:
        """Lengthens the ways whose steps turned out more expensive; returns whether there were any."""
        changed = False
        for index, (step, _) in enumerate(self.steps):
            if changed or self._versions[index] != step.version:
                changed = True
                self._versions[index] = step.version
                ways = shortest(self._times[index - 1], step.guess) if index else step.guess
                self._times[index] = ways + self._fits
        return changed


def _joined(way: PartialPlan, piece: PartialPlan, layers: int) -> PartialPlan:
    return PartialPlan(
        way.time + piece.time,
        way.forward + piece.forward,
        way.lower + piece.lower,
        (*way.parts, (piece, layers, 0)),
        way.added + piece.added,
    )


def shortest(before: Floats, step: Floats) -> Floats:
    """Returns (S, …, a, c): the shortest of all two-step paths (S, …, a, b), (S or 1, …, b, c)."""
    if before.ndim == 3 and before.shape[:2] == (1, 1):
        best: Floats = (before[0, 0][:, None] + step[0]).min(axis=0)[None, None]
    else:
        best = (before[..., None] + step[..., None, :, :]).min(axis=-2)
    return best
