"""Partial all-reduces in shared memory, between threads and between processes."""

import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.rounds import RoundResult
from deeppool.collectives.partial.state import Delivery, RoundSpec
from deeppool.errors import InvalidValueError, RankFailedError, RunError
from deeppool.execution.transports import shared_memory
from deeppool.execution.transports.file_lock import FileLock
from deeppool.execution.transports.shared_memory import SharedMemoryRounds, create
from tests.waiting import wait_until

RANK = Path(__file__).with_name("shared_memory_rank.py")


def run_threads(
    path: Path, rule: FiringRule, steps: int, delivery: Delivery = "log", pause: float = 0.001
) -> list[list[RoundResult]]:
    """Each rank's results; every gradient is 1 in an element of its own."""
    spec = RoundSpec(rule, rule.ranks * steps, "int64", delivery)
    create(path, spec)
    received: list[list[RoundResult]] = [[] for _ in range(rule.ranks)]

    def train(rank: int) -> None:
        rounds = SharedMemoryRounds(path, rank, spec)
        draw = random.Random(rank)
        for step in range(steps):
            time.sleep(draw.random() * pause)
            gradient = np.zeros(rule.ranks * steps, np.int64)
            gradient[rank * steps + step] = 1
            received[rank] += rounds.all_reduce(gradient).results
        received[rank] += rounds.drain()
        rounds.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(rule.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return received


@pytest.mark.skipif(sys.platform != "linux", reason="patches how psutil reads Linux's clock")
def test_ranks_live_on_when_the_clock_of_the_machine_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "CHECK_INTERVAL", 0.0)
    spec = RoundSpec(FiringRule(2, "solo"), 1, "int64")
    create(tmp_path / "state", spec)
    ranks = [SharedMemoryRounds(tmp_path / "state", rank, spec) for rank in range(2)]
    boot = psutil.boot_time()
    # Time since the boot goes on, so the boot seems to have been later.
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 60)
    assert [result.number for result in ranks[0].all_reduce(np.ones(1, np.int64)).results] == [0]
    for rank in ranks:
        rank.close(agreed=True)


@pytest.mark.parametrize("ranks", [2, 3, 7, 16])
@pytest.mark.parametrize("mode", ["solo", "majority", "quorum", "full", "straggler-aware"])
def test_threads_deliver_every_gradient_once_to_every_rank(tmp_path: Path, mode, ranks: int) -> None:
    rule = FiringRule(ranks, mode, 2 if mode == "quorum" else None, grace=0.001 * (mode == "quorum"), seed=ranks)
    received = run_threads(tmp_path / "state", rule, 10)
    for results in received:
        assert [result.number for result in results] == list(range(len(results)))
        total = sum(result.total for result in results)
        assert np.array_equal(total, np.ones_like(total))
        for result, first in zip(results, received[0], strict=True):
            assert np.array_equal(result.total, first.total)
            assert result.counts == first.counts == tuple(result.total.reshape(ranks, -1).sum(axis=1))


def test_the_newest_result_is_never_torn_while_later_rounds_overwrite_it(tmp_path: Path) -> None:
    received = run_threads(tmp_path / "state", FiringRule(4, "solo"), 200, "latest", 0.0)
    for results in received:
        for result in results:
            assert result.counts == tuple(result.total.reshape(4, -1).sum(axis=1))


def start(path: Path, rank: int, ranks: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(RANK), str(path), str(rank), str(ranks)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.mark.processes
def test_processes_sum_as_synchronous_training_where_every_round_waits(tmp_path: Path) -> None:
    create(tmp_path / "state", RoundSpec(FiringRule(3, "full"), 4, delivery="log"))
    ranks = [start(tmp_path / "state", rank, 3) for rank in range(3)]
    assert [process.communicate(timeout=300)[0].split() for process in ranks] == [["6.0", "12.0", "18.0"]] * 3


def test_a_rank_that_never_arrives_ends_in_an_error_after_the_timeout(tmp_path: Path) -> None:
    rule = FiringRule(2, "full")
    spec = RoundSpec(rule, 1, delivery="log")
    create(tmp_path / "state", spec)
    absent = SharedMemoryRounds(tmp_path / "state", 1, spec)
    waiting = SharedMemoryRounds(tmp_path / "state", 0, spec, timeout=0.05)
    with pytest.raises(RunError, match=r"round 0 .* within 0.05 s: ranks \[1\] have not arrived"):
        waiting.all_reduce(np.ones(1, np.float32))
    with pytest.raises(RankFailedError, match=r"rank 0 of a partial all-reduce .* gave up"):
        absent.all_reduce(np.ones(1, np.float32))


def test_a_lock_held_too_long_and_a_gradient_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    rule = FiringRule(2)
    spec = RoundSpec(rule, 3)
    create(tmp_path / "state", spec)
    rounds = SharedMemoryRounds(tmp_path / "state", 0, spec)
    with pytest.raises(InvalidValueError, match=r"shape \(3,\), got \(2,\)"):
        rounds.all_reduce(np.ones(2, np.float32))
    with pytest.raises(InvalidValueError, match=r"of type float32, got float64"):
        rounds.all_reduce(np.ones(3))
    with FileLock(tmp_path / "state", 1.0), pytest.raises(RunError, match="holds the lock"):
        FileLock(tmp_path / "state", 0.01).__enter__()


def test_a_gradient_that_no_round_has_taken_is_pending(tmp_path: Path) -> None:
    rule = FiringRule(2)
    spec = RoundSpec(rule, 1)
    create(tmp_path / "state", spec)
    fast, late = (SharedMemoryRounds(tmp_path / "state", rank, spec) for rank in range(2))
    assert fast.all_reduce(np.ones(1, np.float32)).accepted
    received = late.all_reduce(np.full(1, 5, np.float32))
    assert not received.accepted
    assert [result.counts for result in received.results] == [(1, 0)]
    assert late.pending()[0].tolist() == [5.0]
    assert fast.all_reduce(np.ones(1, np.float32)).results[0].total.tolist() == [6.0]
    assert late.pending() == (np.zeros(1), 0)


def test_gradients_of_an_earlier_run_go_into_the_next_round(tmp_path: Path) -> None:
    rule = FiringRule(2)
    spec = RoundSpec(rule, 1)
    create(tmp_path / "state", spec)
    first, second = (SharedMemoryRounds(tmp_path / "state", rank, spec) for rank in range(2))
    second.restore(np.full(1, 7, np.float32), 3)
    [result] = first.all_reduce(np.ones(1, np.float32)).results
    assert (result.total.tolist(), result.counts) == ([8.0], (1, 3))


def test_a_rank_ends_though_a_stopped_one_holds_the_lock_and_only_once(tmp_path: Path) -> None:
    rule = FiringRule(2)
    spec = RoundSpec(rule, 1)
    create(tmp_path / "state", spec)
    rounds, other = (SharedMemoryRounds(tmp_path / "state", rank, spec, timeout=600) for rank in range(2))
    with FileLock(tmp_path / "state", 1.0):
        rounds.close()
    with pytest.raises(RankFailedError, match="rank 0 of a partial all-reduce ended"):
        other.all_reduce(np.ones(1, np.float32))
    # The number of the closed file may be that of another one by now.
    with (tmp_path / "another").open("w") as another:
        rounds.close()
        another.write("open")
    with pytest.raises(RunError, match="this rank has closed"):
        rounds.all_reduce(np.ones(1, np.float32))


def test_a_round_fires_once_a_late_rank_has_read_the_results_that_take_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "CHECK_INTERVAL", 600.0)
    spec = RoundSpec(FiringRule(2, staleness_limit=3), 1, delivery="log")
    create(tmp_path / "state", spec)
    late, fast = (SharedMemoryRounds(tmp_path / "state", rank, spec, timeout=120) for rank in range(2))
    added, reads = threading.Event(), threading.Event()
    # Between adding its gradient and reading results the late rank stands still.
    monkeypatch.setattr(late, "_check_peers", lambda: (added.set(), reads.wait(60)))

    def train(rank: SharedMemoryRounds, steps: int) -> None:
        for _ in range(steps):
            rank.all_reduce(np.ones(1, np.float32))

    train(fast, 2)
    with ThreadPoolExecutor(2) as pool:
        trained = [pool.submit(train, late, 1)]
        assert added.wait(60)
        trained.append(pool.submit(train, fast, 4))
        wait_until(lambda: late._rounds._free_slot() is None and late._rounds.state.pending[1])
        # Nobody who is not woken looks before the timeout.
        reads.set()
        for each in trained:
            each.result(60)


def drain_one(path: Path) -> tuple[SharedMemoryRounds, SharedMemoryRounds]:
    """Returns a rank that has received one result of several while it drains, and another one that goes on."""
    spec = RoundSpec(FiringRule(2), 1)
    create(path, spec)
    draining, other = (SharedMemoryRounds(path, rank, spec, timeout=5) for rank in range(2))
    results = draining.drain()
    other.all_reduce(np.ones(1, np.float32))
    next(results)
    return draining, other


def test_a_rank_that_ends_while_it_drains_ends_the_other_in_an_error(tmp_path: Path) -> None:
    draining, other = drain_one(tmp_path / "state")
    draining.close()
    with pytest.raises(RankFailedError, match="rank 0 of a partial all-reduce ended without draining"):
        for _ in range(3):
            other.all_reduce(np.ones(1, np.float32))


def test_a_rank_whose_process_is_lost_while_it_drains_ends_the_other_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "CHECK_INTERVAL", 0.01)
    draining, other = drain_one(tmp_path / "state")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    draining._state.process[0] = ended.pid
    with pytest.raises(RankFailedError, match="rank 0 of a partial all-reduce ended without draining"):
        for _ in range(3):
            other.all_reduce(np.ones(1, np.float32))
