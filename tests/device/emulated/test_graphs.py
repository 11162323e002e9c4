"""Graphs of the emulated device: captured without running, replayed at fixed addresses."""

import pytest
import torch

from deeppool.device.emulated.device import new_device
from deeppool.device.find import find_device
from deeppool.device.multiprocessors import KernelWork


def test_a_replay_reads_and_writes_the_memory_of_its_capture(kind: str) -> None:
    device = find_device(kind)
    source = torch.ones(3, device=device.torch_device())
    made = []
    (graph,) = device.repeatable(lambda: made.append((source * 2).view(3, 1)))
    result = made[-1]
    graph()
    assert result.tolist() == [[2.0]] * 3
    source.fill_(5)
    assert result.tolist() == [[2.0]] * 3
    graph()
    assert result.tolist() == [[10.0]] * 3


def test_a_capture_computes_nothing(kind: str) -> None:
    device = find_device(kind)
    count = torch.zeros(1, device=device.torch_device())
    runs = []

    def work() -> None:
        runs.append(None)
        count.add_(1)

    (graph,) = device.repeatable(work)
    warm_ups = len(runs) - 1
    assert count.tolist() == [warm_ups]
    for _ in range(3):
        graph()
    assert count.tolist() == [warm_ups + 3]
    assert len(runs) == warm_ups + 1


def test_free_memory_is_given_back_where_it_is_short_but_not_that_of_graphs(kind: str) -> None:
    device = find_device(kind)
    place, size = device.torch_device(), 3 * 2**20
    kept = torch.zeros(1, device=place)

    def work() -> None:
        kept.add_(torch.ones(size, dtype=torch.uint8, device=place).sum())

    (replay,) = device.repeatable(work)
    freed = torch.zeros(2 * size, dtype=torch.uint8, device=place)
    reserved = device.reserved_memory()
    del freed
    device.limit_memory(reserved)
    try:
        # Two blocks of another size, in place of the one that is free.
        blocks = [torch.zeros(size, dtype=torch.uint8, device=place) for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(size, dtype=torch.uint8, device=place)
    finally:
        device.limit_memory(None)
    replay()
    assert len(blocks) == 2


def test_graphs_of_one_call_share_memory(kind: str) -> None:
    """What one frees is overwritten when another runs, as CUDA's pool does it."""
    device = find_device(kind)
    source = torch.ones(256, device=device.torch_device())
    made = []
    first, second = device.repeatable(lambda: made.append((source + 1).sum()), lambda: made.append((source * 7).sum()))
    before = device.memory_use()[0]
    for graph in (first, second, first):
        graph()
    assert device.memory_use()[0] == before
    assert [x.item() for x in made[-2:]] == [512.0, 1792.0]


def test_the_host_cannot_read_while_a_graph_is_captured(kind: str) -> None:
    device = find_device(kind)
    value = torch.ones(3, device=device.torch_device())
    runs = []

    def work() -> None:
        runs.append(None)
        if len(runs) > 1:
            value.sum().item()

    with pytest.raises(RuntimeError, match="cannot wait for the device while a graph is captured"):
        device.repeatable(work)
    assert value.sum().item() == 3.0


def test_stamps_inside_a_graph_are_of_its_last_replay() -> None:
    device = find_device("emulated")
    value = torch.ones(300, 300, device=device.torch_device())
    stamps = []

    def work() -> None:
        stamps.append(device.stamp())
        for _ in range(20):
            value @ value
        stamps.append(device.stamp())

    (graph,) = device.repeatable(work)
    start, end = stamps[-2:]
    times = []
    for _ in range(2):
        graph()
        assert not device.passed(end)
        device.synchronize()
        assert device.passed(end)
        times.append(device.seconds(start, end))
    assert all(time > 0 for time in times)
    assert times[0] != times[1]


@pytest.mark.parametrize("replayed", ["low", "high"])
@pytest.mark.parametrize(("captured", "seconds"), [("high", 2e-3), ("low", 9e-3)])
def test_kernels_of_a_graph_keep_the_priority_of_their_capture(captured: str, replayed: str, seconds: float) -> None:
    """Behind one of eight waves of 1 ms, or behind all; it takes 1 ms itself."""
    device = new_device("h200")
    count = device.runtime.scheduler.multiprocessors.count
    work = {waves: KernelWork(0.0, waves * count, 1e-3) for waves in (1, 8)}
    with device.stream(captured).current():
        (graph,) = device.repeatable(lambda: device.runtime.launch("short", [], [], int, (work[1],)))
    device.synchronize()
    started = device.stamp()
    device.stream("low").launch(lambda: device.runtime.launch("long", [], [], int, (work[8],)))
    launch = device.stream(replayed).launch(graph)
    device.synchronize()
    # Apart from what the host needs for the launches.
    assert device.seconds(started, launch.end) == pytest.approx(seconds, abs=1e-4)
