"""The current operator of a foreground is its device's, however far ahead the host is."""

import threading

import pytest

from deeppool.collocation.foreground_phases import ForegroundPhases
from deeppool.device.cpu import CpuDevice

TIMEOUT = 30.0


class Gpu:
    """A device that runs behind its host: it has passed the stamps up to ``reached``, one second apart."""

    def __init__(self) -> None:
        self.stamps = 0
        self.reached = -1
        self.polled = threading.Semaphore(0)

    def stamp(self) -> int:
        self.stamps += 1
        return self.stamps - 1

    def passed(self, stamp: int) -> bool:
        self.polled.release()
        return stamp <= self.reached

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


def test_times_are_the_devices_and_include_its_last_operator() -> None:
    gpu = Gpu()
    phases = launch(gpu, *ITERATION, ("forward", 0))
    gpu.reached = 5
    found = []
    thread = threading.Thread(target=lambda: found.append(dict(phases.times())))
    thread.start()
    for _ in range(20):
        assert gpu.polled.acquire(timeout=TIMEOUT)
    assert found == [], "the last operator has not ended"
    gpu.reached = 7
    thread.join(TIMEOUT)
    assert found == [{("forward", 0): 2.0, ("sync", 0): 1.0, ("update", 0): 1.0}]
    assert phases.times() == {}


def test_a_foreground_that_waits_for_others_is_not_busy() -> None:
    gpu = Gpu()
    phases = launch(gpu, *ITERATION)
    gpu.reached = 5
    assert phases.busy() == 2.0


@pytest.mark.parametrize("reads", [False, True])
def test_on_a_cpu_the_host_is_the_device(reads: bool) -> None:
    phases = ForegroundPhases(CpuDevice())
    assert phases.doing is None
    phases.begin("forward", 1)
    assert not reads or phases.doing == ("forward", 1)
    phases.end()
    assert phases.doing is None
    assert phases.times()["forward", 1] == phases.busy() > 0
