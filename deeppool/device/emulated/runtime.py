"""The parts of an emulated device, and the streams of the threads that launch on it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from deeppool.device.emulated.hazards import HazardDetector
from deeppool.device.emulated.kernel_costs import KernelCosts
from deeppool.device.emulated.memory import EmulatedMemory, Memory, Pool, Region
from deeppool.device.emulated.scheduler import Event, Scheduler
from deeppool.device.emulated.shapes import ShapeInference
from deeppool.device.emulated.shared_pool import SharedPool
from deeppool.device.emulated.virtual_scheduler import VirtualScheduler
from deeppool.device.multiprocessors import KernelWork
from deeppool.device.protocol import StreamPriority

TYPE = "privateuseone"
"""Type of the torch devices."""

STREAMS = 32
"""Streams of each priority; the 33rd is the first again, as in torch."""


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """A kernel of a graph."""

    operator: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    run: Callable[[], None]
    works: tuple[KernelWork, ...]
    captured_on: Any
    """Queue of the stream that captured it, whose priority and multiprocessors it keeps."""


@dataclass(slots=True)
class Capture:
    """Work that a thread launches while it captures a graph."""

    pool: Pool
    entries: list[RecordedKernel | Event] = field(default_factory=list)
    held: list[torch.UntypedStorage] = field(default_factory=list)


class _Thread(threading.local):
    """What a thread has selected."""

    stream: "DeviceStream | None" = None
    capture: Capture | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStream:
    """A stream: its queue, and its pool of memory."""

    queue: Any
    pool: Pool

    @property
    def index(self) -> int:
        """Number of the stream."""
        return int(self.queue.index)


class DeviceRuntime:
    """Scheduler, streams, memory and hazard detector of an emulated device."""

    def __init__(
        self,
        scheduler: Scheduler | VirtualScheduler,
        *,
        index: int = 0,
        costs: KernelCosts | None = None,
        memory: float | None = None,
    ) -> None:
        """Makes the device's default stream.

        Args:
            scheduler: queues of its streams.
            index: index of its torch device.
            costs: work of operators, for a scheduler in virtual time.
            memory: bytes of the device's memory; None: as much as the machine has.
        """
        self.scheduler, self.costs = scheduler, costs
        self.place = torch.device(TYPE, index)
        """Its torch device."""
        self.hazards = HazardDetector()
        self.shapes = ShapeInference()
        self.memory = EmulatedMemory(memory)
        self.generator = torch.Generator()
        """Random numbers of the device, drawn in the order of its kernels."""
        self.generator.manual_seed(torch.initial_seed())
        self._thread = _Thread()
        self._default = self._make("low")
        self._streams: dict[StreamPriority, list[DeviceStream]] = {"high": [], "low": []}
        self._given: dict[StreamPriority, int] = {"high": 0, "low": 0}
        self._others: list[DeviceStream] = []
        """Streams on a part of the multiprocessors, and those of a shared pool."""

    @property
    def stream(self) -> DeviceStream:
        """The current stream of this thread."""
        return self._thread.stream or self._default

    def make_stream(self, priority: StreamPriority, limit: int | None = None) -> DeviceStream:
        """Returns one of the streams of a priority, in turn; or a new one on at most ``limit`` multiprocessors."""
        if limit is not None:
            self._others.append(self._make(priority, limit))
            return self._others[-1]
        streams, number = self._streams[priority], self._given[priority]
        self._given[priority] += 1
        if number < STREAMS:
            streams.append(self._make(priority))
        return streams[number % STREAMS]

    def make_streams_of_one_pool(self, count: int) -> list[DeviceStream]:
        """Creates streams of high priority whose memory lies in one pool."""
        pool = SharedPool(self.memory)
        made = [DeviceStream(self.scheduler.queue("high"), pool) for _ in range(count)]
        self._others += made
        return made

    @contextmanager
    def selected(self, stream: DeviceStream) -> Iterator[None]:
        """Makes a stream current in this thread for the block."""
        before, self._thread.stream = self._thread.stream, stream
        try:
            yield
        finally:
            self._thread.stream = before

    @contextmanager
    def capturing(self, capture: Capture) -> Iterator[None]:
        """Captures what this thread launches in the block."""
        self._thread.capture = capture
        try:
            yield
        finally:
            self._thread.capture = None

    def allocate(self, size: int) -> Memory:
        """Allocates from the pool of the current stream, or of the graph that is captured."""
        capture = self._thread.capture
        if capture is not None:
            memory = capture.pool.allocate(size)
            capture.held.append(memory.block.storage)
            return memory
        stream = self.stream
        if not isinstance(stream.pool, SharedPool):
            return stream.pool.allocate(size)
        stream.pool.record_frees(self._record_on)
        return stream.pool.allocate_on(
            stream.index, size, lambda event: self.wait(stream, event), self.scheduler.passed
        )

    def launch(
        self,
        operator: str,
        reads: Iterable[Region],
        writes: Iterable[Region],
        run: Callable[[], None],
        works: tuple[KernelWork, ...] = (),
    ) -> None:
        """Launches a kernel on the current stream, or adds it to the graph that is captured."""
        kernel = RecordedKernel(operator, tuple(reads), tuple(writes), run, works, self.stream.queue)
        if self._thread.capture is None:
            self._launch(kernel)
        else:
            self._thread.capture.entries.append(kernel)

    def _launch(self, kernel: RecordedKernel) -> None:
        stream = self.stream
        if isinstance(stream.pool, SharedPool):
            stream.pool.record_frees(self._record_on)
        self.hazards.launch(stream.index, kernel.operator, kernel.reads, kernel.writes)
        self.scheduler.launch(stream.queue, kernel.operator, kernel.run, kernel.works, kernel.captured_on)

    def replay(self, capture: Capture) -> None:
        """Launches a captured graph on the current stream; its kernels keep the priority of their capture."""
        with self.scheduler.graph_launch(self.stream.queue):
            for entry in capture.entries:
                if isinstance(entry, RecordedKernel):
                    self._launch(entry)
                else:
                    self.record(entry)

    def record(self, event: Event) -> None:
        """Records an event on the current stream, or adds it to the graph that is captured."""
        if self._thread.capture is not None:
            self._thread.capture.entries.append(event)
            return
        event.clock = self.hazards.record(self.stream.index)
        self.scheduler.record(self.stream.queue, event)

    def _record_on(self, index: int) -> Event:
        """Returns an event on one of the streams of a shared pool."""
        event = Event()
        stream = next(stream for stream in self._others if stream.index == index)
        event.clock = self.hazards.record(index)
        self.scheduler.record(stream.queue, event)
        return event

    def wait(self, stream: DeviceStream, event: Event) -> None:
        """Makes later work of a stream wait for an event."""
        self.hazards.wait(stream.index, event.clock)
        self.scheduler.wait(stream.queue, event)

    def passed(self, event: Event) -> bool:
        """Whether a stream has reached the last record of an event."""
        if not self.scheduler.passed(event):
            return False
        self.hazards.seen(event.clock)
        return True

    def synchronize(self, *streams: DeviceStream) -> None:
        """Waits until all work launched on some streams, by default on all, is complete.

        Raises:
            RuntimeError: this thread captures a graph; or a kernel failed.
        """
        if self._thread.capture is not None:
            raise RuntimeError("the host cannot wait for the device while a graph is captured (move the read outside)")
        events = []
        for stream in streams or (self._default, *self._streams["high"], *self._streams["low"], *self._others):
            with self.selected(stream):
                event = Event()
                self.record(event)
                events.append(event)
        for event in events:
            self.scheduler.synchronize(event)
            self.hazards.seen(event.clock)

    def await_event(self, event: Event) -> None:
        """Waits until a stream has reached an event.

        Raises:
            RuntimeError: a kernel failed.
        """
        self.scheduler.synchronize(event)
        self.hazards.seen(event.clock)

    def _make(self, priority: StreamPriority, limit: int | None = None) -> DeviceStream:
        return DeviceStream(self.scheduler.queue(priority, limit), Pool(self.memory))
