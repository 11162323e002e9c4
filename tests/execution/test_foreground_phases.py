"""The current operator of a foreground is its device's, however far ahead the host is."""

import threading
from typing import Any

import pytest

from deeppool.device.cpu import CpuDevice
from deeppool.execution.foreground_phases import ForegroundPhases

TIMEOUT = 300.0


class Gpu:
    """A device that runs behind its host: it has passed the stamps up to ``reached``, one second apart."""

    def __init__(self) -> None:
        self.stamps = 0
        self.reached = -1
        self.awaited, self.moved = threading.Event(), threading.Event()

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


def launch(gpu: Gpu, *operators: tuple[str, int]) -> ForegroundPhases:
    phases = ForegroundPhases(gpu)
    for kind, stage in operators:
        phases.begin(kind, stage)
        phases.end()
    return phases


ITERATION = (("forward", 0), ("sync", 0), ("update", 0))


def test_an_operator_runs_between_its_two_stamps() -> None:
    gpu = Gpu()
    phases = launch(gpu, *ITERATION)
    seen = []
    for gpu.reached in range(-1, 6):
        seen.append(phases.doing)
    # Between two stamps of different operators the device runs none.
    assert seen == [None, ("forward", 0), None, ("sync", 0), None, ("update", 0), None]


def test_an_operator_that_the_host_is_still_launching_runs_after_its_first_stamp() -> None:
    gpu = Gpu()
    phases = ForegroundPhases(gpu)
    phases.begin("backward", 3)
    assert phases.doing is None
    gpu.reached = 0
    assert phases.doing == ("backward", 3)


def lap(phases: ForegroundPhases, *operators: tuple[str, int]) -> Any:
    """Launches an iteration and ends it."""
    for kind, stage in operators:
        phases.begin(kind, stage)
        phases.end()
    return phases.lap()


TIMES = 7.0, {("forward", 0): 1.0, ("sync", 0): 1.0, ("update", 0): 1.0}
"""Of an iteration: seven stamps, one second apart, are before its own end."""


def test_times_of_an_iteration_are_read_when_the_next_one_is_launched_without_waiting_for_that() -> None:
    gpu = Gpu()
    phases = ForegroundPhases(gpu)
    phases.start()
    assert lap(phases, *ITERATION) is None
    # The device has reached the end of the first iteration, stamp 7, and computes the second.
    gpu.reached = 8
    assert lap(phases, *ITERATION) == TIMES
    gpu.reached = gpu.stamps
    assert lap(phases, *ITERATION) == TIMES
    gpu.reached = gpu.stamps
    assert phases.finish() == TIMES
    assert phases.finish() is None


def test_an_iteration_that_the_device_has_not_computed_is_waited_for() -> None:
    gpu = Gpu()
    phases = ForegroundPhases(gpu)
    phases.start()
    lap(phases, *ITERATION)
    gpu.reached = 6
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(lap(phases, *ITERATION)))
    thread.start()
    assert gpu.awaited.wait(TIMEOUT)
    assert found == [], "the first iteration has not ended"
    gpu.reached = 7
    gpu.moved.set()
    thread.join(TIMEOUT)
    assert found == [TIMES]


def test_parts_of_one_operator_add_up() -> None:
    gpu = Gpu()
    phases = ForegroundPhases(gpu)
    phases.start()
    lap(phases, ("forward", 0), ("forward", 0), ("backward", 0))
    gpu.reached = gpu.stamps
    assert phases.finish() == (7.0, {("forward", 0): 2.0, ("backward", 0): 1.0})


def test_iterations_before_the_start_are_forgotten() -> None:
    gpu = Gpu()
    phases = launch(gpu, ("forward", 5))
    phases.start()
    lap(phases, ("forward", 0))
    gpu.reached = gpu.stamps
    assert phases.finish() == (3.0, {("forward", 0): 1.0})


@pytest.mark.parametrize("reads", [False, True])
def test_on_a_cpu_the_host_is_the_device(reads: bool) -> None:
    phases = ForegroundPhases(CpuDevice())
    phases.start()
    assert phases.doing is None
    phases.begin("forward", 1)
    assert not reads or phases.doing == ("forward", 1)
    phases.end()
    assert phases.doing is None
    phases.lap()
    seconds, times = phases.finish() or (0.0, {})
    assert 0 < times["forward", 1] <= seconds
