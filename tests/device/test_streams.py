"""Streams: on the CPU the calling thread; on a GPU queues with a priority, which graphs keep from their capture."""

import os
from types import SimpleNamespace

import pytest
import torch

from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import HARDWARE_QUEUES, CudaDevice, all_hardware_queues
from deeppool.device.find import find_device
from deeppool.device.protocol import Device

SIZE = 4096


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return find_device(request.param)


def test_a_launch_is_done_in_order_and_knows_its_seconds(device: Device) -> None:
    place, stream = device.torch_device(), device.stream("low")
    value = torch.ones(SIZE, SIZE, device=place)
    device.synchronize()

    def double() -> None:
        value.mul_(2)

    launches = [stream.launch(double) for _ in range(3)]
    device.synchronize()
    assert all(launch.done() for launch in launches)
    assert all(launch.seconds() > 0 for launch in launches)
    assert bool((value == 8).all())


@pytest.mark.slow
def test_a_stamp_that_was_awaited_has_been_passed(device: Device) -> None:
    value = torch.ones(SIZE, SIZE, device=device.torch_device())
    with device.stream("low").current():
        for _ in range(20):
            value = value @ value if device.kind == "cuda" else value + 1
        stamp = device.stamp()
        device.await_stamp(stamp)
        assert device.passed(stamp)


def test_what_follows_a_stream_sees_what_was_done_in_it(device: Device) -> None:
    value = torch.ones(SIZE, SIZE, device=device.torch_device())
    with device.stream("high").current():
        for _ in range(10):
            value = value + 1
    assert float(value.mean()) == 11


def test_on_a_cpu_a_launch_is_done_when_it_returns() -> None:
    done: list[str] = []
    launch = CpuDevice().stream("high").launch(lambda: done.append("work"))
    assert launch.done()
    assert done == ["work"]


def test_finding_a_device_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HARDWARE_QUEUES, raising=False)
    before = dict(os.environ)
    find_device("cpu")
    find_device("auto")
    assert dict(os.environ) == before


def test_cuda_makes_all_hardware_queues_in_the_block_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HARDWARE_QUEUES, raising=False)
    with all_hardware_queues():
        assert os.environ[HARDWARE_QUEUES] == "32"
    assert HARDWARE_QUEUES not in os.environ
    monkeypatch.setenv(HARDWARE_QUEUES, "1")
    with all_hardware_queues():
        assert os.environ[HARDWARE_QUEUES] == "1"
    assert os.environ[HARDWARE_QUEUES] == "1"


@pytest.mark.gpu
def test_work_in_flight_is_not_done_and_asking_does_not_wait() -> None:
    device = find_device("cuda")
    stream = device.stream("low")
    a = torch.randn(SIZE, SIZE, device="cuda")
    device.synchronize()
    launches = [stream.launch(lambda: torch.matmul(a, a)) for _ in range(100)]
    assert not launches[-1].done()
    device.synchronize()
    assert launches[-1].done()


@pytest.mark.gpu
def test_graphs_are_captured_on_the_current_stream_and_stamps_inside_show_how_far_a_replay_is() -> None:
    device = find_device("cuda")
    stream = device.stream("high")
    a = torch.randn(SIZE, SIZE, device="cuda")
    stamps = []
    captured_on = []

    def work() -> None:
        captured_on.append(torch.cuda.current_stream().priority)
        for _ in range(200):
            torch.matmul(a, a)
        stamps.append(device.stamp())

    with stream.current():
        (graph,) = device.repeatable(work)
    device.synchronize()
    assert set(captured_on) == {torch.cuda.Stream.priority_range()[1]}
    assert torch.cuda.graph.default_capture_stream is None or torch.cuda.graph.default_capture_stream.priority == 0
    launch = stream.launch(graph)
    assert not device.passed(stamps[-1]), "the replay has not got to its stamp yet"
    device.synchronize()
    assert device.passed(stamps[-1])
    assert launch.done()


def test_a_budget_is_a_part_of_the_selected_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have GPUs of several sizes."""
    granted: list[float] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=(80, 40)[index])
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", granted.append)
    device = CudaDevice.__new__(CudaDevice)
    device.memory = 80.0
    for budget in (20.0, 60.0, None):
        device.limit_memory(budget)
    assert granted == [0.5, 1.0]
