"""The search as one recursion over labels, slow and simple: an oracle for graphs too large to try every assignment.

A label of a part of the model is (forward, backward, arriving, work): seconds of both passes without the transfers to
the join outside, seconds of these transfers, and GPU-seconds. Parts in sequence add their labels up. Side by side,

    forward = max, backward = max, arriving = sum, work = sum,

as the backward pass starts again at the join. Of labels between the same places those stay that no other one beats in
every number. Costs and the divisions of GPUs among branches come from ``Definition``, nothing from
``deeppool.planning.search``.
"""

import math
from collections import defaultdict
from functools import cache
from itertools import product

from deeppool.graph.series_parallel import INPUT

NOTHING = (0.0, 0.0, 0.0, 0.0)
DATA = (0, 0)
"""Place of the data."""
ROUNDING = 1e-9


class LabelReference:
    """Labels of every part of one model without irregular regions, under a limit on each layer or none."""

    def __init__(self, definition, limit=None, *, frontier=False):
        self.definition, self.limit, self.frontier = definition, math.inf if limit is None else limit, frontier
        self.series, self.block = cache(self.series), cache(self.block)

    def points(self):
        """(iteration time, GPU-seconds) of every efficient plan, the fastest first."""
        tree, gpus = self.definition.tree, self.definition.cluster.gpus
        ends = [
            self.sum_passes(label) for labels in self.series(tree, INPUT, DATA, 0, gpus).values() for label in labels
        ]
        return [(forward, work) for forward, _, _, work in sorted(self.efficient(ends))]

    def series(self, part, source, before, start, room):
        """Labels of a series on some GPUs, from its fork to each place of its last layer."""
        labels = {before: [NOTHING]}
        for block, layer in zip(part.blocks, part.layers, strict=True):
            after = {}
            for place in self.places(start, room):
                steps = [
                    self.sum_passes(added(label, step)) if part is self.definition.tree else added(label, step)
                    for earlier, known in labels.items()
                    for step in self.step(block, source, earlier, layer, place, start, room)
                    for label in known
                ]
                after[place] = self.efficient(steps)
            labels, source = after, layer
        return labels

    def step(self, block, source, before, layer, place, start, room):
        """Labels of a layer, with the block between it and the layer before."""
        definition, count = self.definition, place[0]
        computing, synced = definition.compute(layer, count), definition.synchronisation(layer, place)
        forward = definition.profile.time(layer, math.ceil(definition.batch / count)).forward
        direct = self.transfer(source, before, layer, place)
        most = self.limit * definition.compute(layer, 1) * (1 + ROUNDING)
        inside = [NOTHING] if block is None else self.block(block, source, before, layer, place, start, room)
        for ahead, back, arriving, work in inside:
            moved = arriving + direct
            total = moved + computing + synced
            if total * count <= most:
                yield (
                    ahead + moved / 2 + forward,
                    back + moved / 2 + computing - forward + synced,
                    0.0,
                    work + total * count,
                )

    def block(self, block, source, before, join, place, start, room):
        """Labels of all branches, in every division of the GPUs."""
        found = []
        for division in self.definition._divisions(block.branches, room):
            lanes = defaultdict(lambda: [NOTHING])
            for branch, (first, width) in zip(block.branches, division, strict=True):
                ways = self.branch(branch, source, before, join, place, start + first, width)
                lanes[first] = self.efficient([added(*pair) for pair in product(lanes[first], ways)])
            together = [NOTHING]
            for ways in lanes.values():
                together = self.efficient([beside(*pair) for pair in product(together, ways)])
            found += together
        return self.efficient(found)

    def branch(self, branch, source, before, join, place, start, room):
        """Labels of a branch, with the transfers of its results."""
        found = []
        last = branch.layers[-1]
        for end, labels in self.series(branch, source, before, start, room).items():
            arriving = (0.0, 0.0, self.transfer(last, end, join, place), 0.0)
            tails = [NOTHING]
            if branch.tail is not None:
                tails = self.block(branch.tail, last, end, join, place, start, room)
            found += [added(added(label, tail), arriving) for label, tail in product(labels, tails)]
        return self.efficient(found)

    def transfer(self, source, before, layer, place):
        """Seconds of one predecessor's samples and their gradients."""
        record = self.definition.layers[layer]
        if source not in record.predecessors:
            return 0.0
        size = record.input_bytes[record.predecessors.index(source)]
        return self.definition.communication(before, place, size)

    def places(self, start, room):
        return [(count, start) for count in self.definition._counts(room)]

    def sum_passes(self, label):
        """Where nothing runs beside a part, only the sum of its passes matters."""
        forward, backward, arriving, work = label
        return forward + backward, 0.0, arriving, work

    def efficient(self, labels):
        """The labels that no other one beats; GPU-seconds count for a frontier only."""
        numbers = 4 if self.frontier else 3
        kept = []
        for label in sorted(labels):
            if not any(all(a <= b for a, b in zip(other[1:numbers], label[1:numbers], strict=True)) for other in kept):
                kept.append(label)
        return kept


def added(first, second):
    """Labels of parts in sequence."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def beside(first, second):
    """Labels of parts that run at the same time."""
    forward, backward = (max(pair) for pair in zip(first[:2], second[:2], strict=True))
    return forward, backward, first[2] + second[2], first[3] + second[3]
