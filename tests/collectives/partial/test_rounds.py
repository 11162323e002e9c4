"""Rounds on a virtual clock against what the gradients themselves say: each is 1 in an element of its own."""

import random

import numpy as np
import pytest

from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.rounds import Firing, RoundResult, Rounds
from deeppool.collectives.partial.state import RoundSpec, RoundState
from deeppool.errors import InvalidValueError
from tests.collectives.partial.simulated_ranks import Simulation

RANKS = [*range(2, 10), 16, 32]


def skewed(seed: int, spread: float):
    """Compute times: mostly 1 s, some much longer, so that ranks fall behind by several rounds."""
    draw = random.Random(seed)
    return lambda rank, step: draw.choice([1.0, 1.0, 1.0, draw.uniform(0, spread)]) + draw.random() * 0.01


def held(simulation: Simulation, result: RoundResult) -> np.ndarray:
    """The gradients in a sum, by rank."""
    return result.total.reshape(simulation.rule.ranks, simulation.steps)


def longest_absence(simulation: Simulation, rank: int) -> int:
    """The most consecutive rounds without a gradient of a rank, before any rank finished."""
    longest = absent = 0
    for result in simulation.completed[: simulation.drained_at]:
        absent = 0 if held(simulation, result)[rank].any() else absent + 1
        longest = max(longest, absent)
    return longest


def check(simulation: Simulation) -> None:
    """Every gradient is in exactly one round, and the counts say which."""
    total = sum(result.total for result in simulation.completed)
    assert np.array_equal(total, np.ones_like(total))
    for result in simulation.completed:
        assert tuple(held(simulation, result).sum(axis=1)) == result.counts
    assert [result.number for result in simulation.completed] == list(range(len(simulation.completed)))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("mode", ["solo", "majority", "quorum", "full", "straggler-aware"])
def test_no_gradient_is_lost_or_counted_twice_whatever_the_skew(mode: Mode, ranks: int) -> None:
    for seed in range(3 if ranks < 16 else 1):
        rule = FiringRule(
            ranks, mode, -(-ranks // 2) if mode == "quorum" else None, grace=0.1 * (seed == 2), seed=seed,
            staleness_limit=4 + seed, synchronous_every=7 if seed else None,
        )  # fmt: skip
        simulation = Simulation(rule, "log", 25 if ranks < 16 else 8, skewed(seed, 12.0), seed)
        check(simulation)
        for rank in range(ranks):
            assert [r.number for r in simulation.received[rank]] == [r.number for r in simulation.completed]
            assert all(
                np.array_equal(own.total, other.total) and own.counts == other.counts
                for own, other in zip(simulation.received[rank], simulation.completed, strict=True)
            )
            assert longest_absence(simulation, rank) <= rule.staleness_limit


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", RANKS)
def test_three_hundred_thousand_rounds_lose_nothing(ranks: int) -> None:
    rounds = seed = 0
    # A round of 32 ranks takes ten times as long as one of 16.
    while rounds < (33_000 if ranks < 32 else 3_000):
        seed += 1
        mode: Mode = ("solo", "majority", "quorum", "straggler-aware")[seed % 4]
        quorum = 1 + seed % ranks if mode == "quorum" else None
        rule = FiringRule(ranks, mode, quorum, grace=(seed % 2) * 0.3, seed=seed, staleness_limit=1 + seed % 32)
        simulation = Simulation(rule, "log" if seed % 5 else "latest", 200, skewed(seed, 30.0), seed)
        check(simulation)
        rounds += len(simulation.completed)


def test_solo_takes_the_first_majority_the_initiator_and_quorum_at_least_that_many() -> None:
    for ranks in (3, 8):
        for mode in ("solo", "majority", "quorum"):
            rule = FiringRule(ranks, mode, 3 if mode == "quorum" else None, seed=5, staleness_limit=None)
            simulation = Simulation(rule, "latest", 40, skewed(ranks, 5.0))
            for result in simulation.completed[: simulation.drained_at]:
                assert np.count_nonzero(result.counts) >= (3 if mode == "quorum" else 1)
                if mode == "majority":
                    assert result.counts[rule.initiator(result.number)] > 0


def test_without_skew_to_wait_out_every_round_of_full_holds_one_gradient_of_each_rank() -> None:
    for rule in (FiringRule(6, "full"), FiringRule(6, "quorum", 6), FiringRule(6, "solo", synchronous_every=1)):
        simulation = Simulation(rule, "log", 20, skewed(0, 9.0))
        assert [result.counts for result in simulation.completed] == [(1,) * 6] * 20


def test_a_grace_window_lets_ranks_in_that_arrive_within_it_and_ends_when_all_have() -> None:
    def late(rank: int, step: int) -> float:
        return 1.0 + 0.1 * rank

    def counts(grace: float) -> tuple[int, ...]:
        return Simulation(FiringRule(4, "solo", grace=grace), "log", 1, late).completed[0].counts

    assert counts(0.0) == (1, 0, 0, 0)
    assert counts(0.15) == (1, 1, 0, 0)
    simulation = Simulation(FiringRule(4, "solo", grace=1000.0), "log", 1, late)
    assert simulation.completed[0].counts == (1, 1, 1, 1)
    assert simulation.ended < 2.0


def test_a_rank_two_rounds_late_receives_all_rounds_of_log_and_only_the_newest_of_latest() -> None:
    def third_is_slow(rank: int, step: int) -> float:
        return 3.5 if rank == 2 else 1.0 + 0.01 * rank

    rule = FiringRule(3, "solo", staleness_limit=8)
    log, latest = (Simulation(rule, delivery, 12, third_is_slow) for delivery in ("log", "latest"))
    applied = [sum(result.total for result in received) for received in log.received]
    assert np.array_equal(applied[0], applied[2])
    assert np.array_equal(applied[0], np.ones(36))
    assert [result.number for result in latest.received[2]][:2] == [2, 5]
    assert [result.number for result in latest.received[0]][:6] == [0, 1, 2, 3, 4, 5]


def test_majority_waits_for_a_uniformly_drawn_rank() -> None:
    rule = FiringRule(32, "majority", seed=1)
    drawn = np.bincount([rule.initiator(number) for number in range(32_000)], minlength=32)
    assert FiringRule(32, "majority", seed=np.int64(1)).initiator(5) == rule.initiator(5)
    # Five standard deviations of a binomial with mean 1000.
    assert abs(drawn - 1000).max() < 5 * np.sqrt(1000 * 31 / 32)
    for seed in range(64):
        rule = FiringRule(8, "majority", seed=seed)
        first = Simulation(rule, "latest", 1, lambda rank, step: 1.0 + 0.1 * rank).completed[0]
        # Ranks arrive in their order, so the ones up to the initiator are in time.
        assert first.counts == tuple(int(rank <= rule.initiator(0)) for rank in range(8))


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"ranks": 0}, "ranks must be at least 1, got 0"),
        ({"ranks": 4, "mode": "most"}, "got 'most'"),
        ({"ranks": 4, "quorum": 2}, "go together"),
        ({"ranks": 4, "mode": "quorum"}, "go together"),
        ({"ranks": 4, "mode": "quorum", "quorum": 5}, "quorum must be at most 4, got 5 .there are 4 ranks"),
        ({"ranks": 4, "grace": -1.0}, "grace"),
        ({"ranks": 4, "staleness_limit": 0}, "staleness_limit must be at least 1, got 0 .None: no limit"),
        ({"ranks": 4, "staleness_limit": 2.5}, r"staleness_limit must be a whole number, got 2\.5"),
        ({"ranks": 4, "seed": 0.5}, r"seed must be a whole number, got 0\.5"),
    ],
)
def test_an_impossible_rule_is_refused(arguments: dict, phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        FiringRule(**arguments)


def test_those_who_wait_for_the_last_rank_are_summed_before_it_arrives() -> None:
    spec = RoundSpec(FiringRule(4, "straggler-aware"), 2, "int64")
    state = RoundState(spec, bytearray(RoundState.size(spec)))
    rounds = Rounds(state)

    def arrive(rank: int) -> None:
        rounds.begin_write(rank)[0][...] = 10**rank
        rounds.arrive(rank, float(rank))

    for rank in (3, 0):
        arrive(rank)
        assert rounds.fire(rank, 9.0) is None
    arrive(1)
    early = rounds.fire(1, 9.0)
    assert (early.counts, len(early.buffers), early.completes) == ((1, 1, 0, 1), 3, False)
    early.sum()
    # The last one arrives while they are being summed, and does not wait for the sum itself.
    arrive(2)
    assert rounds.fire(2, 9.0) is None
    rounds.complete(early)
    last = rounds.fire(1, 9.0)
    assert (last.counts, len(last.buffers), last.completes) == ((1, 1, 1, 1), 1, True)
    last.sum()
    rounds.complete(last)
    assert rounds.completed == 1
    assert rounds.read(rounds.unread(0)[0]).total.tolist() == [1111, 1111]
    assert rounds.fires_at() == float("inf")


@pytest.mark.parametrize(("adds", "expected"), [(False, 0.0), (True, 5.0)])
def test_a_round_to_which_no_rank_contributed_sums_to_nothing(adds: bool, expected: float) -> None:
    firing = Firing(0, 0, (0, 0), (), np.full(3, 5.0), adds=adds, completes=True)
    firing.sum()
    assert firing.result.tolist() == [expected] * 3
