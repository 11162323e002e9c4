"""The current operator and the times of iterations are the device's, however far ahead the host is."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from torch import nn, optim

from deeppool.collocation.pieces import single_stage
from deeppool.execution.communicator import SingleRank
from deeppool.execution.iteration_record import IterationRecord
from deeppool.execution.span_clock import SpanClock
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.training.training_job import Training

TIMEOUT = 300.0


class Gpu:
    """A device that runs behind its host: it has passed the stamps up to ``reached``, one second apart."""

    asynchronous = True

    def __init__(self) -> None:
        self.stamps = 0
        self.reached = -1
        self.awaited, self.moved = threading.Event(), threading.Event()

    def synchronize_stream(self) -> None:
        """Does nothing: no test depends on how the clocks are related."""

    def named_range(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def stamp(self) -> int:
        self.stamps += 1
        return self.stamps - 1

    def passed(self, stamp: int) -> bool:
        return stamp <= self.reached

    def await_stamp(self, stamp: int) -> None:
        self.awaited.set()
        while not self.passed(stamp):
            assert self.moved.wait(TIMEOUT)

    def seconds(self, earlier: int, later: int) -> float:
        return float(later - earlier)


def make_trainer() -> Trainer:
    captured = capture(nn.Linear(4, 3), (4,))
    rule = Training(optimizer=lambda named: optim.SGD(named, lr=0.1))
    return Trainer(captured, single_stage(captured, 2), SingleRank(), rule)


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def trainer(gpu: Gpu) -> Iterator[Trainer]:
    """A trainer whose device is the GPU, which has related its clock to the host's; its stamps are counted from 0."""
    trainer = make_trainer()
    trainer.device, trainer.clock = gpu, SpanClock(gpu)
    trainer.follow_device()
    trainer.clock.calibrate()
    gpu.stamps = 0
    yield trainer
    trainer.close()


def launch(trainer: Trainer, *kinds: str) -> None:
    trainer.recorded = []
    for kind in kinds:
        with trainer.span(kind, 0, kind):
            pass


ITERATION = ("forward", "sync", "update")


def test_an_operator_runs_between_its_two_stamps(trainer: Trainer, gpu: Gpu) -> None:
    launch(trainer, *ITERATION)
    seen = []
    for gpu.reached in range(-1, 6):
        seen.append(trainer.running)
    # Between two stamps of different operators the device runs none.
    assert seen == [None, ("forward", 0), None, ("sync", 0), None, ("update", 0), None]


def test_an_operator_that_the_host_is_still_launching_runs_after_its_first_stamp(trainer: Trainer, gpu: Gpu) -> None:
    with trainer.span("backward", 0, "backward"):
        assert trainer.running is None
        gpu.reached = 0
        assert trainer.running == ("backward", 0)


def lap(record: IterationRecord, trainer: Trainer, *kinds: str) -> Any:
    """Launches an iteration and ends it."""
    launch(trainer, *kinds)
    record.lap()
    return record.next_times()


TIMES = 7.0, {("forward", 0): 1.0, ("sync", 0): 1.0, ("update", 0): 1.0}
"""Of an iteration: seven stamps, one second apart, are before its own end."""


def test_times_of_an_iteration_are_read_when_the_next_one_is_launched_without_waiting_for_that(
    trainer: Trainer, gpu: Gpu
) -> None:
    record = IterationRecord(trainer)
    assert record.next_times() is None
    assert lap(record, trainer, *ITERATION) is None
    # The device has reached the end of the first iteration, stamp 7, and computes the second.
    gpu.reached = 8
    assert lap(record, trainer, *ITERATION) == TIMES
    gpu.reached = gpu.stamps
    assert lap(record, trainer, *ITERATION) == TIMES
    gpu.reached = gpu.stamps
    assert record.next_times(last=True) == TIMES
    assert record.next_times(last=True) is None
    assert record.seconds() == [7.0] * 3


def test_an_iteration_that_the_device_has_not_computed_is_waited_for(trainer: Trainer, gpu: Gpu) -> None:
    record = IterationRecord(trainer)
    lap(record, trainer, *ITERATION)
    gpu.reached = 6
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(lap(record, trainer, *ITERATION)))
    thread.start()
    assert gpu.awaited.wait(TIMEOUT)
    assert found == [], "the first iteration has not ended"
    gpu.reached = 7
    gpu.moved.set()
    thread.join(TIMEOUT)
    assert found == [TIMES]


def test_parts_of_one_operator_add_up(trainer: Trainer, gpu: Gpu) -> None:
    record = IterationRecord(trainer)
    lap(record, trainer, "forward", "forward", "backward")
    gpu.reached = gpu.stamps
    assert record.next_times(last=True) == (7.0, {("forward", 0): 2.0, ("backward", 0): 1.0})


def test_iterations_before_the_record_do_not_count(trainer: Trainer, gpu: Gpu) -> None:
    launch(trainer, "forward")
    record = IterationRecord(trainer)
    lap(record, trainer, "backward")
    gpu.reached = gpu.stamps
    assert record.next_times(last=True) == (3.0, {("backward", 0): 1.0})


@pytest.mark.parametrize("reads", [False, True])
def test_on_a_cpu_the_host_is_the_device(reads: bool) -> None:
    trainer = make_trainer()
    trainer.follow_device()
    record = IterationRecord(trainer)
    assert trainer.running is None
    with trainer.span("forward", 0, "forward"):
        assert not reads or trainer.running == ("forward", 0)
    assert trainer.running is None
    record.lap()
    seconds, times = record.next_times() or (0.0, {})
    assert 0 < times["forward", 0] <= seconds
    trainer.close()
