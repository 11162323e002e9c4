"""What a foreground does now is what its device does, however far ahead its host is."""

import threading

import pytest

from deeppool.collocation.foreground_phases import ForegroundPhases
from deeppool.device.cpu import CpuDevice

PATIENCE = 30.0


class Gpu:
    """A device behind its host: it has done what was given to it up to a stamp. Each stamp is a second later."""

    def __init__(self) -> None:
        self.given = 0
        self.reached = -1
        self.asked = threading.Semaphore(0)

    def stamp(self) -> int:
        self.given += 1
        return self.given - 1

    def passed(self, stamp: int) -> bool:
        self.asked.release()
        return stamp <= self.reached

    def seconds(self, earlier: int, later: int) -> float:
        return float(later - earlier)


def launched(gpu: Gpu, *parts: tuple[str, int]) -> ForegroundPhases:
    phases = ForegroundPhases(gpu)
    for kind, stage in parts:
        phases.begin(kind, stage)
        phases.end()
    return phases


ITERATION = (("forward", 0), ("sync", 0), ("update", 0))


def test_a_part_is_under_way_when_the_device_is_in_it() -> None:
    gpu = Gpu()
    phases = launched(gpu, *ITERATION)
    seen = []
    for gpu.reached in range(-1, 6):
        seen.append(phases.doing)
    # Between two stamps of different parts the device is in none.
    assert seen == [None, ("forward", 0), None, ("sync", 0), None, ("update", 0), None]


def test_a_part_that_the_host_is_still_launching_is_under_way_once_it_has_begun() -> None:
    gpu = Gpu()
    phases = ForegroundPhases(gpu)
    phases.begin("backward", 3)
    assert phases.doing is None
    gpu.reached = 0
    assert phases.doing == ("backward", 3)


def test_times_are_the_devices_and_wait_for_its_last_part() -> None:
    gpu = Gpu()
    phases = launched(gpu, *ITERATION, ("forward", 0))
    gpu.reached = 5
    found = []
    thread = threading.Thread(target=lambda: found.append(dict(phases.times())))
    thread.start()
    for _ in range(20):
        assert gpu.asked.acquire(timeout=PATIENCE)
    assert found == [], "the last part is not over"
    gpu.reached = 7
    thread.join(PATIENCE)
    assert found == [{("forward", 0): 2.0, ("sync", 0): 1.0, ("update", 0): 1.0}]
    assert phases.times() == {}


def test_a_foreground_that_waits_for_others_is_not_busy() -> None:
    gpu = Gpu()
    phases = launched(gpu, *ITERATION)
    gpu.reached = 5
    assert phases.busy() == 2.0


@pytest.mark.parametrize("looks", [False, True])
def test_on_a_cpu_the_host_is_the_device(looks: bool) -> None:
    phases = ForegroundPhases(CpuDevice())
    assert phases.doing is None
    phases.begin("forward", 1)
    assert not looks or phases.doing == ("forward", 1)
    phases.end()
    assert phases.doing is None
    assert phases.times()["forward", 1] == phases.busy() > 0
