"""Shortest paths through steps whose cost shows only when they are evaluated, by hand."""

import numpy as np
import pytest

from deeppool.planning.search.label_sums import StepLabels
from deeppool.planning.search.labels import Choice, PartialPlan, plan_of
from deeppool.planning.search.shortest_path import Budget, ExhaustedError, PathTable

ANY_WIDTH = np.zeros((1, 1, 2))
"""One set of GPUs, into which both counts fit."""


class KnownStep:
    """A step to one layer with two GPU counts: what no way beats, and the ways, which an evaluation finds."""

    exact = True

    def __init__(self, layer, lower, ways):
        """Takes (before, after) seconds, and per pair the (forward, backward) of each way."""
        self.layer, self.ways = layer, ways
        self.lower = self.guess = np.array([lower])
        self.version, self.evaluated = 0, []

    def settle(self, slot, before, after):
        self.evaluated.append((before, after))
        forward, backward = min(self.ways[before, after], key=sum)
        if forward + backward > self.lower[slot, before, after]:
            self.lower[slot, before, after] = forward + backward
            self.version += 1
        return PartialPlan(forward, backward, 0.0, (Choice(self.layer, after, 0),))

    def labels(self, slot, caps, budget):
        rows = [
            (before, after, *way, 0.0)
            for (before, after), ways in self.ways.items()
            for way in ways
            if before < len(caps) and sum(way) <= caps[before, after]
        ]
        before, after, *values = np.array(rows).T
        plans = [(Choice(self.layer, int(option), 0),) for option in after]
        return StepLabels(before.astype(int), after.astype(int), np.array(values), plans)


def two_steps():
    """The first layer takes 2 s on count 0, 1 s on count 1; the way from count 1 looks fast and is not."""
    first = KnownStep(0, [[2.0, 1.0]], {(0, 0): [(1.0, 1.0)], (0, 1): [(0.5, 0.5)]})
    second = KnownStep(
        1,
        [[2.0, 9.0], [1.0, 9.0]],
        {(0, 0): [(1.0, 1.0), (0.5, 2.0)], (1, 0): [(3.0, 4.0)], (0, 1): [(9, 0)], (1, 1): [(9, 0)]},
    )
    return first, second


def test_a_path_whose_step_turns_out_longer_gives_way_to_the_next_one():
    """1 + 1 s over count 1 is the shortest at first; evaluated it takes 1 + 7 s, so 2 + 2 s over count 0 is."""
    first, second = two_steps()
    paths = PathTable([(first, 0), (second, 0)], ANY_WIDTH, Budget(100))
    assert paths.guess[0, 0, 0] == 2.0
    found = paths.settle(0, 0, 0)
    assert found.time == 4.0
    assert plan_of(found.parts) == ((0, 0), (0, 0))
    assert paths.lower[0, 0, 0] == 4.0
    assert second.evaluated == [(1, 0), (0, 0)], "nothing off the shortest paths is evaluated"


def test_a_count_that_does_not_fit_is_not_used():
    first, second = two_steps()
    paths = PathTable([(first, 0), (second, 0)], np.array([[[0.0, np.inf]]]), Budget(100))
    assert paths.settle(0, 0, 0).time == 4.0
    assert paths.settle(0, 0, 1).time == np.inf
    assert second.evaluated == [(0, 0)]


def test_all_ways_that_trade_forward_for_backward_are_labels():
    """(1 + 1, 1 + 1) and (1 + 0.5, 1 + 2) beat no other one; the ways over count 1 are over the cap of 5 s."""
    first, second = two_steps()
    found = PathTable([(first, 0), (second, 0)], ANY_WIDTH, Budget(100)).labels(0, 0, 0, 5.0)
    assert sorted(map(tuple, found.values[:2].T.tolist())) == [(1.5, 3.0), (2.0, 2.0)]


def test_labels_of_more_pairs_than_the_budget_are_given_up():
    first, second = two_steps()
    with pytest.raises(ExhaustedError):
        PathTable([(first, 0), (second, 0)], ANY_WIDTH, Budget(2)).labels(0, 0, 0, 5.0)
