"""An emulated GPU in virtual time: launches, streams, graphs and threads take the times of a drawn schedule."""

import threading

import pytest
import torch

from deeppool.base.sharing import Sharing
from deeppool.device.background_stream import background_stream
from deeppool.device.datasheet import find_gpu
from deeppool.device.emulated.device import EmulatedDevice, new_device
from deeppool.device.emulated.hazards import HazardError
from deeppool.device.emulated.kernel_costs import HostCosts
from deeppool.device.emulated.scheduler import Event
from deeppool.device.emulated.virtual_scheduler import VirtualScheduler, VirtualStream
from deeppool.device.find import device_of, find_device
from deeppool.device.kernels import kernels_of
from deeppool.device.multiprocessors import KernelWork
from deeppool.device.roofline import FITTED, Columns
from deeppool.errors import InvalidValueError

FREE = HostCosts(operator=0.0, graph=0.0, node=0.0, query=1e-6)
LONG, SHORT = KernelWork(0.0, blocks=8, block_seconds=4.0), KernelWork(0.0, blocks=2, block_seconds=1.0)


def scheduler_of(multiprocessors: int = 2, queues: int = 32, costs: HostCosts = FREE) -> VirtualScheduler:
    return VirtualScheduler(multiprocessors, 1.0, queues=queues, costs=costs)


def launched(scheduler: VirtualScheduler, stream: VirtualStream, *works: KernelWork) -> Event:
    """Event behind some kernels of a stream."""
    for work in works:
        scheduler.launch(stream, "kernel", lambda: None, (work,))
    event = Event()
    scheduler.record(stream, event)
    return event


def test_a_launch_costs_the_host_and_kernels_of_a_stream_run_in_turn() -> None:
    scheduler = scheduler_of(costs=HostCosts(operator=0.5))
    event = launched(scheduler, scheduler.queue("low"), LONG, SHORT)
    assert scheduler.clock.now() == 1.0
    scheduler.synchronize(event)
    # The first starts when it is launched, at 0.5: four waves of 4 s, then one of 1 s.
    assert event.time == scheduler.clock.now() == 17.5


def test_a_graph_costs_one_launch_and_its_nodes() -> None:
    scheduler = scheduler_of(costs=HostCosts(operator=0.5, graph=0.25, node=0.125))
    stream = scheduler.queue("low")
    with scheduler.graph_launch(stream):
        event = launched(scheduler, stream, SHORT, SHORT)
    assert scheduler.clock.now() == 0.5
    scheduler.synchronize(event)
    assert event.time == pytest.approx(0.375 + 2.0)


def test_a_priority_lets_waiting_blocks_go_first_and_stops_no_running_one() -> None:
    times = {}
    for priority in ("low", "high"):
        scheduler = scheduler_of()
        long, short = scheduler.queue("low"), scheduler.queue(priority)
        behind = launched(scheduler, long, LONG)
        scheduler.clock.sleep(1.0)
        event = launched(scheduler, short, SHORT)
        scheduler.synchronize(event)
        scheduler.synchronize(behind)
        times[priority] = event.time, behind.time
    # Waves of the long kernel end at 4, 8, 12 and 16.
    assert times == {"low": (17.0, 16.0), "high": (5.0, 17.0)}


def test_in_a_shared_hardware_queue_a_priority_waits_behind_what_was_launched_before() -> None:
    times = {}
    for queues in (1, 2):
        scheduler = scheduler_of(queues=queues)
        low, high = scheduler.queue("low"), scheduler.queue("high")
        launched(scheduler, low, LONG, LONG, LONG)
        event = launched(scheduler, high, SHORT)
        scheduler.synchronize(event)
        times[queues] = event.time
    # Behind all three kernels, since the record of their event waits in the queue, too; or behind the wave that runs.
    assert times == {1: 49.0, 2: 5.0}


def test_a_stream_waits_for_an_event_of_another() -> None:
    scheduler = scheduler_of(multiprocessors=16)
    first, second = scheduler.queue("low"), scheduler.queue("high")
    event = launched(scheduler, first, LONG)
    scheduler.wait(second, event)
    after = launched(scheduler, second, SHORT)
    assert not scheduler.passed(event)
    scheduler.synchronize(after)
    assert (event.time, after.time) == (4.0, 5.0)


def test_values_are_computed_in_the_order_in_which_kernels_start() -> None:
    scheduler, order = scheduler_of(), list[str]()
    low, high = scheduler.queue("low"), scheduler.queue("high")
    for name, stream, work in (("low 0", low, LONG), ("low 1", low, LONG), ("high 0", high, SHORT)):
        scheduler.launch(stream, name, lambda name=name: order.append(name), (work,))
    event = launched(scheduler, low)
    scheduler.synchronize(event)
    assert order == ["low 0", "high 0", "low 1"]


def test_a_full_queue_delays_the_launch_until_the_device_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppool.device.emulated.virtual_scheduler.QUEUE_LENGTH", 2)
    scheduler = scheduler_of()
    stream = scheduler.queue("low")
    for _ in range(4):
        scheduler.launch(stream, "kernel", lambda: None, (SHORT,))
    # One runs from 0 and two wait; the fourth is launched when the second starts.
    assert scheduler.clock.now() == 1.0


def test_an_error_of_a_kernel_shows_at_the_next_wait() -> None:
    scheduler = scheduler_of()
    stream = scheduler.queue("low")

    def fail() -> None:
        raise ValueError("no such row")

    scheduler.launch(stream, "embedding", fail, (SHORT,))
    event = launched(scheduler, stream)
    with pytest.raises(RuntimeError, match="embedding failed on the emulated device: no such row"):
        scheduler.synchronize(event)
    scheduler.synchronize(event)


def test_waiting_for_what_nobody_launches_is_an_error() -> None:
    scheduler = scheduler_of()
    waits, never = scheduler.queue("low"), Event()
    never.recorded = 1
    scheduler.wait(waits, never)
    with pytest.raises(RuntimeError, match="the host waits for ever"):
        scheduler.synchronize(launched(scheduler, waits, SHORT))


@pytest.mark.parametrize("slow", [True, False])
def test_threads_act_in_the_order_of_their_times_however_fast_each_runs(slow: bool) -> None:
    """The second thread may start only when the first would have finished long ago."""
    clock, log, may_start = scheduler_of().clock, list[tuple[str, float]](), threading.Event()
    done = clock.signal()

    def second() -> None:
        may_start.wait(300)
        for _ in range(3):
            clock.sleep(2.0)
            log.append(("second", clock.now()))
        done.set()

    clock.start_thread(second, "second")
    threading.Timer(0.05 if slow else 0.0, may_start.set).start()
    for _ in range(2):
        clock.sleep(3.0)
        log.append(("first", clock.now()))
    assert done.wait()
    assert clock.now() == 6.0
    # At 6 the first thread, which is the older one, acts first.
    assert log == [("second", 2.0), ("first", 3.0), ("second", 4.0), ("first", 6.0), ("second", 6.0)]


def test_a_signal_is_waited_for_until_it_is_set_or_time_is_up() -> None:
    scheduler = scheduler_of()
    clock = scheduler.clock
    asked, answered = clock.signal(), clock.signal()

    def answer() -> None:
        assert asked.wait()
        clock.sleep(5.0)
        answered.set()

    clock.start_thread(answer, "answers")
    clock.sleep(1.0)
    asked.set()
    assert not answered.wait(2.0)
    assert clock.now() == 3.0
    assert answered.wait(300)
    assert clock.now() == 6.0
    assert answered.is_set()
    answered.clear()
    assert not answered.is_set()


def test_a_thread_that_polls_sees_an_event_within_one_query() -> None:
    scheduler = scheduler_of()
    event = launched(scheduler, scheduler.queue("low"), KernelWork(1e-4))
    while not scheduler.passed(event):
        pass
    assert scheduler.clock.now() == pytest.approx(1e-4, abs=2e-6)


@pytest.fixture
def device() -> EmulatedDevice:
    return new_device("h200")


def test_a_device_of_a_data_sheet_has_a_torch_device_of_its_own(device: EmulatedDevice) -> None:
    value = torch.ones(3, device=device.torch_device())
    assert device_of(value.device) is find_device("emulated:h200") is device
    assert value.device != find_device("emulated").torch_device()
    assert (device.kind, device.memory) == ("emulated:h200", 141e9)
    other = value.to(find_device("emulated").torch_device())
    assert (other + 1).tolist() == [2.0] * 3


@pytest.mark.parametrize("name", ["emulated:h300", "emulated:", "cpu:h200", "emulate"])
def test_an_unknown_device_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(InvalidValueError, match="a100-40, a100-80, h100, h200"):
        find_device(name)


def test_a_gpu_without_products_in_bf16_is_not_emulated_in_it(device: EmulatedDevice) -> None:
    with device.arithmetic("bf16"), new_device("v100").arithmetic("fp16"):
        pass
    with pytest.raises(InvalidValueError, match="Tesla V100-SXM2-32GB multiply no bf16 numbers"):
        new_device("v100").arithmetic("bf16")


def test_seconds_are_those_of_the_estimate(device: EmulatedDevice) -> None:
    a, b = (torch.ones(512, 1024, device=device.torch_device()) for _ in range(2))
    stamps = []
    # Between events outside a graph there would be the host's time for the launch.
    (graph,) = device.repeatable(lambda: stamps.extend([device.stamp(), a @ b.T, device.stamp()]))
    graph()
    device.synchronize()
    host = [torch.ones(512, 1024), torch.ones(1024, 512)]
    expected = FITTED.seconds(
        Columns.of(kernels_of("mm", tuple(host), host, [torch.ones(512, 512)])), find_gpu("h200"), tf32=False
    )
    assert device.seconds(stamps[-3], stamps[-1]) == pytest.approx(float(expected.sum()))


def train(device: EmulatedDevice) -> tuple[list[float], list[float]]:
    """Seconds and losses of some steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5))
    model.to(device.torch_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(4, 3, 8, 8).to(device.torch_device())
    times, losses = [], []
    for _ in range(3):
        before = device.stamp()
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        after = device.stamp()
        losses.append(loss.item())
        times.append(device.seconds(before, after))
    return times, losses


def test_times_are_the_same_every_time_and_without_values_too(device: EmulatedDevice) -> None:
    times, losses = train(device)
    assert losses[0] > losses[1] > losses[2] > 0
    assert train(new_device("h200")) == (times, losses)
    without = new_device("h200")
    with without.times_only():
        assert train(without)[0] == times
    assert without.runtime.scheduler.computes


def test_without_values_a_shape_that_follows_from_them_is_an_error_and_no_other_index_is() -> None:
    device = new_device("h200")
    with device.times_only():
        table, rows = torch.zeros(4, 3, device=device.torch_device()), torch.zeros(5, device=device.torch_device())
        rows = rows.long()
        rows.backing.fill_(2**40)  # as memory that was never written
        assert table[rows].shape == (5, 3)
        with pytest.raises(RuntimeError, match=r"of aten.nonzero.default depends on values.* --device emulated,"):
            rows.nonzero()
        with pytest.raises(RuntimeError, match=r"of aten.index.Tensor depends on values, and none are"):
            table[table > 0]


def test_in_the_machines_time_values_are_always_computed() -> None:
    device = find_device("emulated")
    with device.times_only():
        assert (torch.ones(3, device=device.torch_device()) + 1).tolist() == [2.0] * 3


def beside_a_write(device: EmulatedDevice) -> float:
    """The mean of a tensor that another stream doubles eight times, without a wait between."""
    value, kept = torch.ones(1000, 1000, device=device.torch_device()), list[torch.Tensor]()
    (graph,) = device.repeatable(lambda: [value.mul_(2) for _ in range(8)])
    value.fill_(1)
    device.synchronize()
    device.stream("low").launch(graph)
    device.stream("high").launch(lambda: kept.append(value.mean()))
    device.synchronize()
    return float(kept[0])


def test_a_missing_wait_gives_the_same_wrong_number_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the detector off; with it, the error names both operators."""
    with pytest.raises(HazardError, match=r"mean on stream \d+ reads memory that was written by mul_"):
        beside_a_write(new_device("h200"))
    results = []
    for _ in range(2):
        device = new_device("h200")
        monkeypatch.setattr(device.runtime.hazards, "launch", lambda *_: None)
        results.append(beside_a_write(device))
    assert results[0] == results[1] != 2.0**8


@pytest.mark.parametrize(("share", "asked", "granted"), [(0.25, 33, 40), (0.02, 3, 8), (0.5, 66, 72), (0.99, 131, 128)])
def test_a_share_of_multiprocessors_says_what_was_granted_and_keeps_to_it(
    device: EmulatedDevice, share: float, asked: int, granted: int
) -> None:
    """Steps of 8 of 132, as CUDA's green contexts on Hopper: more than was asked for, or fewer."""
    made = background_stream(device, Sharing(share=share))
    assert made.granted == (f"stream priority low, on {granted} multiprocessors (granted; {asked} were asked for)")
    full = KernelWork(0.0, blocks=1320, block_seconds=1e-3)
    scheduler = device.runtime.scheduler
    with made.stream.current():
        device.runtime.launch("full", [], [], lambda: None, (full,))
        event = device.stamp()
    device.synchronize()
    waves = -(-1320 // granted)
    assert event.time == pytest.approx(waves * 1e-3 + scheduler.costs.operator)
