"""Local search for regions between a fork and its join that are not series-parallel, as in DenseNet.

The layers of a region run one after another, each on GPUs from the region's first one on, each on its own count. The
best counts are not found exactly: from the best plan that gives all layers one count, a local search changes one
layer at a time until nothing helps. The lower bound is the shortest path through the layers in their order when every
transfer is free but those from the fork and from the layer just before; a plan states how far from that it is.
"""

import numpy as np

from deeppool.costs.communication import SAME_START, Locality
from deeppool.costs.table import Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel
from deeppool.planning.search.limited_costs import LimitedCosts
from deeppool.planning.search.shortest_path import INFEASIBLE, Choice, PartialPlan

MOST_SWEEPS = 20
MOST_STARTS = 2


class LocalSearch:
    """A non-series-parallel region and its join, as a step of a series."""

    def __init__(
        self, prices: LimitedCosts, region: NonSeriesParallel, fork: int, join: int, place: Locality, fits: Floats
    ) -> None:
        """Bounds every pair of GPU counts of the fork and the join.

        Args:
            prices: costs of the layers.
            region: layers before the join.
            fork: layer before them.
            join: layer after them.
            place: locality of the region's GPUs, relative to the fork's.
            fits: (K,) 0 where a GPU count fits into them, else inf.
        """
        self.prices, self.fork, self.place, self._fits = prices, fork, place, fits
        self.version = 0
        self.layers = (*region.layers, join)
        self._readers: dict[int, list[int]] = {layer: [] for layer in self.layers}
        for layer in self.layers:
            for source in prices.layers[layer].predecessors:
                if source in self._readers:
                    self._readers[source].append(layer)
        rows = 1 if fork == INPUT else len(fits)
        self.lower: Floats = self._bound(rows)
        self.guess: Floats = np.minimum.reduce([self._uniform(count, rows) for count in range(len(fits))])
        """(fork, join) seconds if all layers of the region share one count, the best one."""
        self.settled: dict[tuple[int, int], PartialPlan] = {}

    @property
    def passes(self) -> Floats:
        """(3, fork, join) zeros: there is no bound of a single pass."""
        return np.zeros((3, *self.lower.shape))

    def settle(self, before: int, after: int) -> PartialPlan:
        """Returns a good way, with its distance from the bound."""
        if (before, after) not in self.settled:
            self.settled[before, after] = found = self._settle(before, after)
            self.guess[before, after] = found.time
            self.version += 1
        return self.settled[before, after]

    def front(self, before: int, after: int, cap: float) -> list[PartialPlan]:
        """Returns the way that :meth:`settle` finds."""
        found = self.settle(before, after)
        return [found] if found.lower <= cap else []

    def _move(self, source: int, layer: int) -> Floats:
        place = self.place if source == self.fork else SAME_START
        return self.prices.move(source, layer, place)

    def _bound(self, rows: int) -> Floats:
        """Returns (fork, join) seconds of the shortest path with transfers from the fork and the layer before only."""
        time, previous = np.zeros((rows, 1)), None
        for layer in self.layers:
            sources = self.prices.layers[layer].predecessors
            first = self._move(self.fork, layer)[:, None, :] if self.fork in sources else 0.0
            near = self._move(previous, layer) if previous is not None and previous in sources else 0.0
            moved = np.broadcast_to(first + near, (rows, time.shape[1], len(self._fits)))
            step = np.where(moved <= self._room(layer), moved + self._own(layer), np.inf)
            time, previous = (time[:, :, None] + step).min(axis=1), layer
        return time

    def _uniform(self, count: int, rows: int) -> Floats:
        """Returns (fork, join) seconds with all layers of the region on one count; inf where that breaks the limit."""
        *inner, join = self.layers
        time = np.zeros((rows, 1))
        for layer in inner:
            moved = self._move(self.fork, layer)[:, count] if self.fork in self._sources(layer) else np.zeros(rows)
            step = np.where(moved <= self._room(layer)[count], moved + self._own(layer)[count], np.inf)
            time = time + step[:, None]
        moved = np.zeros((rows, len(self._fits)))
        for source in self._sources(join):
            moved = moved + (self._move(source, join) if source == self.fork else self._move(source, join)[count])
        uniform: Floats = time + np.where(moved <= self._room(join), moved + self._own(join), np.inf)
        return uniform

    def _settle(self, before: int, after: int) -> PartialPlan:
        *inner, join = self.layers
        best, best_time = None, np.inf
        uniform = [self._uniform(count, len(self.lower))[before, after] for count in range(len(self._fits))]
        for start in np.argsort(uniform)[:MOST_STARTS]:
            chosen = {self.fork: before, join: after, **dict.fromkeys(inner, int(start))}
            for _ in range(MOST_SWEEPS):
                if not sum(self._improve(layer, chosen) for layer in inner):
                    break
            time = sum(self._time(layer, chosen) for layer in self.layers)
            if time < best_time:
                best, best_time = chosen, time
        if best is None:
            return INFEASIBLE
        spent = {x: self._moved(x, best) * float(self.prices.spent_share[best[x]]) for x in self.layers}
        forward = sum(
            (self._moved(x, best) - spent[x]) / 2 + float(self.prices.forward[x, best[x]]) for x in self.layers
        )
        added = sum(spent[x] + float(self.prices.added[x, best[x]]) for x in self.layers)
        choices = tuple(Choice(layer, best[layer], 0) for layer in self.layers)
        return PartialPlan(best_time, forward, min(best_time, float(self.lower[before, after])), choices, added)

    def _improve(self, layer: int, chosen: dict[int, int]) -> bool:
        """Gives a layer the count that is best while all others stay; whether that changed anything."""
        moved = sum(
            (self._arriving(source, layer, chosen) for source in self._sources(layer)), np.zeros(len(self._fits))
        )
        time = np.where(moved <= self._room(layer), moved + self._own(layer), np.inf)
        for reader in self._readers[layer]:
            option = chosen[reader]
            leaving = self._move(layer, reader)[:, option]
            # In the order in which ``_moved`` adds up, since a limit may be kept to the last bit.
            there = sum(
                (
                    leaving if source == layer else self._arriving(source, reader, chosen)[option]
                    for source in self._sources(reader)
                ),
                np.zeros(len(self._fits)),
            )
            time = time + np.where(there <= self._room(reader)[option], leaving, np.inf)
        option = int(time.argmin())
        if not time[option] < time[chosen[layer]] * (1 - 1e-12):
            return False
        chosen[layer] = option
        return True

    def _sources(self, layer: int) -> tuple[int, ...]:
        return self.prices.layers[layer].predecessors

    def _own(self, layer: int) -> Floats:
        own: Floats = self.prices.own[layer] + self._fits
        return own

    def _room(self, layer: int) -> Floats:
        room: Floats = self.prices.room[layer]
        return room

    def _arriving(self, source: int, layer: int, chosen: dict[int, int]) -> Floats:
        arriving: Floats = self._move(source, layer)[chosen[source]]
        return arriving

    def _moved(self, layer: int, chosen: dict[int, int]) -> float:
        return sum(float(self._arriving(source, layer, chosen)[chosen[layer]]) for source in self._sources(layer))

    def _time(self, layer: int, chosen: dict[int, int]) -> float:
        """Returns the seconds of the region; inf over the limit."""
        moved, option = self._moved(layer, chosen), chosen[layer]
        return moved + float(self._own(layer)[option]) if moved <= self._room(layer)[option] else np.inf
