"""From a fork to its join: the branches between them in the best lanes.

A branch that ends on GPU count m takes T(m) seconds, F(m) of them in the forward pass, and the join then
pays X(m) to fetch its results. The backward pass starts again at the join, so side by side the lanes take

    max F + max (T - F) + sum X   over lanes, with sum X within what the join's limit leaves.

With max T in place of max F + max (T - F), and each X at its least but for one lane's, that is a lower
bound which NumPy evaluates for all arrangements and all GPU counts of fork and join at once. A crossing
is *settled* for one pair of counts when the search asks for it: of the arrangements whose bound is below
the best time so far, first with each branch's fastest ways, and where that leaves a gap between bound and
time with all ways that trade forward for backward.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from deeppool.costs.communication import HOME, Place
from deeppool.costs.table import Floats
from deeppool.graph.regions import INPUT, Block, Knot, Series, layers_of
from deeppool.planning.bundle import NONE, NOTHING, Bundle, bundle_of, concatenate
from deeppool.planning.knot import Tangled
from deeppool.planning.lanes import Lane, Slot, division, is_complete
from deeppool.planning.prices import ROUNDING, Prices
from deeppool.planning.ways import NO_WAY, Budget, Choice, Edge, ExhaustedError, Passage, Step, Way, efficient

MOST_PAIRS = 100_000
"""Pairs of ways that a search tries to prove the last fraction of a per cent."""
NEVER = 1e30
"""Seconds, for what the limit forbids, where arithmetic needs a number."""


class Crossings:
    """All crossings and ways of one search; equal ones are built once."""

    def __init__(self, prices: Prices, *, proving: bool = True) -> None:
        """Begins with none.

        Args:
            prices: of the layers.
            proving: looks for the best ways, by what none can beat, within a budget; else takes those that are
                found first for the best.
        """
        self.prices, self.proving = prices, proving
        self.counts = prices.gpu_counts
        cluster = prices.costs.network.cluster
        self.gpus, self.gpus_per_node = cluster.gpus, cluster.gpus_per_node
        self.budget = Budget(MOST_PAIRS if proving else 0)
        self._steps: dict[object, tuple[Slotted, int]] = {}
        self._ways: dict[object, tuple[Way, int]] = {}
        self._fits: dict[tuple[Slot, ...], Floats] = {}

    def whole(self, series: Series) -> Passage:
        """The best way through a model."""
        slots = ((self.gpus, HOME),)
        way = Way(self._steps_of(series, INPUT, slots), self.fits(slots), self.budget)
        while True:
            last = int(way.guess[0, 0].argmin())
            passage = way.settle(0, 0, last)
            if way.guess[0, 0, last] <= way.guess.min():
                return passage._replace(lower=min(passage.time, float(way.lower.min())))

    def way(self, series: Series, fork: int, slots: tuple[Slot, ...]) -> tuple[Way, int]:
        """The ways through a branch up to its tail, in each slot, and what to add to their layers."""
        # Layers of a tail are read outside, which their shape does not tell: two layers in a row may be a branch
        # as well as a layer and its tail.
        layers = sorted(layers_of(replace(series, tail=None)))
        key = self.prices.shape(layers), slots
        if key not in self._ways:
            self._ways[key] = Way(self._steps_of(series, fork, slots), self.fits(slots), self.budget), layers[0]
        way, first = self._ways[key]
        return way, layers[0] - first

    def step(
        self, block: Block | Knot, fork: int, join: int, slots: tuple[Slot, ...], exits: tuple[Place, ...] | None = None
    ) -> tuple["Slotted", int]:
        """What lies between a fork and its join, seen as a step, and what to add to its layers.

        Args:
            block: branches or a knot.
            fork: layer before it.
            join: layer after it.
            slots: GPUs to use, seen from the fork's.
            exits: the same seen from the join's, for branches whose join belongs to a series outside; the step
                then does not contain it.
        """
        layers = sorted(layers_of(block))
        key = self.prices.shape([*layers, join]), slots, exits
        if key not in self._steps:
            parts: list[Crossing | Tangled] = []
            for number, slot in enumerate(slots):
                if isinstance(block, Knot):
                    fits = self.fits((slot,))[0, 0]
                    parts.append(Tangled(self.prices, block, fork, join, slot[1], fits))
                else:
                    parts.append(Crossing(self, block, fork, join, slot, None if exits is None else exits[number]))
            self._steps[key] = Slotted(parts), layers[0]
        step, first = self._steps[key]
        return step, layers[0] - first

    def fits(self, slots: tuple[Slot, ...]) -> Floats:
        """(S, 1, K) 0 where a GPU count fits into a slot, else inf."""
        if slots not in self._fits:
            widths = np.array([width for width, _ in slots])
            fits = np.where(np.array(self.counts) <= widths[:, None], 0.0, np.inf)
            self._fits[slots] = fits[:, None, :]
        return self._fits[slots]

    def _steps_of(self, series: Series, fork: int, slots: tuple[Slot, ...]) -> list[tuple[Step, int]]:
        steps: list[tuple[Step, int]] = []
        for layer, block in zip(series.layers, series.blocks, strict=True):
            if block is None:
                places = {place for _, place in slots}
                few = places.pop() if len(places) == 1 else None
                steps.append((Edge(self.prices, fork, layer, [p for _, p in slots] if few is None else [few]), 0))
            else:
                steps.append(self.step(block, fork, layer, slots))
            # After the first layer, transfers stay in the slot.
            fork, slots = layer, tuple((width, HOME) for width, _ in slots)
        return steps


class Slotted:
    """Crossings or knots that differ in their GPUs only, as one step."""

    def __init__(self, parts: Sequence["Crossing | Tangled"]) -> None:
        """Takes one part for each slot."""
        self.parts = parts
        self.lower: Floats = np.stack([part.lower for part in parts])
        exact = all(part.lower is part.guess for part in parts)
        self.guess: Floats = self.lower if exact else np.stack([part.guess for part in parts])
        # What a part learns later shows here.
        for part, lower, guess in zip(parts, self.lower, self.guess, strict=True):
            part.lower, part.guess = lower, guess

    @property
    def version(self) -> int:
        """Grows whenever a price changes."""
        return sum(part.version for part in self.parts)

    @property
    def least(self) -> Floats:
        """(S, join) seconds of transfers into a join outside that no way can beat."""
        return np.stack([part.least for part in self.parts if isinstance(part, Crossing)])

    def settle(self, slot: int, before: int, after: int) -> Passage:
        """The best way, with its real price."""
        return self.parts[slot].settle(before, after)

    def front(self, slot: int, before: int, after: int, cap: float) -> list[Passage]:
        """All ways within ``cap`` seconds that trade forward for backward."""
        return self.parts[slot].front(before, after, cap)


@dataclass(frozen=True, slots=True)
class Reach:
    """One branch in every slot: its ways, and the transfer of its results to the join."""

    way: Way
    layers: int
    """To add to the layers of ``way``."""
    moved: Floats
    """(S, last, join) seconds from the branch's last layer; inf where that is not permitted."""
    tail: tuple[Slotted, int] | None
    total: Floats
    """(S, fork, join) lower bound of T + X."""
    least: Floats
    """(S, join) lower bound of X."""

    @property
    def exact(self) -> bool:
        """Whether there is no knot in it."""
        return self.way.lower is self.way.guess and (self.tail is None or self.tail[0].lower is self.tail[0].guess)

    def ends(self, times: Floats, slot: int, before: int, after: int) -> list[tuple[float, float, int]]:
        """T and X, T ascending and X descending, with the last count that has them.

        Args:
            times: (S, fork, last) of the ways: their bounds, or what the search reckons with.
            slot: which GPUs.
            before: count of the fork.
            after: count of the join.
        """
        times, moved = times[slot, before], self.moved[slot, :, after]
        if self.tail is not None:
            least = self.tail[0].least[slot, after]
            times, moved = times + (self.tail[0].lower[slot, :, after] - least), moved + least
        return staircase(zip(times.tolist(), moved.tolist(), range(len(times)), strict=True))


T = TypeVar("T")


def staircase(points: Iterable[tuple[float, float, T]]) -> list[tuple[float, float, T]]:
    """The points that no other one beats in both numbers."""
    kept: list[tuple[float, float, T]] = []
    least = math.inf
    for point in sorted(points, key=lambda point: point[:2]):
        if point[1] < least and point[0] < math.inf:
            least = point[1]
            kept.append(point)
    return kept


class Crossing:
    """The branches between a fork and its join, and the join itself if it belongs to the same series."""

    def __init__(
        self, crossings: Crossings, block: Block, fork: int, join: int, slot: Slot, exit_: Place | None
    ) -> None:
        """Bounds every pair of GPU counts of the fork and the join."""
        self.crossings, self.block, self.fork, self.join = crossings, block, fork, join
        prices, (width, entry) = crossings.prices, slot
        count = len(crossings.counts)
        self.division = division(len(block.branches), crossings.counts, width, crossings.gpus_per_node)
        self.complete = is_complete(len(block.branches))
        self.version = 0
        zeros = np.zeros((1 if fork == INPUT else count, count))
        self.own, self.own_forward, self.slack = zeros, zeros, zeros + np.inf
        self.has_join = exit_ is None
        if exit_ is None:
            direct = prices.move(fork, join, entry) if block.direct else zeros
            self.own = direct + prices.own[join]
            self.own_forward = direct / 2 + prices.forward[join]
            self.slack = prices.room[join] - direct
        self._entries = tuple((wide, max(entry, place)) for wide, place in self.division.slots)
        self._exits = tuple(max(exit_ or HOME, place) for _, place in self.division.slots)
        self._reaches = [self._reach(branch) for branch in block.branches]
        self._settled: dict[tuple[int, int], Passage] = {}
        self.bounds, least = self._bound()
        """(arrangement, fork, join) seconds that no way in that arrangement can beat; inf where none is permitted."""
        self.least: Floats = least
        """(join,) seconds of transfers into the join that no way can beat."""
        self.lower: Floats = self.bounds.min(axis=0) if self.complete else self._alone()
        self.exact = crossings.proving and self.complete and all(reach.exact for reach in self._reaches)
        """Whether settling finds the best way."""
        self.guess = self.lower if self.exact else self.lower.copy()

    # -- bounds, for all GPU counts at once ---------------------------------------------------------

    def _reach(self, branch: Series) -> Reach:
        """A branch in every slot of the division."""
        crossings, prices, last = self.crossings, self.crossings.prices, branch.layers[-1]
        way, layers = crossings.way(branch, self.fork, self._entries)
        # (S, K, 1): the branch's last layer fits into the slot.
        moved = np.swapaxes(crossings.fits(self._entries), 1, 2)
        if last in prices.layers[self.join].predecessors:
            moved = moved + np.stack([prices.move(last, self.join, place) for place in self._exits])
            moved = np.where(moved <= self.slack.max(axis=0), moved, np.inf)
        else:
            moved = np.broadcast_to(moved, (*moved.shape[:2], len(crossings.counts)))
        tail, bound, least = None, moved, moved
        if branch.tail is not None:
            inside = tuple((width, HOME) for width, _ in self._entries)
            tail = crossings.step(branch.tail, last, self.join, inside, self._exits)
            bound, least = moved + tail[0].lower, moved + tail[0].least[:, None, :]
        total = (way.lower[:, :, :, None] + bound[:, None]).min(axis=2)
        return Reach(way, layers, moved, tail, total, least.min(axis=1))

    def _bound(self) -> tuple[Floats, Floats]:
        division, shape = self.division, self.own.shape
        least = np.minimum([reach.least for reach in self._reaches], NEVER)
        excess = np.minimum([reach.total for reach in self._reaches], NEVER) - least[:, :, None, :]
        lanes = len(division.lanes)
        # A last row of zeros for arrangements that have fewer lanes than others.
        busy, moved = np.zeros((lanes + 1, *shape)), np.zeros((lanes + 1, shape[1]))
        busy[:lanes] = (division.members @ excess.reshape(division.members.shape[1], -1)).reshape(lanes, *shape)
        moved[:lanes] = division.members @ least.reshape(division.members.shape[1], -1)
        busiest, arriving = busy[division.used].max(axis=1), moved[division.used].sum(axis=1)
        time = busiest + arriving[:, None, :] + self.own
        permitted = (time < NEVER / 2) & (arriving[:, None, :] <= self.slack)
        return np.where(permitted, time, np.inf), arriving.min(axis=0)

    def _alone(self) -> Floats:
        """A bound for more branches than can be divided in all ways: as if each had all the GPUs to itself."""
        # The first slot is that of the block in sequence.
        reaches = [(reach.total[0], reach.least[0]) for reach in self._reaches]
        with np.errstate(invalid="ignore"):
            busiest = np.max([total - least for total, least in reaches], axis=0)
            arriving = np.sum([least for _, least in reaches], axis=0)
            return np.where(np.isfinite(self.bounds[0]), busiest + arriving + self.own, np.inf)

    # -- real prices, for one pair of GPU counts ----------------------------------------------------

    def settle(self, before: int, after: int) -> Passage:
        """The best lanes between two GPU counts, with their real price."""
        ends = before, after
        if ends not in self._settled:
            found = self._settled[ends] = _Settling(self, before, after).best()
            # What is not settled exactly keeps its bound; the search then reckons with what was found.
            price = found.lower if self.exact else found.time
            if price > self.guess[ends] * (1 + ROUNDING):
                self.guess[ends] = price
                self.version += 1
        return self._settled[ends]

    def front(self, before: int, after: int, cap: float) -> list[Passage]:
        """All ways within ``cap`` seconds that trade forward for backward."""
        settling = _Settling(self, before, after)
        ways = settling.ways(cap - settling.own, thorough=True)
        return efficient([settling.passage(ways, index) for index in range(len(ways.parts))])


class _Settling:
    """One crossing between one GPU count of its fork and one of its join."""

    def __init__(self, crossing: Crossing, before: int, after: int) -> None:
        self.crossing, self.before, self.after = crossing, before, after
        self.own = float(crossing.own[before, after])
        self.slack = float(crossing.slack[before, after])
        bounds = crossing.bounds[:, before, after]
        self.order = [index for index in np.argsort(bounds, kind="stable").tolist() if bounds[index] < math.inf]
        """Arrangements that can be at all, by their bounds."""
        self.bounds = {index: float(bounds[index]) - self.own for index in self.order}
        self._stairs: dict[int, list[tuple[float, float, None]]] = {}

    def best(self) -> Passage:
        """The best lanes, and what none can beat."""
        best, cap = NONE, math.inf
        for thorough in (False, True):
            for index in self.order:
                if self.bounds[index] >= cap * (1 - ROUNDING):
                    continue
                if not thorough:
                    self.bounds[index] = max(self.bounds[index], self._relaxed(index))
                    if self.bounds[index] >= cap * (1 - ROUNDING):
                        continue
                try:
                    ways = self._arranged(index, cap, self.slack, thorough)
                except ExhaustedError:
                    continue
                tight = ways.settled if thorough else False
                self.bounds[index] = float(np.where(tight, ways.time, ways.lower + ways.moved).min(initial=cap))
                if len(ways.parts) and float(ways.time.min()) < cap:
                    best = ways.keep(np.array([ways.time.argmin()]))
                    cap = float(best.time[0])
        if not best.parts:
            return NO_WAY
        crossing = self.crossing
        lower = min(self.bounds.values()) if crossing.exact else crossing.lower[self.before, self.after] - self.own
        return self.passage(best, 0)._replace(lower=min(cap, float(lower)) + self.own)

    def ways(self, cap: float, *, thorough: bool) -> Bundle:
        """Ways through the branches, without the join, in any arrangement."""
        return self._within(cap, self.slack, thorough)

    def passage(self, ways: Bundle, index: int) -> Passage:
        """One of the ways, with the join."""
        crossing, ends = self.crossing, (self.before, self.after)
        time = float(ways.time[index]) + self.own
        forward = float(ways.forward[index] + ways.moved[index] / 2 + crossing.own_forward[ends])
        choice = (Choice(crossing.join, self.after, 0),) if crossing.has_join else ()
        return Passage(time, forward, time, (*ways.parts[index], *choice))

    def _within(self, cap: float, slack: float, thorough: bool) -> Bundle:
        return concatenate(
            [self._arranged(index, cap, slack, thorough) for index in self.order if self.bounds[index] <= cap]
        )

    def _relaxed(self, index: int) -> float:
        """A tighter bound of one arrangement: max T + sum X, whatever the split into forward and backward."""
        lanes = [
            lane for lane in self.crossing.division.used[index].tolist() if lane < len(self.crossing.division.lanes)
        ]
        stairs = [self._stair(lane) for lane in lanes]
        if not all(stairs):
            return math.inf
        first = max(stair[0][0] for stair in stairs)
        best = math.inf
        for threshold in sorted({first, *(time for stair in stairs for time, *_ in stair if time > first)}):
            moved = sum(next(x for time, x, _ in reversed(stair) if time <= threshold) for stair in stairs)
            if moved <= self.slack:
                best = min(best, threshold + moved)
        return best

    def _stair(self, lane: int) -> list[tuple[float, float, None]]:
        """Bounds of T and X of all branches of a lane, T ascending and X descending."""
        if lane not in self._stairs:
            branches, slot = self.crossing.division.lanes[lane]
            stair: list[tuple[float, float, None]] = [(0.0, 0.0, None)]
            for branch in branches:
                reach = self.crossing._reaches[branch]
                ends = reach.ends(reach.way.lower, slot, self.before, self.after)
                stair = staircase((a + time, b + moved, None) for a, b, _ in stair for time, moved, _ in ends)
            self._stairs[lane] = stair
        return self._stairs[lane]

    def _arranged(self, index: int, cap: float, slack: float, thorough: bool) -> Bundle:
        """Ways through the branches in one arrangement, within the cap and the slack."""
        division, reaches = self.crossing.division, self.crossing._reaches
        lanes = [
            (lane, division.lanes[kind][1])
            for lane, kind in zip(division.arrangements[index], division.used[index].tolist(), strict=False)
        ]
        # What the branches still to come will at least add to the transfers.
        least = sum(float(reaches[branch].least[slot, self.after]) for lane, slot in lanes for branch in lane.branches)
        folded = NOTHING
        for lane, slot in lanes:
            bundle = NOTHING
            for branch in lane.branches:
                least -= float(reaches[branch].least[slot, self.after])
                ways = self._branch(reaches[branch], lane, slot, cap - least, slack - least, thorough)
                bundle = bundle.together(ways, side_by_side=False, cap=cap - least, slack=slack - least)
            folded = folded.together(bundle, side_by_side=True, cap=cap - least, slack=slack - least)
            if thorough:
                self.crossing.crossings.budget.spend(len(folded.parts))
        return folded

    def _lasts(self, reach: Reach, slot: int) -> Iterable[int]:
        """Counts of a branch's last layer whose fastest ways no other count beats in both time and transfers."""
        if reach.tail is not None:
            # What a tail takes is only bounded so far, and a bound rules nothing out.
            return range(len(self.crossing.crossings.counts))
        settled: set[int] = set()
        while True:
            lasts = [last for *_, last in reach.ends(reach.way.guess, slot, self.before, self.after)]
            if settled.issuperset(lasts):
                return lasts
            # Settling one may make it slower than another one that it ruled out.
            for last in lasts:
                reach.way.settle(slot, self.before, last)
            settled.update(lasts)

    def _branch(self, reach: Reach, lane: Lane, slot: int, cap: float, slack: float, thorough: bool) -> Bundle:
        """Ways through one branch: the fastest ones to its efficient last counts, or all."""
        found = []
        for last in range(len(self.crossing.crossings.counts)) if thorough else self._lasts(reach, slot):
            moved = float(reach.moved[slot, last, self.after])
            if not (moved <= slack and reach.way.lower[slot, self.before, last] + moved <= cap):
                continue
            if thorough:
                passages = reach.way.front(slot, self.before, last, cap - moved)
            else:
                passages = [reach.way.settle(slot, self.before, last)]
            # A knot may promise a way that its search then does not find.
            passages = [passage for passage in passages if passage.time < math.inf]
            ways = bundle_of(passages, moved, reach.layers, lane.start)
            if reach.tail is not None and passages:
                tail, layers = reach.tail
                room = cap - moved - min(passage.lower for passage in passages)
                crossing = tail.parts[slot]
                assert isinstance(crossing, Crossing)
                rest = _Settling(crossing, last, self.after)._within(room, slack - moved, thorough)
                rest = rest.elsewhere(layers, lane.start)
                ways = ways.together(rest, side_by_side=False, cap=cap, slack=slack)
            found.append(ways)
        return concatenate(found)
