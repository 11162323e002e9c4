"""The project's own waits, removed one at a time: the detector finds each in a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from deeppool.collectives.layout import Layout
from deeppool.device.emulated.device import EmulatedDevice, EmulatedStream
from deeppool.device.emulated.hazards import HazardError
from deeppool.device.emulated.runtime import DeviceRuntime
from deeppool.device.find import find_device
from deeppool.execution.communicator import CompletedWork, SingleRank
from deeppool.execution.gradient_sync import GradientSync
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.placement import place_model
from deeppool.training.training_job import Training

WIDTH, BATCH = 6, 4


class TwoRanks(SingleRank):
    """Communicator of two ranks, of which the other one contributes zeros."""

    ranks = 2

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__()
        self._device = device

    def group(self, ranks: tuple[int, ...], *, schedules: bool = False) -> "TwoRanks":
        return self

    def all_reduce(self, tensor: torch.Tensor, schedule: object = None) -> object:
        return self._device.transfer([tensor], []).started([CompletedWork()])[0]


def train(kind: str, ranks: tuple[int, ...] = (0, 1)) -> float:
    """Two updates on a stream; returns the sum of the weights, read on the default stream."""
    torch.manual_seed(0)
    device = find_device(kind)
    assert isinstance(device, EmulatedDevice)
    device.synchronize()
    captured = place_model(capture(nn.Linear(WIDTH, WIDTH), (WIDTH,)), device.torch_device())
    stage = Stage("all", tuple(range(len(captured.graph.layers))), Layout(ranks, BATCH))
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1))
    data = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.int64)
    with device.stream("high").current():
        trainer = Trainer(captured, [stage], TwoRanks(device), rule)
        for _ in range(2):
            trainer.iterate([lambda shard: tuple(x[shard.start : shard.stop] for x in data)])
    weights = [parameter.detach().sum() for parameter in captured.program.parameters()]
    return sum(float(weight) for weight in weights)


@contextmanager
def without_the_first_wait(stream: EmulatedStream) -> Iterator[None]:
    runtime = stream._device.runtime
    surrounding = runtime.stream
    with runtime.selected(stream._stream):
        yield
        runtime.wait(surrounding, stream._device.stamp())


@contextmanager
def without_the_last_wait(stream: EmulatedStream) -> Iterator[None]:
    runtime = stream._device.runtime
    runtime.wait(stream._stream, stream._device.stamp())
    with runtime.selected(stream._stream):
        yield


def fetch_without_a_wait(device: EmulatedDevice, source: torch.Tensor) -> Callable[[], torch.Tensor]:
    copy = source.detach().to("cpu", non_blocking=True)
    return lambda: copy


def finish_without_a_wait(sync: GradientSync, bucket: object) -> None:
    sync._in_flight.pop(bucket, None)


def wait_without_an_order(runtime: DeviceRuntime, stream: object, event: object) -> None:
    """An event that is recorded, and nobody waits for."""


PLANTED = {
    "a stream before its first work": (EmulatedStream, "current", without_the_first_wait, "on stream 0"),
    "the work after a stream": (EmulatedStream, "current", without_the_last_wait, "on stream"),
    "an event": (DeviceRuntime, "wait", wait_without_an_order, "on stream"),
    "a copy to the host": (EmulatedDevice, "fetch", fetch_without_a_wait, "on the host reads memory that copy"),
    "a collective": (GradientSync, "finish", finish_without_a_wait, "a communication receives"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_wait_that_is_removed_is_found(planted: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, message = PLANTED[planted]
    monkeypatch.setattr(owner, name, broken)
    # With one rank nothing else waits for the forward.
    ranks = (0,) if name == "fetch" else (0, 1)
    with pytest.raises(HazardError, match=message):
        train(kind, ranks)
    find_device(kind).synchronize()


def test_with_all_waits_there_is_no_hazard_and_the_weights_of_the_cpu(kind: str) -> None:
    found = train(kind)
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(BATCH, WIDTH)[: BATCH // 2], torch.zeros(BATCH // 2, dtype=torch.int64)
    for _ in range(2):
        optimizer.zero_grad()
        # The mean over both ranks' samples, of which the other rank contributes nothing.
        (nn.functional.cross_entropy(model(inputs), targets) / 2).backward()
        optimizer.step()
    assert found == pytest.approx(sum(float(parameter.detach().sum()) for parameter in model.parameters()), rel=1e-5)
