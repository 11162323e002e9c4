"""Search of regions between a fork and its join that are not series-parallel, as in DenseNet and NASNet.

The layers of a region run one after another, each on GPUs from the region's first one on, each on its own count. What a
layer takes depends on its count and those of the layers that it reads, so the least sum and the counts follow from
variable elimination (see ``elimination``). It is exact where few layers are read from afar. Elsewhere its tables would
grow too large and are divided, which makes the sum a lower bound; a local search then changes one layer at a time,
from the counts found and from the best ones that are equal for all layers, until nothing helps. A plan states how far
from its bound it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from deeppool.costs.communication import SAME_START, Locality
from deeppool.costs.table import Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel
from deeppool.planning.search.elimination import Elimination, Factor, added
from deeppool.planning.search.labels import INFEASIBLE, Choice, PartialPlan
from deeppool.planning.search.limited_costs import ROUNDING, LimitedCosts

MOST_SWEEPS = 20
MOST_STARTS = 2
MOST_ENTRIES, FEW_ENTRIES = 2**19, 2**15
"""Of a table of the elimination, and of one where a search is one of many at different prices."""

Options = Mapping[int, Any]
"""Index of each layer's GPU count; arrays of them, which are tried at once, must broadcast."""


class LocalSearch:
    """A non-series-parallel region and its join."""

    def __init__(
        self,
        prices: LimitedCosts,
        region: NonSeriesParallel,
        fork: int,
        join: int,
        place: Locality,
        fits: Floats,
        most_entries: int,
    ) -> None:
        """Bounds every pair of GPU counts of the fork and the join.

        Args:
            prices: costs of the layers.
            region: layers before the join.
            fork: layer before them.
            join: layer after them.
            place: locality of the region's GPUs, relative to the fork's.
            fits: (K,) 0 where a GPU count fits into them, else inf.
            most_entries: of a table of the elimination.
        """
        self.prices, self.fork, self.place, self.fits = prices, fork, place, fits
        self.layers = (*region.layers, join)
        readers = {x: [y for y in self.layers if x in prices.layers[y].predecessors] for x in region.layers}
        self._changing = {layer: (layer, *read) for layer, read in readers.items()}
        """Per layer those that take another time where it has other GPUs: itself, and what reads it."""
        before, self._options = np.arange(1 if fork == INPUT else len(fits))[:, None], np.arange(len(fits))
        sizes = {fork: len(before), **dict.fromkeys(self.layers, len(fits))}
        self._elimination = Elimination(self._factors(most_entries), sizes, (fork, join), most_entries)
        self.lower: Floats = self._elimination.least
        """(fork, join) seconds that no plan can beat."""
        shape = self.lower.shape
        self._uniform: Floats = np.stack(
            [
                np.broadcast_to(
                    self._time({**dict.fromkeys(region.layers, k), fork: before, join: self._options}, self.layers),
                    shape,
                )
                for k in range(len(fits))
            ]
        )
        """(count, fork, join) seconds if all layers of the region share one count; inf where that breaks the limit."""
        self.guess: Floats = self.lower if self._elimination.exact else self._uniform.min(axis=0)
        """(fork, join) seconds of the best way known."""

    def least_of(self, number: int) -> Floats:
        """Returns (fork, join) zeros: there is no bound of a single number of labels."""
        return np.zeros(self.lower.shape)

    def settle(self, before: int, after: int) -> tuple[PartialPlan, float]:
        """Returns a good way, and the seconds that none can beat."""
        *inner, join = self.layers
        prices, lower, ends = self.prices, float(self.lower[before, after]), {self.fork: before, join: after}
        best = self._elimination.best(ends)
        if self._seconds(best) > lower * (1 + ROUNDING):
            counts = np.argsort(self._uniform[:, before, after])[:MOST_STARTS].tolist()
            starts = [best, *({**ends, **dict.fromkeys(inner, count)} for count in counts)]
            best = min(map(self._improved, starts), key=self._seconds)
        least = self._seconds(best)
        if np.isinf(least):
            return INFEASIBLE, lower
        moved = {layer: float(self._moved(layer, best)) for layer in self.layers}
        spent = {layer: moved[layer] * float(prices.spent_share[best[layer]]) for layer in self.layers}
        forward = sum((moved[x] - spent[x]) / 2 + float(prices.forward[x, best[x]]) for x in self.layers)
        added = sum(spent[x] + float(prices.added[x, best[x]]) for x in self.layers)
        choices = tuple(Choice(layer, best[layer], 0) for layer in self.layers)
        found = PartialPlan(forward, least - forward - added, added, choices)
        return found, min(found.time, lower)

    def _factors(self, most_entries: int) -> Iterator[Factor]:
        """Yields what the layers take, by their counts and those of what they read.

        Of a layer that reads many others, the limit counts each transfer by itself: a table of all would be too large.
        """
        room, count = self.prices.room, len(self.fits)
        for layer in self.layers:
            own = self.prices.own[layer] + np.where(room[layer] >= 0, self.fits, np.inf)
            yield Factor((layer,), own)
            sources = sorted(self.prices.layers[layer].predecessors)
            moves = [Factor((source, layer), self.move(source, layer)) for source in sources]
            if len(moves) > 1 and not np.isinf(room[layer]).all() and count ** (len(moves) + 1) <= most_entries:
                moves = [added(moves)]
            for moved in moves:
                yield Factor(moved.variables, np.where(moved.table <= room[layer], moved.table, np.inf))

    def _seconds(self, chosen: Mapping[int, int]) -> float:
        return float(self._time(chosen, self.layers))

    def _improved(self, chosen: Mapping[int, int]) -> dict[int, int]:
        """Changes one layer at a time to the count that is best while all others stay, until nothing helps."""
        found = dict(chosen)
        for _ in range(MOST_SWEEPS):
            before = dict(found)
            for layer in self.layers[:-1]:
                times = self._time({**found, layer: self._options}, self._changing[layer])
                if times.min() < times[found[layer]] * (1 - ROUNDING):
                    found[layer] = int(times.argmin())
            if found == before:
                break
        return found

    def _time(self, chosen: Options, layers: Iterable[int]) -> Floats:
        """Returns the seconds of some layers; inf over the limit."""
        total: Floats = np.zeros(())
        for layer in layers:
            moved, option = self._moved(layer, chosen), chosen[layer]
            own = self.prices.own[layer, option] + self.fits[option]
            total = total + np.where(moved <= self.prices.room[layer, option], moved + own, np.inf)
        return total

    def _moved(self, layer: int, chosen: Options) -> Floats:
        moved: Floats = np.zeros(())
        for source in self.prices.layers[layer].predecessors:
            moved = moved + self.move(source, layer)[chosen[source], chosen[layer]]
        return moved

    def move(self, source: int, layer: int) -> Floats:
        """Returns (from, to) prices of moving the results of a layer, or of the fork, to a layer that reads them."""
        return self.prices.move(source, layer, self.place if source == self.fork else SAME_START)
