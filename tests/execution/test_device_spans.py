"""Spans of an iteration are the device's times, where the host has launched a part long before it is computed."""

import threading
import time

import torch

from deeppool.collocation.pieces import single_stage
from deeppool.device.emulated.device import EmulatedDevice
from deeppool.device.find import find_device
from deeppool.execution.communicator import SingleRank
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.placement import place_model
from deeppool.training.training_job import Training

BATCH, FEATURES = 4, 6
TIMEOUT = 300.0


class Blocked:
    """A watcher that keeps the device from a part until the host has launched all of it."""

    def __init__(self, device: EmulatedDevice, part: str) -> None:
        self._runtime, self._part = device.runtime, part
        self._launched = threading.Event()
        self.launched_at = 0.0

    def begin(self, kind: str, stage: int) -> None:
        if kind == self._part:
            self._runtime.launch("wait for the test", (), (), self._launched.wait)

    def end(self) -> None:
        self.launched_at = self.launched_at or time.perf_counter()
        self._launched.set()


class BlockedBackward:
    """A watcher that keeps the device from a backward until the host has done all of the iteration."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._runtime = device.runtime
        self.released = threading.Event()
        self.in_time: list[bool] = []

    def begin(self, kind: str, stage: int) -> None:
        if kind == "backward":
            self._runtime.launch("wait", (), (), lambda: self.in_time.append(self.released.wait(TIMEOUT)))

    def end(self) -> None:
        pass


def captured_model(place: torch.device) -> CapturedModel:
    torch.manual_seed(0)
    return place_model(capture(torch.nn.Linear(FEATURES, 3), (FEATURES,)), place)


def test_a_span_lies_where_the_device_computes() -> None:
    device = find_device("emulated")
    assert isinstance(device, EmulatedDevice)
    captured = captured_model(device.torch_device())
    rule = Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    trainer = Trainer(captured, single_stage(captured, BATCH), SingleRank(), rule)
    data = [x.to(device.torch_device()) for x in (torch.randn(BATCH, FEATURES), torch.zeros(BATCH, dtype=torch.int64))]
    trainer.iterate([lambda _: tuple(data)])
    trainer.watcher = watcher = Blocked(device, "forward")
    trainer.iterate([lambda _: tuple(data)])
    spans = {kind: (start, end) for kind, _, _, start, end in trainer.spans}
    assert set(spans) == {"forward", "backward", "update"}
    assert watcher.launched_at < spans["forward"][0] <= spans["forward"][1]
    assert spans["forward"][1] <= spans["backward"][0] <= spans["backward"][1] <= spans["update"][0]
    # By the same clock: on a busy machine the host's may be related to the device's a millisecond late.
    after = trainer.clock.now()
    device.synchronize_stream()
    assert spans["update"][1] <= trainer.clock.seconds(after)


def test_an_iteration_is_launched_as_a_whole_while_the_device_is_in_its_backward() -> None:
    """The host waits for the loss alone, so the device has the update, and the next iteration, when it gets there."""
    device = find_device("emulated")
    assert isinstance(device, EmulatedDevice)
    captured = captured_model(device.torch_device())
    rule = Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    with device.stream("high").current():
        trainer = Trainer(captured, single_stage(captured, BATCH), SingleRank(), rule)
        # On the host, as a reader of data gives it.
        data = torch.randn(BATCH, FEATURES), torch.zeros(BATCH, dtype=torch.int64)
        expected = trainer.iterate([lambda _: data])
        trainer.watcher = watcher = BlockedBackward(device)
        loss = trainer.iterate([lambda _: data])
        end = device.stamp()
        assert not device.passed(end)
        assert 0 < loss < expected
        watcher.released.set()
        device.synchronize_stream()
    assert watcher.in_time == [True]
