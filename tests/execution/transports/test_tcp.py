"""Partial all-reduces over TCP between threads, each with its own sockets."""

import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import numpy as np
import pytest

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.state import Delivery, RoundSpec
from deeppool.errors import InvalidValueError, RankFailedError, RunError
from deeppool.execution.transports.native.build import load_engine
from deeppool.execution.transports.tcp_engine import tcp_rounds
from deeppool.execution.transports.tcp_peers import Peers

SECRET = b"of all ranks"


@pytest.fixture(params=["python", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    """Both engines, where there is a compiler."""
    if request.param == "native" and load_engine() is None:
        pytest.skip("the native engine cannot be compiled here")
    return request.param


def on_ranks(ranks: int, work: Callable[[int, dict[int, socket.socket]], object]) -> list:
    """Calls a function on each of some connected ranks, each in a thread."""
    peers = [Peers(rank, "127.0.0.1", SECRET) for rank in range(ranks)]
    addresses = [each.address for each in peers]
    with ThreadPoolExecutor(ranks) as pool:
        connected = list(pool.map(lambda each: each.connect(addresses), peers))
        return list(pool.map(work, range(ranks), connected))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 7, 16])
@pytest.mark.parametrize("mode", ["solo", "majority", "quorum", "full", "straggler-aware"])
@pytest.mark.parametrize("engines", [("python",), ("native",), ("native", "python")], ids="-".join)
def test_ranks_deliver_every_gradient_once_to_every_rank(mode, ranks: int, engines: tuple[str, ...]) -> None:
    if "native" in engines and load_engine() is None:
        pytest.skip("the native engine cannot be compiled here")
    steps = 8
    rule = FiringRule(ranks, mode, 2 if mode == "quorum" else None, grace=0.001 * (mode == "quorum"), seed=ranks)

    def train(rank: int, peers: dict[int, socket.socket]) -> list:
        # Ranks with different engines understand each other, and fire the same rounds.
        which = engines[rank % len(engines)]
        rounds = tcp_rounds(rank, peers, RoundSpec(rule, ranks * steps, "int64", "log"), engine=which)
        draw, received = random.Random(rank), []
        for step in range(steps):
            time.sleep(draw.random() * 0.002)
            gradient = np.zeros(ranks * steps, np.int64)
            gradient[rank * steps + step] = 1
            received += rounds.all_reduce(gradient).results
        received += rounds.drain()
        rounds.close()
        return received

    found = on_ranks(ranks, train)
    for results in found:
        assert [result.number for result in results] == list(range(len(results)))
        assert np.array_equal(sum(result.total for result in results), np.ones(ranks * steps))
        for result, first in zip(results, found[0], strict=True):
            assert np.array_equal(result.total, first.total)
            assert result.counts == tuple(result.total.reshape(ranks, steps).sum(axis=1))


def test_gradients_of_an_earlier_run_go_into_the_next_round(engine) -> None:
    def train(rank: int, peers: dict[int, socket.socket]) -> float:
        rounds = tcp_rounds(rank, peers, RoundSpec(FiringRule(2, "full"), 1, delivery="log"), engine=engine)
        if rank == 1:
            rounds.restore(np.full(1, 7, np.float32), 3)
            assert rounds.pending()[1] == 3
        [result] = rounds.all_reduce(np.ones(1, np.float32)).results
        assert result.counts == (1, 4)
        assert not [each for each in rounds.drain() if any(each.counts)]
        rounds.close()
        return float(result.total[0])

    assert on_ranks(2, train) == [9.0, 9.0]


def test_a_gradient_of_another_shape_or_type_is_refused(engine) -> None:
    def train(rank: int, peers: dict[int, socket.socket]) -> list:
        rounds = tcp_rounds(rank, peers, RoundSpec(FiringRule(2, "full"), 3, "int64", "log"), engine=engine, timeout=5)
        for wrong, phrase in (
            (np.ones(2, np.int64), r"shape \(3,\), got \(2,\)"),
            (np.full(3, 0.5), "of type int64, got float64"),
            (np.ones(3, np.int32), "of type int64, got int32"),
        ):
            with pytest.raises(InvalidValueError, match=phrase):
                rounds.all_reduce(wrong)
            with pytest.raises(InvalidValueError, match=phrase):
                rounds.restore(wrong, 1)
        [result] = rounds.all_reduce(np.ones(3, np.int64)).results
        rounds.close(agreed=True)
        return result.total.tolist()

    assert on_ranks(2, train) == [[2, 2, 2]] * 2


@pytest.mark.parametrize("delivery", ["log", "latest"])
def test_gradients_larger_than_any_socket_buffer_do_not_block_ranks_that_send_to_each_other(
    delivery: Delivery, engine
) -> None:
    elements = 3_000_000

    def train(rank: int, peers: dict[int, socket.socket]) -> float:
        rounds = tcp_rounds(rank, peers, RoundSpec(FiringRule(3, "full"), elements, delivery=delivery), engine=engine)
        total = rounds.all_reduce(np.full(elements, rank + 1, np.float32)).results[0].total
        assert not [result for result in rounds.drain() if any(result.counts)]
        rounds.close()
        return float(total.min()) + float(total.max())

    assert on_ranks(3, train) == [12.0] * 3


def test_a_rank_that_ends_without_draining_ends_the_others_in_an_error_that_names_it(engine) -> None:
    def train(rank: int, peers: dict[int, socket.socket]) -> str:
        rounds = tcp_rounds(rank, peers, RoundSpec(FiringRule(3, "full"), 1), engine=engine)
        try:
            if rank == 1:
                return "ended"
            with pytest.raises(RankFailedError) as caught:
                rounds.all_reduce(np.ones(1, np.float32))
            return str(caught.value)
        finally:
            rounds.close()

    first, _, last = on_ranks(3, train)
    # The one that notices first ends too, so the other may name either.
    assert "rank 1" in first or "rank 1" in last
    assert all("ended without draining" in each for each in (first, last))


def test_the_end_of_a_grace_window_fires_a_round_when_no_message_arrives(engine) -> None:
    def train(rank: int, peers: dict[int, socket.socket]) -> tuple[int, ...]:
        rounds = tcp_rounds(rank, peers, RoundSpec(FiringRule(2, grace=0.05), 1), timeout=300, engine=engine)
        counts: tuple[int, ...] = ()
        if rank == 0:
            counts = rounds.all_reduce(np.ones(1, np.float32)).results[0].counts
            done.set()
        done.wait(300)
        list(rounds.drain())
        rounds.close()
        return counts

    done = threading.Event()
    assert on_ranks(2, train)[0] == (1, 0)


def test_a_rank_that_never_arrives_ends_in_an_error_after_the_timeout(engine) -> None:
    def train(rank: int, peers: dict[int, socket.socket]) -> None:
        rounds = tcp_rounds(rank, peers, RoundSpec(FiringRule(2, "full"), 1), timeout=0.05, engine=engine)
        if rank == 0:
            with pytest.raises(RunError, match=r"round 0 .* within 0.05 s"):
                rounds.all_reduce(np.ones(1, np.float32))
            done.set()
        done.wait(300)
        rounds.close()

    done = threading.Event()
    on_ranks(2, train)


def test_a_stranger_without_the_secret_is_refused_and_a_rank_that_comes_later_is_not() -> None:
    first, second = (Peers(rank, "127.0.0.1", SECRET, timeout=300) for rank in range(2))
    addresses = [first.address, second.address]
    with ThreadPoolExecutor(1) as pool:
        connected = pool.submit(first.connect, addresses)
        with pytest.raises(AuthenticationError):
            Client(first.address, authkey=b"a guess")
        for found in (second.connect(addresses), connected.result()):
            for connection in found.values():
                connection.close()
    assert list(connected.result()) == [1]


def test_a_missing_rank_is_named() -> None:
    peers = Peers(0, "127.0.0.1", SECRET, timeout=0.1)
    with pytest.raises(RunError, match=r"ranks \[1\] did not connect to rank 0"):
        peers.connect([peers.address, ("", 0)])
