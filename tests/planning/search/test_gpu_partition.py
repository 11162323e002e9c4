"""Partitions of GPUs among a block's branches: worked out by hand, and against all layouts there are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.costs.communication import CROSS_NODE, SAME_NODE, SAME_START
from deeppool.planning.search import gpu_partition
from deeppool.planning.search.gpu_partition import partition_set
from tests.sampling import examples


def shapes(found):
    """Per partition to try the groups' (width, start, placement), independent of their branches."""
    return {tuple((lane.width, lane.start, lane.place) for lane in lanes) for lanes in tried(found)}


def tried(found):
    return found.arrangements[: found.tried]


def branches_of(found):
    """Per partition the groups' branches, in the groups' order."""
    return [tuple(lane.branches for lane in lanes) for lanes in tried(found)]


# -- by hand ----------------------------------------------------------------------------------------


def test_two_branches_run_in_sequence_or_on_a_half_each():
    """Of 8 GPUs, 4 + 4 leaves nothing; 4 + 2, 2 + 2 and so on are less than that. Either branch may start at GPU 0."""
    found = partition_set(2, (1, 2, 4, 8), 8, 8)
    assert shapes(found) == {((8, 0, SAME_START),), ((4, 0, SAME_START), (4, 4, SAME_NODE))}
    assert branches_of(found) == [((0, 1),), ((0,), (1,)), ((1,), (0,))]


def test_groups_may_have_any_width_and_the_narrow_ones_may_be_first():
    """Of 7 GPUs: 6 + 1, 5 + 2, 4 + 3; of three groups 5 + 1 + 1, 4 + 2 + 1, 3 + 3 + 1 and 3 + 2 + 2 leave nothing."""
    found = partition_set(3, tuple(range(1, 8)), 7, 8)
    assert found.complete
    widths = {tuple(sorted(width for width, *_ in shape)) for shape in shapes(found)}
    assert widths == {(7,), (1, 6), (2, 5), (3, 4), (1, 1, 5), (1, 2, 4), (1, 3, 3), (2, 2, 3)}
    assert {shape[0] for shape in shapes(found) if len(shape) == 3} == {(width, 0, SAME_START) for width in range(1, 6)}


def test_a_group_stands_elsewhere_on_as_many_gpus_or_on_the_most_that_there_are():
    """16 GPUs in nodes of 8: behind GPU 0 a group has up to 7 of the first node, or up to 8 of the other one."""
    found = partition_set(2, tuple(range(1, 17)), 16, 8)

    def widths(place):
        slots = zip(found.lanes, found.slots_at(place), strict=True)
        return {found.slots[own][0]: found.slots[other] for (_, own), other in slots}

    assert widths(SAME_NODE) == {width: (min(width, 7), SAME_NODE) for width in range(1, 17)}
    assert widths(CROSS_NODE) == {width: (min(width, 8), CROSS_NODE) for width in range(1, 17)}


def test_a_group_is_within_a_node_or_starts_at_one():
    """8 GPUs in nodes of 3: 0-2, 3-5, 6-7.

    Four GPUs from 0 on leave 4-5 for two more, in another node; a second lane of four would have to start with
    a node and finds none. Two GPUs from 0 on leave GPU 2, which is near: that is less, but closer.
    """
    assert shapes(partition_set(2, (1, 2, 4, 8), 8, 3)) == {
        ((8, 0, SAME_START),),
        ((4, 0, SAME_START), (2, 4, CROSS_NODE)),
        ((2, 0, SAME_START), (4, 3, CROSS_NODE)),
        ((2, 0, SAME_START), (1, 2, SAME_NODE)),
        ((1, 0, SAME_START), (2, 1, SAME_NODE)),
    }


def test_branches_are_grouped_in_every_way():
    """Three branches on 4 GPUs: one group, two groups of 2 (three pairs, each group first), 2 + 1 + 1 for all three.

    Of these either the one on two GPUs is first, or one of the others.
    """
    found = branches_of(partition_set(3, (1, 2, 4), 4, 4))
    assert len(found) == 1 + 6 + 3 + 6
    assert found[0] == ((0, 1, 2),)
    pairs = {frozenset(groups) for groups in found if len(groups) == 2}
    assert pairs == {frozenset({(a,), tuple(sorted({0, 1, 2} - {a}))}) for a in range(3)}


def test_five_branches_have_52_divisions_and_six_are_divided_evenly():
    groups = {frozenset(lanes) for lanes in branches_of(partition_set(5, (1, 2, 4, 8), 8, 8))}
    assert len(groups) == 52
    six = partition_set(6, (1, 2, 4, 8), 8, 8)
    assert not six.complete
    assert set(branches_of(six)) == {
        (tuple(range(6)),),
        ((0, 2, 4), (1, 3, 5)),
        ((0, 3), (1, 4), (2, 5)),
        ((0, 4), (1, 5), (2,), (3,)),
        ((0, 5), (1,), (2,), (3,), (4,)),
        ((0,), (1,), (2,), (3,), (4,), (5,)),
    }


def test_too_many_partitions_are_limited_to_powers_of_two():
    every = tuple(range(1, 65))
    assert not partition_set(4, every, 64, 8).complete
    assert partition_set(2, every, 64, 8).complete
    assert partition_set(5, (1, 2, 4, 8, 16, 32, 64), 64, 8).complete


def test_one_gpu_is_not_divided():
    assert shapes(partition_set(3, (1,), 1, 8)) == {((1, 0, SAME_START),)}


# -- against all layouts ----------------------------------------------------------------------------


def layouts(lanes, counts, room, node):
    """Yields the groups of every layout, as (width, locality): any widths on any GPUs, in any order."""
    spans = [
        (first, first + width)
        for width in counts
        for first in range(room - width + 1)
        if (first // node == (first + width - 1) // node if width <= node else first % node == 0)
    ]
    for chosen in itertools.combinations(sorted(spans), lanes):
        if all(a[1] <= b[0] for a, b in itertools.pairwise(chosen)):
            yield tuple(
                sorted(
                    (end - first, SAME_START if first == 0 else SAME_NODE if end <= node else CROSS_NODE)
                    for first, end in chosen
                )
            )


def covers(groups, others):
    """Whether each of the others can be replaced by a group as wide, and on GPUs that are no slower to reach."""
    faster = {(SAME_START, SAME_NODE), (SAME_START, CROSS_NODE), (SAME_NODE, CROSS_NODE)}
    return any(
        all(
            wide >= width and (place == other or (place, other) in faster)
            for (wide, place), (width, other) in zip(order, others, strict=True)
        )
        for order in itertools.permutations(groups)
    )


@pytest.mark.parametrize("which", ["powers", "all"])
@examples(400)
@given(st.integers(2, 4), st.integers(2, 9), st.integers(1, 9))
def test_no_layout_is_left_out_but_for_a_wider_and_nearer_one(which, lanes, room, node):
    counts = tuple(c for c in range(1, room + 1) if which == "all" or c & (c - 1) == 0 or c == room)
    found = partition_set(lanes, counts, room, node)
    assert found.complete
    kept = {tuple(sorted((w, place) for w, _, place in shape)) for shape in shapes(found) if len(shape) == lanes}
    every = set(layouts(lanes, [c for c in counts if c < room], room, node))
    assert kept <= every
    for groups in every:
        assert any(covers(other, groups) for other in kept), groups
    for groups, other in itertools.permutations(kept, 2):
        assert not covers(other, groups), "superfluous"


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, False])
@examples(400)
@given(st.integers(2, 3), st.integers(3, 9), st.integers(1, 9), st.data())
def test_any_layout_that_is_not_tried_is_bounded_by_a_wider_one(few, lanes, room, node, data):
    """Branches that fork again may have groups of any width; others too where only powers of two are tried."""
    counts = tuple(range(1, room)) if few else tuple(2**power for power in range(4) if 2**power < room)
    forking = frozenset() if few else data.draw(st.frozensets(st.integers(0, lanes - 1), min_size=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_partition, "MOST_PARTITIONS", 0 if few else 1000)
        found = partition_set.__wrapped__(lanes, counts, room, node, forking)
    alone = [row for row in found.arrangements if len(row) == lanes]
    rows = [[(group.width, group.place) for group in sorted(row, key=lambda group: group.branches)] for row in alone]
    for layout in layouts(lanes, range(1, room), room, node):
        for order in itertools.permutations(layout):
            if all(width in counts or branch in forking for branch, (width, _) in enumerate(order)):
                assert any(is_bounded(order, row) for row in rows), order


def is_bounded(groups, wider):
    """Whether each branch has a group as wide, no slower to reach."""
    return all(covers([one], [other]) for one, other in zip(wider, groups, strict=True))
