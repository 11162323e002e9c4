"""Partitions of GPUs among a block's branches: worked out by hand, and against all layouts there are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START
from deeppool.graph.series_parallel import ParallelBlock, Series
from deeppool.planning.search.gpu_partition import concurrent_branches, is_complete, partition_set
from tests.planning.search.test_search import Definition


def shapes(found):
    """Per partition the groups' (width, start, placement), independent of their branches."""
    return {tuple((lane.width, lane.start, lane.place) for lane in lanes) for lanes in found.arrangements}


def branches_of(found):
    """Per partition the groups' branches, in the groups' order."""
    return [tuple(lane.branches for lane in lanes) for lanes in found.arrangements]


# -- by hand ----------------------------------------------------------------------------------------


def test_two_branches_run_in_sequence_or_on_a_half_each():
    """Of 8 GPUs, 4 + 4 leaves nothing; 4 + 2, 2 + 2 and so on are less than that. Either branch may start at GPU 0."""
    found = partition_set(2, (1, 2, 4, 8), 8, 8)
    assert shapes(found) == {((8, 0, SAME_START),), ((4, 0, SAME_START), (4, 4, SAME_NODE))}
    assert branches_of(found) == [((0, 1),), ((0,), (1,)), ((1,), (0,))]


def test_groups_that_are_no_powers_of_two_come_in_pairs():
    """Of 7 GPUs: 6 + 1, 5 + 2, 4 + 3; of three groups only 4 + 2 + 1 leaves nothing, and 2 + 2 + 2 is not less."""
    counts = tuple(range(1, 8))
    assert shapes(partition_set(2, counts, 7, 8)) == {
        ((7, 0, SAME_START),),
        ((6, 0, SAME_START), (1, 6, SAME_NODE)),
        ((5, 0, SAME_START), (2, 5, SAME_NODE)),
        ((4, 0, SAME_START), (3, 4, SAME_NODE)),
    }
    three = {shape for shape in shapes(partition_set(3, counts, 7, 8)) if len(shape) == 3}
    assert three == {((4, 0, 0), (2, 4, 1), (1, 6, 1)), ((2, 0, 0), (2, 2, 1), (2, 4, 1))}


def test_a_group_is_within_a_node_or_starts_at_one():
    """8 GPUs in nodes of 3: 0-2, 3-5, 6-7.

    Four GPUs from 0 on leave 4-5 for two more, in another node; a second lane of four would have to start with
    a node and finds none. Two GPUs from 0 on leave GPU 2, which is near: that is less, but closer.
    """
    assert shapes(partition_set(2, (1, 2, 4, 8), 8, 3)) == {
        ((8, 0, SAME_START),),
        ((4, 0, SAME_START), (2, 4, CROSS_NODE)),
        ((2, 0, SAME_START), (1, 2, SAME_NODE)),
    }


def test_branches_are_grouped_in_every_way():
    """Three branches on 4 GPUs: one group, two groups of 2 (three pairs, each group first), 2 + 1 + 1 for all three."""
    found = branches_of(partition_set(3, (1, 2, 4), 4, 4))
    assert len(found) == len(set(found)) == 1 + 6 + 3
    assert found[0] == ((0, 1, 2),)
    pairs = {frozenset(groups) for groups in found if len(groups) == 2}
    assert pairs == {frozenset({(a,), tuple(sorted({0, 1, 2} - {a}))}) for a in range(3)}
    # Of the lanes of one GPU, both near, it does not matter which is whose.
    assert sorted(groups[0] for groups in found if len(groups) == 3) == [(0,), (1,), (2,)]


def test_five_branches_have_52_divisions_and_six_are_divided_evenly():
    groups = {frozenset(lanes) for lanes in branches_of(partition_set(5, (1, 2, 4, 8), 8, 8))}
    assert len(groups) == 52
    assert not is_complete(6)
    assert set(branches_of(partition_set(6, (1, 2, 4, 8), 8, 8))) == {
        (tuple(range(6)),),
        ((0, 2, 4), (1, 3, 5)),
        ((0, 4), (1, 5), (2,), (3,)),
    }


def test_one_gpu_is_not_divided():
    assert shapes(partition_set(3, (1,), 1, 8)) == {((1, 0, SAME_START),)}


def series(*layers):
    return Series(layers, (None,) * len(layers))


def test_branches_that_share_a_gpu_are_one_group():
    """Branches 0 and 2 meet on GPU 3 though they start apart; branch 1 is alone; branch 3 holds GPU 5 with 1."""
    block = ParallelBlock((series(0), series(1, 2), series(3), series(4)), direct=False)
    gpus = [(2, 3), (4,), (4, 5), (3,), (5,)]
    assert concurrent_branches(block, gpus) == [[0, 2], [1, 3]]
    assert concurrent_branches(block, [(0,), (1,), (1, 2), (3,), (4,)]) == [[0], [1], [2], [3]]
    assert concurrent_branches(block, [(0,), (1,), (1, 2), (3,), (0, 1, 2, 3)]) == [[0, 1, 2, 3]]


# -- against all layouts ----------------------------------------------------------------------------


def layouts(lanes, counts, width, node):
    """Yields every layout of a number of groups, widest first, each at its first fit."""
    definition = Definition.__new__(Definition)
    definition.cluster = type("Nodes", (), {"gpus_per_node": node})
    widths = [count for count in counts if count < width and (lanes == 2 or count & (count - 1) == 0)]
    for chosen in itertools.combinations_with_replacement(sorted(widths, reverse=True), lanes):
        starts = definition._laid_out(chosen, width)
        if starts is not None:
            places = [
                SAME_START if a == 0 else SAME_NODE if a + b <= node else CROSS_NODE
                for a, b in zip(starts, chosen, strict=True)
            ]
            yield tuple(zip(chosen, starts, places, strict=True))


def covers(shape, other):
    """Whether each group is at least as wide and as near."""
    return all(a[0] >= b[0] and a[2] <= b[2] for a, b in zip(shape, other, strict=True))


@pytest.mark.parametrize("which", ["powers", "all"])
@given(st.integers(2, 3), st.integers(2, 14), st.integers(1, 9))
def test_no_layout_is_left_out_but_for_a_wider_and_nearer_one(which, lanes, width, node):
    counts = tuple(c for c in range(1, width + 1) if which == "all" or c & (c - 1) == 0 or c == width)
    kept = {shape for shape in shapes(partition_set(lanes, counts, width, node)) if len(shape) == lanes}
    every = set(layouts(lanes, counts, width, node))
    assert kept <= every
    for shape in every:
        assert any(covers(other, shape) for other in kept), shape
    for shape, other in itertools.permutations(kept, 2):
        assert not covers(other, shape), "superfluous"
