"""Simulated eager-SGD against timelines drawn by hand and closed forms."""

import math

import numpy as np
import pytest

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.load_imbalance import REPORTED, random_ranks, rotating
from deeppool.errors import InvalidValueError
from deeppool.simulation.eager_training import simulate_eager_training


@pytest.mark.parametrize("mode", ["full", "straggler-aware"])
def test_rounds_that_wait_for_all_take_the_longest_time_of_each(mode) -> None:
    draw = REPORTED["cloud-resnet50"].draw
    found = simulate_eager_training(FiringRule(5, mode), draw, 40, all_reduce=0.1)
    longest = sum(max(draw(rank, step) for rank in range(5)) for step in range(40))
    assert found.seconds == pytest.approx(longest + 40 * 0.1)
    assert found.counts == ((1,) * 5,) * 40


def test_a_late_rank_skips_the_batches_of_rounds_that_went_on() -> None:
    # Rank 0 takes 1 s, rank 1 takes 2.5 s: it arrives at 2.5, after rounds 0 and 1, and starts on round 2; then at
    # 5, after rounds 2 to 4 (at 3, 4 and 5).
    def compute(rank: int, step: int) -> float:
        return (1.0, 2.5)[rank]

    found = simulate_eager_training(FiringRule(2, staleness_limit=None), compute, 6)
    assert found.seconds == 6.0
    assert found.counts == ((1, 0), (1, 0), (1, 1), (1, 0), (1, 0), (1, 1))
    assert (found.active, found.gradients) == (pytest.approx(8 / 6), 8)


def test_a_rank_that_computes_every_batch_falls_behind_until_the_limit() -> None:
    def compute(rank: int, step: int) -> float:
        return (1.0, 2.5)[rank]

    found = simulate_eager_training(FiringRule(2, staleness_limit=2), compute, 5, skips=False)
    # Rank 1's batches end at 2.5, 5 and 7.5. Rounds 0 and 1 are over by then; round 2 waits for all, which for rank 1
    # means its third batch.
    assert found.counts == ((1, 0), (1, 0), (1, 3), (1, 0), (1, 0))
    assert found.seconds == 9.5


def test_an_all_reduce_delays_its_round_and_takes_no_later_gradient() -> None:
    # Rank 1 arrives 0.1 s after round 0 fired at 1 s; its result is there at 1.5 s.
    def compute(rank: int, step: int) -> float:
        return (1.0, 1.1)[rank]

    found = simulate_eager_training(FiringRule(2), compute, 2, all_reduce=0.5)
    assert found.counts == ((1, 0), (1, 1))
    assert found.seconds == pytest.approx(1.5 + 1.0 + 0.5)


def test_majority_waits_as_long_as_the_initiators_that_are_drawn() -> None:
    rule = FiringRule(8, "majority", seed=3)
    delays = rotating(8, 0.0, 0.7)
    found = simulate_eager_training(rule, lambda rank, step: 10.0 + delays(rank, step), 1)
    assert found.seconds == pytest.approx(10 + 0.1 * rule.initiator(0))
    assert found.active == rule.initiator(0) + 1


def test_one_late_rank_of_each_step_costs_synchronous_training_its_delay_and_solo_nearly_nothing() -> None:
    delays = random_ranks(8, 0.4, seed=1)

    def compute(rank: int, step: int) -> float:
        return 0.61 + delays(rank, step)

    full, solo = (simulate_eager_training(FiringRule(8, mode), compute, 200) for mode in ("full", "solo"))
    assert full.update_time == pytest.approx(1.01)
    assert solo.update_time == pytest.approx(0.61, rel=0.02)
    assert np.mean(np.array(solo.counts) > 0) > 0.8


def test_no_update_and_a_negative_all_reduce_are_refused() -> None:
    for updates, all_reduce in ((0, 0.0), (1, -1.0)):
        with pytest.raises(InvalidValueError, match="at least 1 update is simulated"):
            simulate_eager_training(FiringRule(2), lambda rank, step: 1.0, updates, all_reduce=all_reduce)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_gradients_that_never_end_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidValueError, match=rf"of 0 s or more, got {seconds:g} s of rank 1 in update 0"):
        simulate_eager_training(FiringRule(2), lambda rank, step: seconds if rank else 1.0, 3)


def test_updates_are_whole_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"updates must be a whole number, got 2\.5"):
        simulate_eager_training(FiringRule(2), lambda rank, step: 1.0, 2.5)
