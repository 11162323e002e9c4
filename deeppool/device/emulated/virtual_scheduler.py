"""Queues of streams in front of an emulated GPU, in virtual time.

As :class:`deeppool.device.emulated.scheduler.Scheduler`, but kernels take the seconds and the multiprocessors that a
data sheet gives them (:mod:`deeppool.device.multiprocessors`). A kernel's values are computed when it starts, so they
are those of the order in which kernels start, and a missing wait gives a wrong number, the same one each time.

Launches of a stream go through one of the GPU's hardware queues, in order. Where streams share one, a launch whose
stream is busy holds up those behind it, whatever their priority.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from deeppool.device.clock import Clock
from deeppool.device.emulated.host_time import VirtualClock
from deeppool.device.emulated.kernel_costs import HOST_COSTS, HostCosts
from deeppool.device.emulated.scheduler import QUEUE_LENGTH, Event, EventRecord, EventWait
from deeppool.device.multiprocessors import KernelWork, Multiprocessors, ResidentKernel
from deeppool.device.protocol import StreamPriority

HARDWARE_QUEUES = 32
"""Queues between host and GPU, as the project asks CUDA for (``CUDA_DEVICE_MAX_CONNECTIONS``; CUDA's default is 8)."""


@dataclass(frozen=True, slots=True, eq=False)
class VirtualKernel:
    """Entry of a queue: an operator, as its kernels."""

    operator: str
    run: Callable[[], None]
    works: tuple[KernelWork, ...]
    placed_as: "VirtualStream"
    """Stream with its priority and its limit; in a graph, the one that captured it."""


Entry = VirtualKernel | EventRecord | EventWait


class VirtualStream:
    """A stream, and the kernel of it that is on the device."""

    def __init__(self, index: int, priority: StreamPriority, limit: int | None) -> None:
        """Has nothing on the device."""
        self.index, self.priority, self.limit = index, priority, limit
        self.pending: deque[KernelWork] = deque()
        """Kernels left of its operator."""
        self.placed_as = self
        """Stream whose priority and limit its operator has."""
        self.resident: ResidentKernel | None = None
        self.launches = 0
        """Launches that wait in a queue."""


class VirtualScheduler:
    """Device side of an emulated GPU: what is launched waits, starts and ends in virtual time."""

    def __init__(
        self, multiprocessors: int, bandwidth: float, *, queues: int = HARDWARE_QUEUES, costs: HostCosts = HOST_COSTS
    ) -> None:
        """Starts at time 0.

        Args:
            multiprocessors: how many the GPU has.
            bandwidth: bytes per second that kernels reach together.
            queues: hardware queues; stream ``n`` uses queue ``n`` modulo their number.
            costs: seconds of the host.
        """
        self.multiprocessors = Multiprocessors(multiprocessors, bandwidth)
        self.costs, self.computes = costs, True
        self._time = VirtualClock(self)
        self.clock: Clock = self._time
        self._queues: list[deque[tuple[VirtualStream, Entry, bool]]] = [deque() for _ in range(queues)]
        """Per hardware queue: stream, entry, and whether it counts as a launch."""
        self._streams: list[VirtualStream] = []
        self._error: tuple[str, Exception] | None = None

    def queue(self, priority: StreamPriority, limit: int | None = None) -> VirtualStream:
        """Creates a stream.

        Args:
            priority: of its blocks.
            limit: multiprocessors that it may use at once; None: all.
        """
        made = VirtualStream(len(self._streams), priority, limit)
        self._streams.append(made)
        return made

    def launch(
        self,
        stream: VirtualStream,
        operator: str,
        run: Callable[[], None],
        works: tuple[KernelWork, ...],
        placed_as: VirtualStream | None = None,
    ) -> None:
        """Launches an operator; costs the host a launch, unless it is part of a graph.

        Args:
            stream: stream in whose order it runs.
            operator: its name.
            run: computes its values.
            works: its kernels.
            placed_as: stream whose priority and limit it has; None: its own.
        """
        cost = self.costs.operator if self._time.thread.graph_nodes is None else self.costs.node
        self._add(stream, VirtualKernel(operator, run, works, placed_as or stream), cost)

    @contextmanager
    def graph_launch(self, stream: VirtualStream) -> Iterator[None]:
        """Makes what is launched in the block one graph, for one launch."""
        thread = self._time.thread
        with self._time.turn(self.costs.graph):
            pass
        thread.graph_nodes = 0
        try:
            yield
        finally:
            thread.graph_nodes = None

    def record(self, stream: VirtualStream, event: Event) -> None:
        """Adds the record of an event."""
        event.recorded += 1
        self._add(stream, EventRecord(event), 0.0)

    def wait(self, stream: VirtualStream, event: Event) -> None:
        """Makes later entries of a stream wait for the last record of an event."""
        self._add(stream, EventWait(event, event.recorded), 0.0)

    def passed(self, event: Event) -> bool:
        """Whether all records of an event were reached."""
        with self._time.turn(self.costs.query):
            return event.reached >= event.recorded

    def synchronize(self, event: Event) -> None:
        """Returns when all records of an event were reached; raises the error of a kernel."""
        self._time.wait_until(lambda: event.reached >= event.recorded)
        failure, self._error = self._error, None
        if failure is not None:
            operator, error = failure
            raise RuntimeError(f"{operator} failed on the emulated device: {error}") from error

    def end(self) -> None:
        """Does nothing: kernels compute in the host's calls."""

    def next_time(self) -> float:
        """Returns when something happens next on the device."""
        return self.multiprocessors.next_time()

    def advance(self, time: float) -> None:
        """Moves the device to a time; starts what ends of kernels let start."""
        ended = self.multiprocessors.advance(time)
        if not ended:
            return
        for stream in self._streams:
            if stream.resident in ended:
                stream.resident = None
                self._start_next(stream)
        self._take_entries()

    def _add(self, stream: VirtualStream, entry: Entry, cost: float) -> None:
        thread = self._time.thread
        # A graph is one launch, whatever its length.
        counts = not thread.graph_nodes
        if counts and stream.launches >= QUEUE_LENGTH:
            self._time.wait_until(lambda: stream.launches < QUEUE_LENGTH)
        with self._time.turn(cost) as now:
            stream.launches += counts
            if thread.graph_nodes is not None:
                thread.graph_nodes += 1
            self._queues[stream.index % len(self._queues)].append((stream, entry, counts))
            self._take_entries()
            self._time.wake(now)

    def _take_entries(self) -> None:
        """Takes entries from the heads of all queues, until each is empty or its head cannot start."""
        progress = True
        while progress:
            progress = False
            for queue in self._queues:
                while queue and self._take(*queue[0]):
                    queue.popleft()
                    progress = True

    def _take(self, stream: VirtualStream, entry: Entry, counts: bool) -> bool:
        if stream.resident is not None:
            return False
        if isinstance(entry, EventWait):
            if entry.event.reached < entry.count:
                return False
        elif isinstance(entry, EventRecord):
            entry.event.time = self.multiprocessors.now
            entry.event.reached += 1
        else:
            self._compute(entry)
            stream.pending.extend(entry.works)
            stream.placed_as = entry.placed_as
            self._start_next(stream)
        stream.launches -= counts
        return True

    def _start_next(self, stream: VirtualStream) -> None:
        if stream.pending:
            placed = stream.placed_as
            stream.resident = self.multiprocessors.start(
                stream.pending.popleft(), high=placed.priority == "high", limit=placed.limit
            )

    def _compute(self, kernel: VirtualKernel) -> None:
        if not self.computes:
            return
        try:
            with torch.no_grad():
                kernel.run()
        except Exception as error:  # shown at the next wait of the host, as an error of a device is
            self._error = self._error or (kernel.operator, error)
