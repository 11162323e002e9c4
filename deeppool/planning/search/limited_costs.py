"""What the search asks of a cost table under one limit."""

from collections.abc import Iterable

import numpy as np

from deeppool.costs.amplification import time_allowance
from deeppool.costs.communication import SAME_START, Locality
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT

ROUNDING = 1e-12
"""Relative: sums of the same seconds in another order."""


class LimitedCosts:
    """Seconds of layers and transfers, and what the limit permits."""

    def __init__(
        self, costs: CostTable, limit: float | None, extra: Floats | None = None, transfers: float = 1.0
    ) -> None:
        """Takes the limit on each layer's amplification, and what counts beside it.

        Args:
            costs: seconds.
            limit: None: no limit.
            extra: (L, K) seconds to add to each layer, which the limit does not count.
            transfers: what a second of transfers counts; it decides nothing about what the limit permits.
        """
        self.costs = costs
        self.layers = costs.graph.layers
        self.gpu_counts = costs.gpu_counts
        self.forward = costs.forward
        own = costs.compute + costs.sync
        counts = np.array(costs.gpu_counts, dtype=float)
        allowed = time_allowance(np.inf if limit is None else limit, counts, costs.compute[:, :1])
        self.room: Floats = transfers * (allowed - own)
        """(L, K) seconds that the limit leaves for transfers into a layer; negative where it leaves none."""
        self.own: Floats = own if extra is None else own + extra
        """(L, K) seconds of a layer without transfers."""
        self._transfers = transfers
        self._moves: dict[tuple[int, Locality], Floats] = {}
        self._edges: dict[object, tuple[Floats, Floats]] = {}
        kinds: dict[object, int] = {}
        added = [b""] * len(self.layers) if extra is None else [row.tobytes() for row in extra]
        self._kinds = [
            kinds.setdefault((layer.signature, layer.parameter_bytes, layer.input_bytes, more), len(kinds))
            for layer, more in zip(self.layers, added, strict=True)
        ]
        self._shapes = [
            (kind, *(index - source for source in layer.predecessors))
            for index, (kind, layer) in enumerate(zip(self._kinds, self.layers, strict=True))
        ]

    def move(self, source: int, layer: int, place: Locality = SAME_START) -> Floats:
        """(from, to) seconds to bring one predecessor's samples to a layer; (1, to) zeros for data."""
        if source == INPUT:
            return np.zeros((1, len(self.gpu_counts)))
        consumer = self.layers[layer]
        key = consumer.input_bytes[consumer.predecessors.index(source)], place
        if key not in self._moves:
            self._moves[key] = self._transfers * self.costs.comm(*key)
        return self._moves[key]

    def edge(self, source: int, layer: int, place: Locality) -> tuple[Floats, Floats]:
        """(from, to) seconds of a transfer and the layer after it, inf over the limit; and of their forward pass."""
        key = (
            self._kinds[layer],
            layer - source if source == INPUT else self.layers[layer].predecessors.index(source),
            place,
        )
        if key not in self._edges:
            moved = self.move(source, layer, place)
            time = np.where(moved <= self.room[layer], moved + self.own[layer], np.inf)
            self._edges[key] = time, moved / 2 + self.forward[layer]
        return self._edges[key]

    def shape(self, layers: Iterable[int]) -> tuple[object, ...]:
        """Equal for layers of equal prices that read one another alike, wherever in the graph they are."""
        found = list(layers)
        first = found[0]
        return tuple((layer - first, self._shapes[layer]) for layer in found)
