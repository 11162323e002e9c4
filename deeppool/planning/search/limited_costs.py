"""Costs of layers and transfers for a search under one limit, with edges over the limit left out."""

from collections.abc import Sequence

import numpy as np

from deeppool.costs.amplification import time_allowance
from deeppool.costs.communication import SAME_START, Locality
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT

ROUNDING = 1e-12
"""Relative difference between sums of the same seconds in another order."""


class LimitedCosts:
    """Seconds of layers and transfers, inf where the limit forbids them."""

    def __init__(
        self,
        costs: CostTable,
        limit: float | None,
        extra: Floats | None = None,
        *,
        least_room: Floats | None = None,
        time_price: float = 1.0,
        work_price: float = 0.0,
        update_price: float = 0.0,
    ) -> None:
        """Applies a limit on each layer's amplification to a cost table.

        Args:
            costs: seconds.
            limit: None: no limit.
            extra: (L, K) seconds to add to each layer, which the limit does not count.
            least_room: (L, K) or (L, 1) price that is permitted for transfers into a layer, whatever the limit leaves.
            time_price: price of a second of layers and transfers.
            work_price: price of a GPU-second of layers, transfers and updates; of all-reduces too, unless they overlap.
            update_price: price of a GPU-second of updates, in addition to ``work_price``.
        """
        self.costs, self.layers, self.gpu_counts = costs, costs.graph.layers, costs.gpu_counts
        counts = np.array(costs.gpu_counts, dtype=float)
        self.work_price = work_price
        self.weight: Floats = time_price + work_price * counts
        """(K,) price of a second of transfers into a layer, by its GPU count."""
        self.spent_share: Floats = 1 - time_price / self.weight if work_price else np.zeros(len(counts))
        """(K,) share of that price that is for GPU-seconds."""
        allowed = time_allowance(np.inf if limit is None else limit, counts, costs.compute[:, :1])
        self.room: Floats = self.weight * (allowed - (costs.compute + costs.sync))
        """(L, K) price that the limit leaves for transfers into a layer; negative if it leaves none."""
        if least_room is not None:
            self.room = np.maximum(self.room, least_room)
        self.priced = work_price > 0 or (update_price > 0 and bool(costs.update.any()))
        """Whether GPU-seconds have a price."""
        self._price_layers(time_price, update_price, extra)
        self._moves: dict[tuple[int, Locality], Floats] = {}
        self._edges: dict[object, tuple[Floats, Floats, Floats]] = {}
        given = [values for values in (extra, least_room) if values is not None]
        self._kinds = self._kinds_of(costs.update, np.hstack(given) if given else None)
        readings = [tuple(index - source for source in x.predecessors) for index, x in enumerate(self.layers)]
        self._shapes = [(kind, *reads) for kind, reads in zip(self._kinds, readings, strict=True)]

    def _price_layers(self, time_price: float, update_price: float, extra: Floats | None) -> None:
        costs = self.costs
        own, update = costs.compute + costs.sync, costs.update[:, None]
        spent = self.work_price * (costs.compute + update if costs.overlap else own) + update_price * update
        self.forward: Floats = costs.forward * time_price
        """(L, K) price of the seconds of a forward pass."""
        self.added: Floats = np.array(costs.gpu_counts, dtype=float) * spent
        """(L, K) price of a layer's GPU-seconds, which adds up over branches that run side by side."""
        self.own: Floats = time_price * own + self.added + (0.0 if extra is None else extra)
        """(L, K) price of a layer without transfers: seconds and GPU-seconds."""

    def _kinds_of(self, updates: Floats, given: Floats | None) -> list[int]:
        """Returns per layer a number that layers of equal costs share."""
        kinds: dict[object, int] = {}
        added = [b""] * len(self.layers) if given is None else [row.tobytes() for row in given]
        return [
            kinds.setdefault((layer.signature, size, update, layer.input_bytes, more), len(kinds))
            for layer, size, update, more in zip(
                self.layers, self.costs.graph.gradient_bytes, updates.tolist(), added, strict=True
            )
        ]

    def move(self, source: int, layer: int, place: Locality = SAME_START) -> Floats:
        """Returns (from, to) prices of moving one predecessor's samples to a layer; (1, to) zeros for data."""
        if source == INPUT:
            return np.zeros((1, len(self.gpu_counts)))
        consumer = self.layers[layer]
        key = consumer.input_bytes[consumer.predecessors.index(source)], place
        if key not in self._moves:
            self._moves[key] = self.weight * self.costs.comm(*key)
        return self._moves[key]

    def edge(self, source: int, layer: int, place: Locality) -> tuple[Floats, Floats, Floats]:
        """Returns (from, to) prices of a transfer and its layer, inf over the limit.

        Also the seconds of their forward pass, and the price of their GPU-seconds.
        """
        key = (
            self._kinds[layer],
            layer - source if source == INPUT else self.layers[layer].predecessors.index(source),
            place,
        )
        if key not in self._edges:
            moved = self.move(source, layer, place)
            time = np.where(moved <= self.room[layer], moved + self.own[layer], np.inf)
            spent = self.spent(moved)
            added = spent + self.added[layer] if self.priced else spent
            self._edges[key] = time, (moved - spent) / 2 + self.forward[layer], added
        return self._edges[key]

    def spent(self, moved: Floats) -> Floats:
        """Returns the part of the (…, to) prices of transfers that is for GPU-seconds."""
        return np.where(np.isfinite(moved), moved, 0.0) * self.spent_share

    def shape(self, layers: Sequence[int]) -> tuple[object, ...]:
        """Returns a key that is equal for layers of equal costs and equal edges, wherever in the graph they are."""
        return tuple((layer - layers[0], self._shapes[layer]) for layer in layers)
