"""A wait ends some seconds after the latest of several events, by the host's clock or by the GPU's."""

import enum
import importlib.util

import pytest
import torch

from deeppool.device.cuda_event_times import CAPACITY, _checked, compile_kernels
from deeppool.device.event_times import EventTimes, HostEventTimes
from deeppool.device.find import find_device
from deeppool.errors import DeviceUnavailableError
from deeppool.processes.shared_page import STAGES
from tests.device.host_clock import HostClock


def test_a_wait_ends_after_the_latest_of_its_events_and_can_be_an_event_itself() -> None:
    clock = HostClock()
    times: EventTimes = HostEventTimes(clock=clock, wait_until=clock.wait_until)
    times.mark("first")
    clock.now = 101.0
    times.mark("second")
    assert times.when({"first": 3.0, "second": 1.0}) == 103.0
    times.wait({"first": 3.0, "second": 1.0}, reached="third")
    assert clock.now == 103.0
    times.wait({"first": 0.5}, reached="past")
    assert clock.now == 103.0
    assert times.when({"third": 1.0}) == 104.0
    assert times.when({"past": 0.0}) == 100.5


def test_an_event_happens_when_the_device_has_done_what_was_before_it() -> None:
    clock = HostClock()
    HostEventTimes(lambda: clock.wait_until(102.0), clock=clock, wait_until=clock.wait_until).mark("end")
    assert clock.now == 102.0


def test_a_gpu_keeps_the_times_of_the_deepest_plan() -> None:
    # Kernels write a time without looking how many there are: the start, and two passes of each stage.
    assert CAPACITY >= 1 + 2 * STAGES


@pytest.mark.skipif(importlib.util.find_spec("cuda") is not None, reason="cuda-bindings may be installed")
def test_a_missing_compiler_is_named() -> None:
    with pytest.raises(DeviceUnavailableError, match=r"needs cuda-bindings, .* \(pip install cuda-bindings\)"):
        compile_kernels("compute_90")


def test_what_the_driver_refuses_is_named() -> None:
    class Status(enum.IntEnum):
        CUDA_SUCCESS = 0
        CUDA_ERROR_INVALID_PTX = 218

    assert _checked((Status.CUDA_SUCCESS, "module")) == "module"
    assert _checked((Status.CUDA_SUCCESS,)) is None
    with pytest.raises(DeviceUnavailableError, match="by its own clock: CUDA_ERROR_INVALID_PTX"):
        _checked((Status.CUDA_ERROR_INVALID_PTX, None))


@pytest.mark.gpu
def test_a_gpu_waits_by_itself_while_its_host_goes_on() -> None:
    device = find_device("cuda")
    times = device.event_times()
    wait, earlier = 0.05, 0.02
    with device.stream("high").current():
        # The first launch of each kernel loads it.
        times.mark("start")
        times.wait({"start": 0.0})
        device.synchronize()
        times.mark("start")
        stamps = [device.stamp()]
        times.wait({"start": earlier}, reached="then")
        stamps.append(device.stamp())
        times.wait({"start": 0.0, "then": wait - earlier})
        stamps.append(device.stamp())
        times.wait({"start": earlier})
        stamps.append(device.stamp())
        assert not device.passed(stamps[1]), "the host has waited"
        device.synchronize()
    first, second, third = (device.seconds(stamps[0], stamp) for stamp in stamps[1:])
    # The GPU's two clocks may differ by a millionth of a second.
    assert earlier - 1e-5 < first < earlier + 1e-3
    assert wait - 1e-5 < second < wait + 1e-3
    assert third - second < 1e-3
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
