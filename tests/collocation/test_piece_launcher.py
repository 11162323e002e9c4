"""Pieces are launched in order and behind the gate, without waiting for one before the next."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from deeppool.base.sharing import Sharing
from deeppool.collocation.piece_launcher import MAX_QUEUED_SECONDS, LaunchedPiece, PieceLauncher, time_pieces
from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import cuda_problem
from deeppool.device.find import find_device
from deeppool.device.protocol import Launch
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate

TIMEOUT = 30.0


class Queue:
    """A stream that runs work asynchronously, as a GPU does: one thread, first in, first out."""

    priority = "low"

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.given = threading.Semaphore(0)
        self.count = 0

    def launch(self, work: Callable[[], None]) -> Launch:
        self.count += 1
        self.given.release()
        return Launch(self, None, self.thread.submit(work))

    def passed(self, stamp: Future[None]) -> bool:
        return stamp.done()

    def seconds(self, start: None, end: Future[None]) -> float:
        return 1e-3


class Timer:
    """A stream that runs work at once and reports the given seconds."""

    priority = "low"

    def __init__(self, times: list[float]) -> None:
        self.times = iter(times)

    def launch(self, work: Callable[[], None]) -> Launch:
        work()
        return Launch(self, None, next(self.times))

    def passed(self, stamp: float) -> bool:
        return True

    def seconds(self, start: None, end: float) -> float:
        return end


class Foreground:
    """What the launcher sees of one; a test waits until the launcher has looked again."""

    def __init__(self, limits: BackgroundLimits = FREE, doing: Operator | None = None) -> None:
        self.limits, self.doing = limits, doing
        self.reads = threading.Semaphore(0)

    def __call__(self) -> tuple[BackgroundLimits, Operator | None]:
        self.reads.release()
        return self.limits, self.doing

    def wait_for_looks(self, count: int) -> None:
        while self.reads.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.reads.acquire(timeout=TIMEOUT)


@pytest.mark.parametrize("kind", ["cpu", "queue"])
def test_pieces_run_in_order_and_every_launch_is_counted(kind: str) -> None:
    done: list[int] = []
    enough = threading.Event()

    def work(number: int) -> None:
        done.append(number)
        if len(done) >= 50:
            enough.set()

    stream: Any = Queue() if kind == "queue" else CpuDevice().stream("low")
    launcher = PieceLauncher(stream, Gate(Sharing(pieces=3)), Foreground())
    with launcher.running([LaunchedPiece(lambda number=number: work(number), 1e-6) for number in range(3)]):
        assert enough.wait(TIMEOUT)
    assert launcher.error is None
    assert launcher.finished == len(done) >= 50
    assert done == [number % 3 for number in range(len(done))]
    assert launcher.seconds > 0


def test_no_more_pieces_are_in_flight_than_the_limit_and_the_next_follows_when_one_ends() -> None:
    queue, foreground, ends = Queue(), Foreground(), threading.Semaphore(0)
    launcher = PieceLauncher(queue, Gate(Sharing(pieces=2)), foreground)
    with launcher.running([LaunchedPiece(lambda: assert_(ends.acquire(timeout=TIMEOUT)), 1e-3)]):
        for expected in range(2, 6):
            for _ in range(2 if expected == 2 else 1):
                assert queue.given.acquire(timeout=TIMEOUT)
            foreground.wait_for_looks(20)
            assert queue.count == expected, "a piece was launched beyond the limit"
            ends.release()
        ends.release(100)
    assert launcher.finished == queue.count
    assert launcher.error is None


@pytest.mark.parametrize(("seconds", "most"), [(MAX_QUEUED_SECONDS / 8, 8), (1.0, 2)])
def test_without_a_limit_the_device_queue_is_bounded_too(seconds: float, most: int) -> None:
    queue, foreground, ends = Queue(), Foreground(), threading.Semaphore(0)
    launcher = PieceLauncher(queue, Gate(Sharing(priority="normal")), foreground)
    with launcher.running([LaunchedPiece(lambda: assert_(ends.acquire(timeout=TIMEOUT)), seconds)]):
        for _ in range(most):
            assert queue.given.acquire(timeout=TIMEOUT)
        foreground.wait_for_looks(20)
        assert queue.count == most
        ends.release()
        assert queue.given.acquire(timeout=TIMEOUT)
        foreground.wait_for_looks(20)
        assert queue.count == most + 1
        ends.release(100)
    assert launcher.finished == queue.count
    assert launcher.error is None


def test_nothing_is_launched_beside_a_banned_operator() -> None:
    queue = Queue()
    banned = ("sync", 3)
    foreground = Foreground(BackgroundLimits(open=True, share=1.0, banned=frozenset({banned})), doing=banned)
    launcher = PieceLauncher(queue, Gate(Sharing(feedback=0.1)), foreground)
    with launcher.running([LaunchedPiece(lambda: None, 1e-3)]):
        foreground.wait_for_looks(20)
        assert queue.count == 0
        foreground.doing = ("forward", 3)
        assert queue.given.acquire(timeout=TIMEOUT)


def test_a_launcher_behind_a_closed_gate_stops() -> None:
    foreground = Foreground(BackgroundLimits(open=False, share=1.0, banned=frozenset()))
    launcher = PieceLauncher(CpuDevice().stream("low"), Gate(Sharing()), foreground)
    with launcher.running([LaunchedPiece(lambda: None, 1e-3)]):
        foreground.wait_for_looks(3)
    assert (launcher.finished, launcher.error) == (0, None)


def test_a_piece_that_fails_ends_the_launcher_and_not_the_foreground() -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise RuntimeError("out of memory")

    launcher = PieceLauncher(CpuDevice().stream("low"), Gate(Sharing()), Foreground())
    with launcher.running([LaunchedPiece(lambda: None, 1e-3), LaunchedPiece(fail, 1e-3)]):
        assert failed.wait(TIMEOUT)
    assert str(launcher.error) == "out of memory"
    assert not any(thread.name == "deeppool background" for thread in threading.enumerate())


def test_a_piece_is_expected_to_take_the_median_of_its_own_times() -> None:
    steps = [(9.0, 70.0), (2.0, 60.0), (3.0, 50.0), (1.0, 500.0), (2.0, 40.0)]  # the first time is a cold one
    done: list[str] = []
    works = [lambda: done.append("short"), lambda: done.append("long")]
    pieces = time_pieces(works, Timer([seconds for step in steps for seconds in step]), CpuDevice())
    assert [piece.expected for piece in pieces] == [2.0, 60.0]
    assert [piece.work for piece in pieces] == works
    assert done == ["short", "long"] * len(steps)


@pytest.mark.gpu
@pytest.mark.skipif(cuda_problem() is not None, reason=f"needs a CUDA device: {cuda_problem()}")
def test_graphs_beside_a_foreground_do_all_their_work() -> None:
    device = find_device("cuda")
    stream, count = device.stream("low"), torch.zeros((), device="cuda")
    a = torch.randn(1024, 1024, device="cuda")

    def work() -> None:
        torch.matmul(a, a)
        count.add_(1)

    with stream.current():
        (graph,) = device.repeatable(work)
    pieces = time_pieces([graph], stream, device)
    device.synchronize()
    before = float(count)
    launcher = PieceLauncher(stream, Gate(Sharing(pieces=2, in_flight=1e-3)), Foreground())
    with launcher.running(pieces), device.stream("high").current():
        for _ in range(100):
            float((a @ a).sum())
    assert launcher.error is None
    assert float(count) - before == launcher.finished > 0


def assert_(true: bool) -> None:
    assert true
