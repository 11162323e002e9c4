"""Slots of the emulated device take waiting kernels by priority and launch order, and do not stop running ones."""

import threading

from deeppool.device.emulated import scheduler as module
from deeppool.device.emulated.scheduler import Event, Scheduler, StreamQueue


class Held:
    """A kernel that runs until the test ends it."""

    def __init__(self, scheduler: Scheduler, queue: StreamQueue) -> None:
        self._end, self.begun = threading.Event(), threading.Event()
        scheduler.launch(queue, "held", self._run)

    def _run(self) -> None:
        self.begun.set()
        self._end.wait()

    def end(self) -> None:
        self._end.set()


def finish(scheduler: Scheduler, *queues: StreamQueue) -> None:
    for queue in queues:
        event = Event()
        scheduler.record(queue, event)
        scheduler.synchronize(event)


def test_high_priority_waits_for_the_running_kernel_and_for_no_other() -> None:
    scheduler, order = Scheduler(slots=1), list[str]()
    low, high = scheduler.queue("low"), scheduler.queue("high")
    held = Held(scheduler, low)
    assert held.begun.wait(300)
    for name, queue in (("low 0", low), ("low 1", low), ("high 0", high), ("high 1", high)):
        scheduler.launch(queue, name, lambda name=name: order.append(name))
    assert order == []
    held.end()
    finish(scheduler, low, high)
    assert order == ["high 0", "high 1", "low 0", "low 1"]


def test_equal_priorities_take_turns_in_the_order_of_launches() -> None:
    scheduler, order = Scheduler(slots=1), list[str]()
    queues = [scheduler.queue("low") for _ in range(2)]
    held = Held(scheduler, queues[0])
    for number in range(4):
        scheduler.launch(queues[number % 2], "kernel", lambda number=number: order.append(number))
    held.end()
    finish(scheduler, *queues)
    assert order == list(range(4))


def test_kernels_of_two_streams_run_at_once_and_those_of_one_do_not() -> None:
    scheduler = Scheduler(slots=2)
    first, second = scheduler.queue("low"), scheduler.queue("low")
    held, other = Held(scheduler, first), Held(scheduler, second)
    assert held.begun.wait(300)
    assert other.begun.wait(300)
    behind = Held(scheduler, first)
    other.end()
    finish(scheduler, second)
    assert not behind.begun.is_set()
    held.end()
    behind.end()
    finish(scheduler, first)


def test_a_stream_waits_for_the_event_of_another() -> None:
    scheduler, order = Scheduler(slots=2), list[str]()
    first, second = scheduler.queue("low"), scheduler.queue("high")
    held = Held(scheduler, first)
    scheduler.launch(first, "before", lambda: order.append("before"))
    event = Event()
    scheduler.record(first, event)
    scheduler.wait(second, event)
    scheduler.launch(second, "after", lambda: order.append("after"))
    assert event.reached == 0
    held.end()
    finish(scheduler, second)
    assert order == ["before", "after"]


def test_a_full_queue_delays_the_launch(monkeypatch) -> None:
    monkeypatch.setattr(module, "QUEUE_LENGTH", 2)
    scheduler, launched = Scheduler(slots=1), threading.Event()
    queue = scheduler.queue("low")
    held = Held(scheduler, queue)
    assert held.begun.wait(300)

    def launch() -> None:
        for _ in range(3):
            scheduler.launch(queue, "kernel", int)
        launched.set()

    thread = threading.Thread(target=launch)
    thread.start()
    assert not launched.wait(0.05)
    held.end()
    thread.join(300)
    assert launched.is_set()


def test_at_the_end_of_a_process_what_runs_is_awaited_and_nothing_starts() -> None:
    scheduler, order = Scheduler(slots=2), list[str]()
    queue = scheduler.queue("low")
    held = Held(scheduler, queue)
    assert held.begun.wait(300)
    scheduler.launch(queue, "later", lambda: order.append("later"))
    ending = threading.Thread(target=scheduler.end)
    ending.start()
    assert scheduler.ended.wait(300)
    assert ending.is_alive()
    held.end()
    ending.join(300)
    assert not ending.is_alive()
    # What never ends is not waited for, such as by another handler of the exit.
    finish(scheduler, queue)
    assert order == []
