"""Races of the TCP engines: data races, and what happens when ranks start, end and fail at any instant."""

import gc
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from deeppool.collectives.partial.firing import MODES, FiringRule
from deeppool.collectives.partial.state import RoundSpec
from deeppool.collectives.patterns.recursive_doubling import recursive_doubling
from deeppool.errors import RankFailedError, RunError
from deeppool.execution.transports.native import build
from deeppool.execution.transports.tcp_engine import tcp_rounds
from deeppool.execution.transports.tcp_peers import Peers

SOURCES = Path(build.__file__).parent
OPEN = Path("/proc/self/fd")
SECONDS = 600.0
"""Far longer than a test may take: what waits for so long has hung."""


def run(command: list, words: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=words, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def races(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine under ThreadSanitizer, with ranks that are threads."""
    program = tmp_path_factory.mktemp("races") / "races"
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, "-O1", "-g", "-std=c++17", "-pthread", "-fsanitize=thread", f"-I{SOURCES}"]
    made = run([*command, "-o", program, Path(__file__).with_name("races.cpp")])
    if made.returncode:
        pytest.skip(f"the engine cannot be compiled for ThreadSanitizer here: {made.stderr[:200]}")
    if "unexpected memory mapping" in run([program]).stderr:
        pytest.skip("ThreadSanitizer cannot run on this kernel")
    return program


@pytest.mark.stress
@pytest.mark.parametrize("ending", [0, 1, 2], ids=["drain", "agreed", "one leaves"])
@pytest.mark.parametrize("mode", ["solo", "majority", "full", "straggler-aware"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_no_two_threads_of_the_native_engine_touch_the_same_data(races: Path, ranks: int, mode, ending: int) -> None:
    words = [ranks, MODES.index(mode), 40, ending]
    for rank in range(ranks):
        steps = [step for step in recursive_doubling(ranks).steps if step.rank == rank]
        words.append(len(steps))
        words += [number for step in steps for number in (("send", "receive", "reduce").index(step.kind), step.peer)]
    ran = run([races], " ".join(map(str, words)))
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.fixture(params=["python", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and build.load_engine() is None:
        pytest.skip("the native engine cannot be compiled here")
    return request.param


@pytest.fixture
def leaks() -> Iterator[None]:
    """Fails a test that leaves file descriptors or threads behind."""
    gc.collect()
    before = held()
    yield
    # What other threads of this process open for a moment is no leak.
    deadline = time.monotonic() + 120
    while any(now > then for now, then in zip(held(), before, strict=True)):
        assert time.monotonic() < deadline, f"files and threads before {before}, now {held()}"
        gc.collect()
        time.sleep(0.01)


def held() -> tuple[int, int]:
    return len(list(OPEN.iterdir())), threading.active_count()


def pairs(ranks: int) -> list[dict[int, socket.socket]]:
    """Connects all ranks with each other, without a network."""
    found: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one in range(ranks):
        for other in range(one):
            found[one][other], found[other][one] = socket.socketpair()
    for each in (each for peers in found for each in peers.values()):
        each.setblocking(False)
    return found


def on_ranks(ranks: int, work) -> list:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, range(ranks), pairs(ranks)))


@pytest.mark.usefixtures("leaks")
def test_ranks_that_end_at_any_instant_leave_nothing_behind_and_nobody_waiting(engine: str) -> None:
    for trial in range(40):
        draw = random.Random(trial)
        ranks, leaver, at = draw.choice([2, 3, 4]), draw.randrange(2), draw.randrange(6)
        rule = FiringRule(ranks, draw.choice(["solo", "majority", "full"]), seed=trial, staleness_limit=2)

        def train(rank: int, peers, rule=rule, leaver=leaver, at=at) -> str:
            rounds = tcp_rounds(rank, peers, RoundSpec(rule, 3, "int64"), timeout=SECONDS, engine=engine)
            try:
                for step in range(1000):
                    if (rank, step) == (leaver, at):
                        return "left"
                    rounds.all_reduce(np.ones(3, np.int64))
            except RankFailedError:
                return "failed"
            finally:
                rounds.close()
                rounds.close()

        assert sorted(on_ranks(ranks, train)) == ["failed"] * (ranks - 1) + ["left"]


@pytest.mark.usefixtures("leaks")
def test_ranks_that_agree_to_end_do_so_in_any_order_and_with_late_messages(engine: str) -> None:
    for trial in range(30):
        rule = FiringRule(3, "solo", staleness_limit=None)

        def train(rank: int, peers, rule=rule, trial=trial) -> int:
            rounds = tcp_rounds(rank, peers, RoundSpec(rule, 2), timeout=SECONDS, engine=engine)
            last, draw = -1, random.Random(10 * trial + rank)
            while last < 4:
                time.sleep(draw.random() * 1e-3)
                last = rounds.all_reduce(np.ones(2, np.float32), last + 1).results[-1].number
            rounds.close(agreed=True)
            return last

        assert all(last >= 4 for last in on_ranks(3, train))


@pytest.mark.usefixtures("leaks")
def test_a_rank_that_gives_up_ends_though_another_takes_nothing(engine: str) -> None:
    # The other rank neither reads nor ends, as one that was stopped.
    own, other = pairs(2)
    rounds = tcp_rounds(0, own, RoundSpec(FiringRule(2), 2_000_000), timeout=0.05, engine=engine)
    with pytest.raises(RunError, match=r"did not complete within 0.05 s"):
        rounds.all_reduce(np.ones(2_000_000, np.float32))
    rounds.timeout = SECONDS
    rounds.close()
    other[0].close()


@pytest.mark.usefixtures("leaks")
def test_a_call_after_the_end_is_an_error(engine: str) -> None:
    rounds = tcp_rounds(0, {}, RoundSpec(FiringRule(1), 1), engine=engine)
    rounds.close(agreed=True)
    for call in (lambda: rounds.all_reduce(np.ones(1, np.float32)), lambda: list(rounds.drain())):
        with pytest.raises(RunError, match="rank 0 has closed its partial all-reduces"):
            call()


@pytest.mark.usefixtures("leaks")
def test_a_message_of_another_version_ends_the_wait_in_an_error(engine: str) -> None:
    own, other = pairs(2)
    rounds = tcp_rounds(0, own, RoundSpec(FiringRule(2, "full"), 1), timeout=SECONDS, engine=engine)
    other[0].send(b"\xff" * 64)
    with pytest.raises(RankFailedError):
        rounds.all_reduce(np.ones(1, np.float32))
    rounds.close()
    other[0].close()


@pytest.mark.usefixtures("leaks")
def test_many_wake_ups_do_not_block_a_rank_whose_thread_is_busy() -> None:
    rounds = tcp_rounds(0, {}, RoundSpec(FiringRule(1), 1), engine="python")
    with rounds._changed:
        # The thread waits for the lock: nobody takes these bytes.
        for _ in range(100_000):
            rounds._wake()
    assert rounds.all_reduce(np.ones(1, np.float32)).accepted
    rounds.close(agreed=True)


@pytest.mark.usefixtures("leaks")
def test_a_system_without_file_descriptors_is_an_error() -> None:
    if build.load_engine() is None:
        pytest.skip("the native engine cannot be compiled here")
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # Whatever is open stays so; nothing more can be opened.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(RunError, match="cannot start a thread for partial all-reduces"):
            tcp_rounds(0, {}, RoundSpec(FiringRule(1), 1), engine="native")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("leaks")
def test_a_silent_stranger_does_not_keep_a_rank_from_connecting(monkeypatch) -> None:
    monkeypatch.setattr("deeppool.execution.transports.tcp_peers._HANDSHAKE", 2.0)
    ranks = [Peers(rank, "127.0.0.1", b"secret", timeout=SECONDS) for rank in range(2)]
    with socket.create_connection(ranks[0].address), ThreadPoolExecutor(2) as pool:
        connected = list(pool.map(lambda each: each.connect([rank.address for rank in ranks]), ranks))
    for peers in connected:
        for each in peers.values():
            each.close()


@pytest.mark.usefixtures("leaks")
def test_a_rank_that_ended_before_it_accepted_is_named() -> None:
    gone, left = (Peers(rank, "127.0.0.1", b"secret") for rank in range(2))
    gone._server.close()
    with pytest.raises(RunError, match=r"rank 1 cannot connect to rank 0 at 127.0.0.1:\d+: .*refused"):
        left.connect([gone.address, left.address])


@pytest.mark.usefixtures("leaks")
def test_a_rank_that_was_stopped_before_it_accepted_is_named_after_the_timeout() -> None:
    # The system accepts for it, and nothing answers.
    stopped, left = Peers(0, "127.0.0.1", b"secret"), Peers(1, "127.0.0.1", b"secret", timeout=0.1)
    with pytest.raises(RunError, match=r"rank 1 cannot connect to rank 0 at 127.0.0.1:\d+"):
        left.connect([stopped.address, left.address])
    stopped._server.close()
