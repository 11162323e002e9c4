"""Schedules performed by real processes over gloo, against sums that share nothing with them."""

import pytest

from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.perform.performer import program_of
from deeppool.collectives.schedule import Transfer, schedule_of
from tests.collectives.schedule_rank import other_uses, sum_by_every_pattern
from tests.ranks import run_ranks

SIZES = [3, 1001]
"""Fewer elements than some patterns have chunks, and a number that few chunks divide."""


@pytest.mark.slow
@pytest.mark.processes
def test_every_pattern_sums_on_any_number_of_ranks(tmp_path):
    run_ranks(sum_by_every_pattern, (9, list(range(1, 10)), SIZES, str(tmp_path)), 9)


@pytest.mark.stress
@pytest.mark.processes
def test_every_pattern_sums_long_buffers(tmp_path):
    run_ranks(sum_by_every_pattern, (16, list(range(1, 17)), [1, 2, 17, 99_991], str(tmp_path)), 16)


@pytest.mark.slow
@pytest.mark.processes
def test_broadcasts_dense_tensors_and_threads(tmp_path):
    run_ranks(other_uses, (4, str(tmp_path)), 4)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", ALL_REDUCES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 9])
def test_receives_of_one_sender_are_posted_in_its_order_and_not_late(name: str, ranks: int, early: bool) -> None:
    """Messages of a pair of ranks are matched by order."""
    schedule = ALL_REDUCES[name](ranks, 2)
    for rank in range(ranks):
        program = program_of(schedule, rank, early=early)
        posts = [index for batch in program.batches for index in batch.posts]
        for peer in range(ranks):
            own = [i for i, step in enumerate(schedule.steps) if (step.rank, step.peer) == (rank, peer)]
            assert [i for i in posts if i in own] == [i for i in own if schedule.steps[i].kind != "send"]
        posted: set[int] = set()
        for batch in program.batches:
            posted.update(batch.posts)
            assert posted.issuperset(batch.receives)
            # NCCL's kernels hold both sides of a transfer in the same round.
            assert early or batch.posts == batch.receives


def test_over_gloo_a_ring_posts_its_reduces_at_once_and_no_receive_into_chunks_in_use() -> None:
    schedule = ALL_REDUCES["ring"](4, 1)
    program = program_of(schedule, 0, early=True)
    kinds = [[schedule.steps[index].kind for index in batch.posts] for batch in program.batches]
    # Chunk 0 is sent in round 0, chunk 3 in round 1, chunk 2 in round 2: sums may replace them one round later.
    assert kinds == [["reduce"] * 3, ["receive"], ["receive"], ["receive"], [], []]


def test_a_reduce_is_not_posted_before_an_earlier_receive_of_its_sender() -> None:
    # Rank 1 still sends chunk 0 when its new value might arrive; memory for chunk 1 is free at once.
    rounds = [[Transfer(1, 2, 0, 1)], [Transfer(0, 1, 0, 1)], [Transfer(0, 1, 1, 2, reduces=True)]]
    schedule = schedule_of("two messages", 3, 2, rounds)
    program = program_of(schedule, 1, early=True)
    posted = [[schedule.steps[index].kind for index in batch.posts] for batch in program.batches]
    assert posted == [[], ["receive", "reduce"], []]
