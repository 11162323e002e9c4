"""Many rounds over each transport between ranks that arrive at random: exact sums, and no gradient lost or doubled."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.state import RoundSpec
from deeppool.execution.partial_all_reduce import PartialRounds
from deeppool.execution.transports.shared_memory import SharedMemoryRounds, create
from deeppool.execution.transports.tcp_engine import tcp_rounds
from deeppool.execution.transports.tcp_peers import Peers

MODES: tuple[Mode, ...] = ("full", "majority", "solo", "quorum")
LONGEST_PAUSES = (0.0, 2e-4, 2e-3)
"""Seconds of ranks' longest pauses before a call, of one training after another."""
STEPS = 250
"""Calls of each rank in a training."""
ROUNDS = 15_000
"""Of each case; 300,000 in all."""

Join = Callable[[int], PartialRounds]


def shared_memory(rule: FiringRule, folder: Path) -> Join:
    spec = RoundSpec(rule, 2, "int64", "log")
    create(folder / "state", spec)
    return lambda rank: SharedMemoryRounds(folder / "state", rank, spec)


def tcp(rule: FiringRule, folder: Path) -> Join:
    peers = [Peers(rank, "127.0.0.1", b"of all ranks") for rank in range(rule.ranks)]
    addresses = [each.address for each in peers]
    return lambda rank: tcp_rounds(rank, peers[rank].connect(addresses), RoundSpec(rule, 2, "int64", "log"))


def rules(ranks: int) -> Iterator[tuple[FiringRule, float]]:
    """Rules, with the longest pause."""
    for seed in itertools.count():
        mode = MODES[seed % 4]
        quorum = 1 + random.Random(seed).randrange(ranks) if mode == "quorum" else None
        rule = FiringRule(ranks, mode, quorum, (seed % 3 == 1) * 1e-4, seed, staleness_limit=1 + seed % 32)
        yield rule, LONGEST_PAUSES[seed // 4 % 3]


def train(rule: FiringRule, join: Join, longest: float, steps: int) -> int:
    """Trains on a thread for each rank; returns the rounds."""
    produced = np.random.default_rng(rule.seed).integers(0, 2**40, (rule.ranks, steps, 2))

    def work(rank: int) -> list:
        rounds, draw, received = join(rank), random.Random(rank), []
        for gradient in produced[rank]:
            time.sleep(draw.random() * longest)
            received += rounds.all_reduce(gradient).results
        received += rounds.drain()
        rounds.close()
        return received

    with ThreadPoolExecutor(rule.ranks) as pool:
        found = list(pool.map(work, range(rule.ranks)))
    for results in found:
        assert [result.number for result in results] == list(range(len(results)))
        assert np.array_equal(sum(result.total for result in results), produced.sum(axis=(0, 1)))
        assert [sum(each) for each in zip(*(result.counts for result in results), strict=True)] == [steps] * rule.ranks
        for result, first in zip(results, found[0], strict=True):
            assert np.array_equal(result.total, first.total)
            assert result.counts == first.counts
    return len(found[0])


@pytest.mark.parametrize("transport", [shared_memory, tcp])
def test_some_rounds_of_every_mode_lose_nothing(transport: Callable[[FiringRule, Path], Join], tmp_path: Path) -> None:
    for number, (rule, longest) in enumerate(itertools.islice(rules(5), 12)):
        (folder := tmp_path / str(number)).mkdir()
        assert train(rule, transport(rule, folder), longest, 15) >= 15


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 9, 16, 32])
@pytest.mark.parametrize("transport", [shared_memory, tcp])
def test_three_hundred_thousand_rounds_lose_nothing(
    transport: Callable[[FiringRule, Path], Join], ranks: int, tmp_path: Path
) -> None:
    rounds = 0
    for number, (rule, longest) in enumerate(rules(ranks)):
        (folder := tmp_path / str(number)).mkdir()
        rounds += train(rule, transport(rule, folder), longest, STEPS)
        if rounds >= ROUNDS and number % 12 == 11:
            break
    print(f"\n{rounds} rounds of {ranks} ranks over {transport.__name__}")
