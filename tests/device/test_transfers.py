"""Copies between host and device: on a GPU from and to pinned memory, so that the host waits for no earlier work."""

import threading
from typing import Any

import pytest
import torch

from deeppool.device.cuda import CudaDevice
from deeppool.device.emulated.device import EmulatedDevice
from deeppool.device.find import find_device
from deeppool.device.protocol import Device

GPU = torch.device("cuda", 1)


class HostTensor:
    """Records what is called on a tensor of the host."""

    device = torch.device("cpu")

    def __init__(self, pinned: bool = False) -> None:
        self.calls: list[Any] = []
        self._pinned = pinned

    def is_pinned(self) -> bool:
        return self._pinned

    def pin_memory(self) -> "HostTensor":
        self.calls.append("pin")
        copy = HostTensor(pinned=True)
        copy.calls = self.calls
        return copy

    def to(self, place: torch.device, *, non_blocking: bool) -> "HostTensor":
        self.calls.append((self._pinned, place, non_blocking))
        return self


@pytest.mark.parametrize("pinned", [False, True])
def test_a_gpu_reads_samples_from_pinned_memory_without_blocking(pinned: bool) -> None:
    source = HostTensor(pinned)
    CudaDevice.__new__(CudaDevice).send(source, GPU)  # type: ignore[arg-type]
    assert source.calls == ["pin"] * (not pinned) + [(True, GPU, True)]


def test_a_gpus_tensor_is_copied_to_pinned_memory_and_only_the_copy_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    class Event:
        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait")

    class Pinned:
        def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> None:
            calls.append(("copy", non_blocking))

    def empty_like(source: torch.Tensor, **choices: Any) -> Pinned:
        calls.append(choices)
        return Pinned()

    monkeypatch.setattr(torch, "empty_like", empty_like)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    copied = CudaDevice.__new__(CudaDevice).fetch(torch.ones(2))
    assert calls == [{"device": "cpu", "pin_memory": True}, ("copy", True), "record"]
    assert isinstance(copied(), Pinned)
    assert calls[3:] == ["wait"]


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return find_device(request.param)


def test_what_is_sent_and_fetched_has_the_values_of_the_moment(device: Device) -> None:
    source = torch.arange(6.0).reshape(2, 3)
    with device.stream("high").current():
        sent = device.send(source, device.torch_device()) if device.asynchronous else source.clone()
        fetched = device.fetch(sent)
        sent.zero_()
    assert torch.equal(torch.as_tensor(fetched()) + 0, torch.arange(6.0).reshape(2, 3))


def test_a_copy_is_there_before_later_work_is_done() -> None:
    device = find_device("emulated")
    assert isinstance(device, EmulatedDevice)
    may_end = threading.Event()
    with device.stream("high").current():
        x = device.send(torch.ones(3), device.torch_device())
        fetched = device.fetch(x)
        device.runtime.launch("later work", (), (), may_end.wait)
        end = device.stamp()
        assert float(fetched().sum()) == 3.0
        assert not device.passed(end)
        may_end.set()
    device.synchronize()
