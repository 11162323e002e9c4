"""Queues of streams, and the threads that compute what waits in them.

A free slot takes the first kernel of a stream of high priority before those of the others, and among equals the one
that was launched first. A kernel that runs is not stopped. Kernels of one stream run in order.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from deeppool.device.clock import WALL, Clock
from deeppool.device.emulated.hazards import Clock as VectorClock
from deeppool.device.multiprocessors import KernelWork
from deeppool.device.protocol import StreamPriority

QUEUE_LENGTH = 1024
"""Entries that a stream's queue holds; a launch waits for room, as with CUDA."""


@dataclass(slots=True, eq=False)
class Event:
    """A point between earlier and later work of a stream."""

    time: float = 0.0
    """Time at which the stream reached it last."""
    clock: VectorClock = field(default_factory=dict)
    recorded: int = 0
    """Records launched."""
    reached: int = 0
    """Records that the stream has reached."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Entry of a queue: records an event."""

    event: Event


@dataclass(frozen=True, slots=True)
class EventWait:
    """Entry of a queue: waits until an event was reached some number of times."""

    event: Event
    count: int


@dataclass(frozen=True, slots=True)
class QueuedKernel:
    """Entry of a queue: computes something."""

    operator: str
    run: Callable[[], None]
    number: int
    """Order of launches over all streams."""
    high: bool
    """Whether it has high priority; in a graph, that of the stream that captured it."""


class StreamQueue:
    """Work of one stream that is not done."""

    def __init__(self, index: int, priority: StreamPriority) -> None:
        """Starts empty."""
        self.index, self.priority = index, priority
        self.entries: deque[EventRecord | EventWait | QueuedKernel] = deque()
        self.running = False


class Scheduler:
    """Slots of a device, each a thread that computes one kernel at a time."""

    clock: Clock = WALL
    computes = True

    def __init__(self, slots: int) -> None:
        """Starts the threads when there is work."""
        self._slots = slots
        self._lock = threading.Lock()
        self._work_added, self._progress = threading.Condition(self._lock), threading.Condition(self._lock)
        self._idle = 0
        """Threads that wait for work."""
        self._queues: list[StreamQueue] = []
        self._launched = 0
        self._threads: list[threading.Thread] = []
        self._host_threads = torch.get_num_threads()
        self._error: tuple[str, Exception] | None = None
        """The first exception of a kernel that the host has not seen, and the kernel's operator."""
        self.ended = threading.Event()
        """Whether no kernel starts any more."""

    def queue(self, priority: StreamPriority, limit: int | None = None) -> StreamQueue:
        """Creates the queue of a stream; there are no multiprocessors to limit."""
        with self._lock:
            made = StreamQueue(len(self._queues), priority)
            self._queues.append(made)
            return made

    def launch(
        self,
        queue: StreamQueue,
        operator: str,
        run: Callable[[], None],
        works: tuple[KernelWork, ...] = (),
        placed_as: StreamQueue | None = None,
    ) -> None:
        """Adds a kernel to a queue, with the priority of ``placed_as`` if it is given; it runs as long as it does."""
        high = (placed_as or queue).priority == "high"
        with self._lock:
            self._launched += 1
            self._add(queue, QueuedKernel(operator, run, self._launched, high))

    def graph_launch(self, queue: StreamQueue) -> AbstractContextManager[None]:
        """Returns a null context: the kernels of a graph are launched as others are."""
        return nullcontext()

    def record(self, queue: StreamQueue, event: Event) -> None:
        """Adds the record of an event to a queue."""
        with self._lock:
            event.recorded += 1
            self._add(queue, EventRecord(event))
            # All slots may be busy with other streams.
            self._pass_events()

    def wait(self, queue: StreamQueue, event: Event) -> None:
        """Makes later entries of a queue wait for the last record of an event."""
        with self._lock:
            self._add(queue, EventWait(event, event.recorded))

    def passed(self, event: Event) -> bool:
        """Whether all records of an event were reached."""
        return event.reached >= event.recorded

    def synchronize(self, event: Event) -> None:
        """Returns when all records of an event were reached; raises the error of a kernel."""
        with self._lock:
            self._progress.wait_for(lambda: event.reached >= event.recorded or self.ended.is_set())
            failure, self._error = self._error, None
        if failure is not None:
            operator, error = failure
            raise RuntimeError(f"{operator} failed on the emulated device: {error}") from error

    def end(self) -> None:
        """Leaves what has not started, and waits for the kernels that run: a thread in one must not meet the exit."""
        with self._lock:
            self.ended.set()
            self._progress.notify_all()
            self._progress.wait_for(lambda: not any(queue.running for queue in self._queues))

    def _add(self, queue: StreamQueue, entry: EventRecord | EventWait | QueuedKernel) -> None:
        self._host_threads = torch.get_num_threads()
        if len(self._threads) < self._slots:
            thread = threading.Thread(target=self._work, name="emulated device", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._progress.wait_for(lambda: len(queue.entries) < QUEUE_LENGTH)
        queue.entries.append(entry)
        if self._idle:
            self._work_added.notify()

    def _work(self) -> None:
        while True:
            with self._lock:
                while (chosen := self._next()) is None:
                    self._idle += 1
                    self._work_added.wait()
                    self._idle -= 1
                queue, kernel = chosen
                queue.running = True
            failure: tuple[str, Exception] | None = None
            # A thread keeps the number that it started with, and sums depend on it.
            if torch.get_num_threads() != self._host_threads:
                torch.set_num_threads(self._host_threads)
            try:
                with torch.no_grad():
                    kernel.run()
            except Exception as error:  # shown at the next wait of the host, as an error of a device is
                failure = kernel.operator, error
            del kernel, chosen
            with self._lock:
                queue.running = False
                self._error = self._error or failure
                self._progress.notify_all()

    def _next(self) -> tuple[StreamQueue, QueuedKernel] | None:
        """Removes events that are reached from all queues, and then the kernel that a free slot takes."""
        self._pass_events()
        if self.ended.is_set():
            return None
        ready = [
            (not head.high, head.number, queue, head)
            for queue in self._queues
            if not queue.running and queue.entries and isinstance(head := queue.entries[0], QueuedKernel)
        ]
        if not ready:
            return None
        _, _, queue, head = min(ready, key=lambda found: found[:2])
        queue.entries.popleft()
        if len(ready) > 1 and self._idle:
            self._work_added.notify()
        return queue, head

    def _pass_events(self) -> None:
        while sum(self._pass_event(queue) for queue in self._queues):
            pass

    def _pass_event(self, queue: StreamQueue) -> bool:
        """Passes the event at the head of a queue, if there is one and the stream has reached it."""
        if queue.running or not queue.entries:
            return False
        head = queue.entries[0]
        if isinstance(head, QueuedKernel) or (isinstance(head, EventWait) and head.event.reached < head.count):
            return False
        queue.entries.popleft()
        if isinstance(head, EventRecord):
            head.event.time = time.perf_counter()
            head.event.reached += 1
            self._progress.notify_all()
        return True
