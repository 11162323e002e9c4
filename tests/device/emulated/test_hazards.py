"""A missing wait is found on the emulated device whatever the threads did, one test for each kind of edge."""

from collections.abc import Iterator

import pytest
import torch

from deeppool.device.emulated.device import EmulatedDevice
from deeppool.device.emulated.hazards import HazardError
from deeppool.device.find import find_device
from deeppool.device.protocol import Stream

SIZE = 64


@pytest.fixture
def device(kind: str) -> Iterator[EmulatedDevice]:
    found = find_device(kind)
    assert isinstance(found, EmulatedDevice)
    yield found
    found.synchronize()


@pytest.fixture
def streams(device: EmulatedDevice) -> tuple[Stream, Stream]:
    device.synchronize()
    return device.stream("high"), device.stream("low")


class Done:
    """Communication that is complete."""

    def wait(self) -> None: ...


def ones(device: EmulatedDevice) -> torch.Tensor:
    made = torch.ones(SIZE, SIZE, device=device.torch_device())
    device.synchronize()
    return made


def test_a_stream_that_reads_what_another_wrote_names_both_operators(
    device: EmulatedDevice, streams: tuple[Stream, Stream]
) -> None:
    value = ones(device)
    streams[0].launch(lambda: value.mul_(2))
    with pytest.raises(HazardError, match=r"sum on stream \d+ reads memory that was written by mul_.Tensor on stream"):
        streams[1].launch(value.sum)


def test_a_stream_that_overwrites_what_another_reads(device: EmulatedDevice, streams: tuple[Stream, Stream]) -> None:
    value, kept = ones(device), []
    streams[0].launch(lambda: kept.append(value + 1))
    with pytest.raises(HazardError, match=r"zero_ on stream \d+ writes memory that was read by add.Tensor on stream"):
        streams[1].launch(value.zero_)


def test_two_streams_may_read(device: EmulatedDevice, streams: tuple[Stream, Stream]) -> None:
    value, kept = ones(device), []
    for stream in streams:
        stream.launch(lambda: kept.append(value + 1))
    device.synchronize()
    assert [float(x.mean()) for x in kept] == [2.0, 2.0]


def test_a_view_is_the_memory_of_its_base(device: EmulatedDevice, streams: tuple[Stream, Stream]) -> None:
    value = ones(device)
    streams[0].launch(value.view(-1)[:3].zero_)
    with pytest.raises(HazardError, match="zero_"):
        streams[1].launch(value.sum)


def test_statistics_that_batch_norm_updates_are_written(device: EmulatedDevice, streams: tuple[Stream, Stream]) -> None:
    norm, data = torch.nn.BatchNorm1d(SIZE).to(device.torch_device()), ones(device)
    streams[0].launch(lambda: norm(data))
    with pytest.raises(HazardError, match="native_batch_norm"):
        streams[1].launch(norm.running_mean.sum)


def test_an_event_orders_only_what_came_before_it(device: EmulatedDevice, streams: tuple[Stream, Stream]) -> None:
    first, second = ones(device), ones(device)
    launch = streams[0].launch(lambda: first.mul_(2))
    streams[0].launch(lambda: second.mul_(2))
    runtime = device.runtime
    with streams[1].current():
        runtime.wait(runtime.stream, launch.end)
        assert float(first.mean()) == 2.0
        # Reading it has waited for this stream, which saw nothing of the second launch.
        with pytest.raises(HazardError, match=r"mul_.Tensor on stream"):
            second.sum()


@pytest.mark.parametrize("waits", [True, False])
def test_work_after_a_stream_without_a_wait_for_it(
    device: EmulatedDevice, streams: tuple[Stream, Stream], waits: bool
) -> None:
    value = ones(device)
    if waits:
        with streams[0].current():
            value.mul_(3)
        assert float(value.mean()) == 3.0
    else:
        streams[0].launch(lambda: value.mul_(3))
        with pytest.raises(HazardError, match=r"mean on stream \d+ reads memory that was written by mul_"):
            value.mean()


def test_the_host_may_use_what_it_has_seen_passed(device: EmulatedDevice, streams: tuple[Stream, Stream]) -> None:
    value = ones(device)
    launch = streams[0].launch(lambda: value.mul_(2))
    while not launch.done():
        pass
    with streams[1].current():
        assert float(value.mean()) == 2.0


def test_a_copy_to_the_host_that_nobody_waited_for(device: EmulatedDevice) -> None:
    value = ones(device)
    copied = value.to("cpu", non_blocking=True)
    with pytest.raises(HazardError, match="on the host reads memory that copy to the host on stream 0"):
        copied.sum()
    device.synchronize()
    assert float(copied.sum()) == SIZE * SIZE


def test_memory_that_is_used_again_while_another_stream_reads_it(
    device: EmulatedDevice, streams: tuple[Stream, Stream]
) -> None:
    value = ones(device)
    kept = []

    def double(held: torch.Tensor = value) -> None:
        kept.append(held * 2)

    streams[1].launch(double)
    # The block returns to the pool of the stream that allocated it, whose next tensor takes it.
    del value, double
    with pytest.raises(HazardError, match=r"fill_.Scalar on stream \d+ writes memory that was read by mul.Tensor"):
        kept.extend(torch.ones(SIZE, SIZE, device=device.torch_device()) for _ in range(8))


def test_a_graph_is_replayed_on_a_stream_that_does_not_wait(
    device: EmulatedDevice, streams: tuple[Stream, Stream]
) -> None:
    value = ones(device)
    (graph,) = device.repeatable(lambda: value.add_(1))
    device.synchronize()
    streams[0].launch(graph)
    with pytest.raises(HazardError, match=r"add_.Tensor on stream \d+ writes memory that was written by add_.Tensor"):
        streams[1].launch(graph)


@pytest.mark.parametrize(("receives", "reads"), [(True, True), (True, False), (False, False)])
def test_memory_of_a_collective_before_its_wait(device: EmulatedDevice, receives: bool, reads: bool) -> None:
    value = ones(device)
    transfer = device.transfer([value[:2]] if receives else [], [] if receives else [value[:2]])
    (work,) = transfer.started([Done()])
    value[2:].zero_()
    with pytest.raises(HazardError, match="memory that a communication"):
        value.sum() if reads else value.zero_()
    work.wait()
    assert float(value.sum()) == 2 * SIZE


def test_sending_may_be_read(device: EmulatedDevice) -> None:
    value = ones(device)
    (work,) = device.transfer([], [value]).started([Done()])
    assert float(value.mean()) == 1.0
    work.wait()
