r"""Labels of the steps of a model: seconds and GPU-seconds that no way between two GPU counts can beat.

A layer alone has one label between each two counts. The ways through a block are as many as its partitions and the
GPU counts inside; where all of them are few, they are its labels. Else searches at several prices of a GPU-second tell
of every pair of counts what no way takes less than, in

    L(price) = seconds + price x GPU-seconds,

so each price is a line below which there is no way, and all prices are a polygon:

    seconds
      |  \ .            . a way through the block
      |   \    .        \_ lines of three prices: the ways lie above all of them
      |    \_ .
      |       \___.___
      +------------------ GPU-seconds

Its vertices, and points between them where they are far apart, are the labels. Let a plan take T seconds and W
GPU-seconds, and let each of its blocks slide along its polygon, so that their seconds are least within the W
GPU-seconds: at most one of them then ends between two labels, as in the linear relaxation of a knapsack. With the one
of fewer GPU-seconds in its place the sum has at most W, and its seconds are above T by at most those between two
labels, which are at most a gap times T: so sums of labels, divided by 1 + gap, bound every plan.
"""

from dataclasses import dataclass

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.label_sums import StepLabels
from deeppool.planning.search.pareto import Integers

NEAR = 0.999
"""Part of a gap that is used, the rest is for what rounding adds up to."""
ROUNDING = 1e-9
"""Relative distance in seconds up to which two vertices of a polygon are one."""


def layer_heights(labels: StepLabels, prices: Floats, counts: int) -> Floats:
    """Returns (price, before, after) seconds + price x GPU-seconds of a layer alone; at the last one GPU-seconds."""
    heights = np.full((len(prices), int(labels.before.max()) + 1, counts), np.inf)
    heights[:-1, labels.before, labels.after] = labels.values[0] + prices[:-1, None] * labels.values[1]
    heights[-1, labels.before, labels.after] = labels.values[1]
    return heights


@dataclass(frozen=True, slots=True, eq=False)
class Polygons:
    """Polygons of a block, one between each two GPU counts."""

    prices: Floats
    """Prices, ascending from 0."""
    heights: Floats
    """(price, polygon) seconds + price x GPU-seconds that no way can beat."""
    least_work: Floats
    """Per polygon, GPU-seconds that no way falls below."""

    def time(self, polygon: Integers, work: Floats) -> Floats:
        """Returns (price, point) seconds of each line at some GPU-seconds."""
        lines: Floats = self.heights[:, polygon] - self.prices[:, None] * work
        return lines

    def work(self, polygon: Integers, time: Floats) -> Floats:
        """Returns the least GPU-seconds within some seconds, no fewer than those of the fastest way."""
        least = (self.heights[1:, polygon] - time) / self.prices[1:, None]
        found: Floats = np.maximum(least.max(axis=0), self.least_work[polygon])
        return found

    def vertices(self) -> tuple[Integers, Floats]:
        """Returns the vertices, by their polygon and seconds: where, from the first line on, another one crosses it."""
        polygon, line = np.arange(self.heights.shape[1]), np.zeros(self.heights.shape[1], dtype=np.intp)
        polygons, times = [], []
        while len(polygon):
            own, price = self.heights[line, polygon], self.prices[line]
            steeper = self.prices[:, None] > price
            difference = np.where(steeper, self.prices[:, None] - price, 1.0)
            crossing = np.where(steeper, (self.heights[:, polygon] - own) / difference, -np.inf)
            work = np.maximum(crossing.max(axis=0), self.least_work[polygon])
            polygons.append(polygon)
            times.append(own - price * work)
            going_on = np.nonzero(work > self.least_work[polygon])[0]
            polygon, line = polygon[going_on], crossing.argmax(axis=0)[going_on]
        return np.concatenate(polygons), np.concatenate(times)


def vertex_labels(prices: Floats, heights: Floats) -> StepLabels:
    """Returns the vertices of a block's polygons, by GPU counts before and after and by seconds.

    Args:
        prices: ascending from 0, the last one infinite.
        heights: (price, before, after) seconds + price x GPU-seconds that no way can beat; the last GPU-seconds alone.
    """
    before, after = np.nonzero(np.isfinite(heights[0]))
    polygons = Polygons(prices[:-1], heights[:-1, before, after], np.maximum(heights[-1, before, after], 0.0))
    polygon, time = polygons.vertices()
    order = np.lexsort((time, polygon))
    polygon, time = polygon[order], time[order]
    apart = (np.diff(polygon, prepend=-1) > 0) | (np.diff(time, prepend=0) > ROUNDING * time)
    polygon, time = polygon[apart], time[apart]
    work = polygons.work(polygon, time)
    lines = polygons.time(polygon, work)[1:]
    # Of the lines that meet at a vertex the one of the lowest price.
    price = (lines > lines.max(axis=0) * (1 - ROUNDING)).argmax(axis=0) + 1
    return StepLabels(before[polygon], after[polygon], np.stack([time, work]), price=price)


def with_points_between(vertices: StepLabels, wanted: Integers, fastest: float, gap: float) -> StepLabels:
    """Returns some vertices and those next to them, with points between them that are as near as the module says.

    Args:
        vertices: by polygon and seconds.
        wanted: rows of the vertices.
        fastest: seconds that no plan of the whole model can beat.
        gap: most seconds between two labels, as a share of those of the fastest plan through the slower one.
    """
    same = (np.diff(vertices.before) == 0) & (np.diff(vertices.after) == 0)
    chosen = np.zeros(len(vertices.before), dtype=bool)
    chosen[wanted] = True
    edges = np.nonzero(same & (chosen[:-1] | chosen[1:]))[0]
    # No plan through a label takes less than the fastest one, and what the label takes above the first of its polygon.
    starts = np.nonzero(np.concatenate([[True], ~same]))[0]
    first = vertices.values[0, starts[np.searchsorted(starts, edges, side="right") - 1]]
    faster, slower = (fastest + vertices.values[0, rows] - first for rows in (edges, edges + 1))
    parts = np.ceil(np.log(slower / faster) / np.log1p(NEAR * gap)).astype(np.intp)
    inner = np.maximum(parts - 1, 0)
    edge = np.repeat(edges, inner)
    number = np.arange(len(edge)) - np.repeat(np.cumsum(inner) - inner, inner) + 1
    share = number / np.repeat(parts, inner)
    start, end = np.repeat(faster, inner), np.repeat(slower, inner)
    # Seconds grow by one ratio from each point to the next.
    along = start * ((end / start) ** share - 1) / (end - start)
    between = vertices.values[:, edge] + along * (vertices.values[:, edge + 1] - vertices.values[:, edge])
    rows = np.union1d(np.union1d(edges, edges + 1), wanted)
    ends = np.concatenate([rows, edge])
    assert vertices.price is not None
    return StepLabels(
        vertices.before[ends],
        vertices.after[ends],
        np.concatenate([vertices.values[:, rows], between], axis=1),
        price=vertices.price[np.concatenate([rows, edge + 1])],
    )
