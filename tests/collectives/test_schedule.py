"""Schedules by symbolic simulation: sums, freedom from deadlocks, the numbers of rounds and bytes of each pattern."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.patterns.broadcast_tree import broadcast_tree
from deeppool.collectives.patterns.hierarchical import hierarchical
from deeppool.collectives.schedule import Schedule, Transfer, schedule_of
from deeppool.collectives.simulate import check_all_reduce, check_rounds, own_contributions, simulate
from deeppool.errors import InvalidValueError
from tests.sampling import STRESS

COUNTS = range(1, 17)


def all_reduces(ranks: int) -> list[Schedule]:
    others = [make(ranks, 1) for make in ALL_REDUCES.values()]
    return others + [found for node in (2, 3, 4) if (found := hierarchical(ranks, node)).pattern == "hierarchical"]


def chunks_sent(schedule: Schedule) -> Counter:
    """Parts of the buffer that each rank sends."""
    sent = Counter()
    for step in schedule.steps:
        if step.kind == "send":
            sent[step.rank] += Fraction(step.stop - step.start, schedule.chunks)
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("ranks", COUNTS)
def test_every_rank_ends_with_each_contribution_once(ranks):
    for schedule in all_reduces(ranks):
        check_all_reduce(schedule, orders=50 if STRESS else 2)


@pytest.mark.parametrize("ranks", COUNTS)
def test_a_broadcast_brings_the_first_ranks_buffer_to_all(ranks):
    schedule = broadcast_tree(ranks)
    check_rounds(schedule)
    for seed in range(3):
        held = simulate(schedule, own_contributions(schedule), seed)
        assert (held == np.eye(ranks, dtype=int)[0]).all()
    assert schedule.rounds == math.ceil(math.log2(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 13, 16])
def test_a_ring_sends_the_fewest_bytes(ranks):
    ring = ALL_REDUCES["ring"](ranks, 1)
    assert ring.rounds == 2 * (ranks - 1)
    assert set(chunks_sent(ring).values()) == {Fraction(2 * (ranks - 1), ranks)}
    assert {step.peer for step in ring.steps if step.rank == 0 and step.kind == "send"} == {1}


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_halving_doubling_sends_as_few_in_two_rounds_a_bit(ranks):
    found = ALL_REDUCES["halving-doubling"](ranks, 1)
    assert found.rounds == 2 * math.log2(ranks)
    assert set(chunks_sent(found).values()) == {Fraction(2 * (ranks - 1), ranks)}


@pytest.mark.parametrize("name", ["halving-doubling", "recursive-doubling"])
@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9, 15])
def test_other_counts_fold_into_a_power_of_two_in_two_more_rounds(name, ranks):
    power = 2 ** math.floor(math.log2(ranks))
    found = ALL_REDUCES[name](ranks, 1)
    assert found.rounds == ALL_REDUCES[name](power, 1).rounds + 2
    assert chunks_sent(found)[ranks - 1] == 1


def test_servers_receive_all_buffers_or_a_share_of_each():
    one = ALL_REDUCES["parameter-server"](5, 1)
    assert chunks_sent(one) == {0: 4, 1: 1, 2: 1, 3: 1, 4: 1}
    sharded = ALL_REDUCES["sharded-parameter-server"](5, 1)
    assert (one.rounds, sharded.rounds) == (2, 2)
    assert set(chunks_sent(sharded).values()) == {Fraction(2 * 4, 5)}


def test_between_nodes_a_rank_of_a_hierarchical_all_reduce_sends_its_share_to_its_like():
    found = hierarchical(12, 4)
    far = [step for step in found.steps if step.kind == "send" and step.rank // 4 != step.peer // 4]
    assert {step.rank % 4 == step.peer % 4 for step in far} == {True}
    # A ring of three nodes over a quarter of the buffer.
    sent = Counter()
    for step in far:
        sent[step.rank] += Fraction(step.stop - step.start, found.chunks)
    assert sent == dict.fromkeys(range(12), Fraction(2 * 2, 3 * 4))
    assert hierarchical(10, 4).pattern == "ring"


@pytest.mark.parametrize("ranks", range(2, 10))
def test_each_dependency_matters_or_follows_from_others(ranks):
    """Steps that wait for nothing give wrong sums in some order: the simulation enforces nothing else."""
    for schedule in (
        ALL_REDUCES[name](ranks, 1) for name in ("ring", "recursive-doubling", "sharded-parameter-server")
    ):
        free = replace(schedule, steps=tuple(replace(step, after=()) for step in schedule.steps))
        with pytest.raises(InvalidValueError, match="an all-reduce adds each once"):
            check_all_reduce(free, orders=20)


def test_a_lost_transfer_is_found():
    ring = ALL_REDUCES["ring"](4, 1)
    with pytest.raises(InvalidValueError, match=r"rank \d ends with chunk \d of rank \d 0 times"):
        check_all_reduce(schedule_of("short ring", 4, 4, ring.transfers()[:-1]))


def test_ranks_that_wait_for_each_other_are_found():
    good = schedule_of("pair", 2, 1, [[Transfer(0, 1, 0, 1)], [Transfer(1, 0, 0, 1)]])
    there, arrived, back, arrived_back = good.steps
    crossed = replace(good, steps=(replace(there, after=(3,)), arrived, replace(back, after=(1,)), arrived_back))
    with pytest.raises(InvalidValueError, match="deadlock, 4 steps can never start"):
        simulate(crossed, own_contributions(crossed))
    # Sends alone would pass; each rank's batch of two rounds waits for the other's.
    late = replace(good, steps=(there, replace(arrived, round=1), replace(back, round=0), arrived_back))
    with pytest.raises(InvalidValueError, match="ranks wait in rounds"):
        check_rounds(late)


def test_a_receive_without_its_send_is_found():
    good = schedule_of("pair", 2, 1, [[Transfer(0, 1, 0, 1)]])
    with pytest.raises(InvalidValueError, match="rank 0 sends rank 1 no message"):
        check_rounds(replace(good, steps=good.steps[1:]))
    with pytest.raises(InvalidValueError, match="1 sends have no receiver"):
        check_rounds(replace(good, steps=good.steps[:1]))


@pytest.mark.parametrize(
    ("transfers", "phrase"),
    [
        ([Transfer(0, 2, 0, 1)], "joins two of ranks 0 to 1, got 0 to 2"),
        ([Transfer(1, 1, 0, 1)], "got 1 to 1"),
        ([Transfer(0, 1, 0, 3)], "some of chunks 0 to 1, got 0 to 2"),
        ([Transfer(0, 1, 0, 2), Transfer(0, 1, 1, 2, reduces=True)], "two transfers of round 0 write one chunk"),
    ],
)
def test_impossible_transfers_are_refused(transfers, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        schedule_of("wrong", 2, 2, [transfers])


def test_transfers_of_a_schedule_make_it_again():
    for schedule in all_reduces(6):
        assert schedule_of(schedule.pattern, 6, schedule.chunks, schedule.transfers()) == schedule
