"""Virtual time of the host threads of an emulated GPU, and the order in which they act on it.

Every thread has a time of its own, which advances by what its launches cost, by sleeping and by waiting. The thread
with the earliest time acts next, and the device has then advanced to that time: so the order of all launches, and all
times, follow from the program alone, however fast this machine runs which thread.

A thread that waits for the device, or for a signal of another thread, has no time until that happens, and then takes
the time at which it does. Python between two launches costs no time, nor does anything that a thread waits for in
another way, such as a message of another process; meanwhile threads with a later time wait for it.

This is a conservative simulation of parallel processes (Chandy and Misra, "Distributed Simulation", 1979) with the
threads themselves as processes.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class VirtualDevice(Protocol):
    """What the clock needs of the device."""

    def next_time(self) -> float:
        """Returns when something happens next on the device; infinity: nothing will without another launch."""

    def advance(self, time: float) -> None:
        """Moves the device to a time, at most :meth:`next_time`."""


class HostThread:
    """A thread's place in virtual time."""

    def __init__(self, time: float, number: int) -> None:
        """Starts at a time; of equal times the lower number acts first."""
        self.time, self.number = time, number
        self.waits_for: Callable[[], bool] | None = None
        """Condition that the thread waits for, or None."""
        self.deadline = math.inf
        """When it gives up waiting."""
        self.graph_nodes: int | None = None
        """Nodes launched of the graph that it launches now; None: of none."""

    @property
    def next_action(self) -> tuple[float, int]:
        """Time of its next action as far as is known, and its number."""
        return (self.time if self.waits_for is None else max(self.time, self.deadline)), self.number


class VirtualClock:
    """Clock of the threads that launch on one emulated GPU, as :class:`deeppool.device.clock.Clock`."""

    def __init__(self, device: VirtualDevice) -> None:
        """Starts at 0 with one thread: all that :meth:`start_thread` has not started count as one."""
        self._device = device
        self._changed = threading.Condition(threading.RLock())
        self._main = HostThread(0.0, 0)
        self._threads = [self._main]
        self._started = 0
        self._local = threading.local()

    @property
    def thread(self) -> HostThread:
        """The place of the calling thread."""
        return getattr(self._local, "thread", self._main)

    def now(self) -> float:
        """Returns the time of this thread."""
        return self.thread.time

    def sleep(self, seconds: float) -> None:
        """Adds to the time of this thread, and lets others act that are earlier."""
        with self.turn(max(seconds, 0.0)):
            pass

    @contextmanager
    def turn(self, seconds: float = 0.0) -> Iterator[float]:
        """Adds to this thread's time and waits until it acts next; in the block, at that time, no other thread acts."""
        thread = self.thread
        with self._changed:
            thread.time += seconds
            self._changed.notify_all()
            self._await_turn(thread)
            yield thread.time
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], deadline: float = math.inf) -> bool:
        """Waits in virtual time until a condition holds, which depends on the device or on other threads.

        Returns:
            Whether it holds; False: the deadline has passed.

        Raises:
            RuntimeError: nothing can make it hold: no work is on the device, and all threads wait.
        """
        thread = self.thread
        with self.turn():
            if condition():
                return True
            thread.waits_for, thread.deadline = condition, deadline
            self._changed.notify_all()
            try:
                self._await_condition(thread)
                held = thread.waits_for is None
                thread.time = thread.time if held else max(thread.time, deadline)
            finally:
                thread.waits_for, thread.deadline = None, math.inf
            self._await_turn(thread)
            return held

    def signal(self) -> "VirtualSignal":
        """Creates a flag whose waits are in virtual time."""
        return VirtualSignal(self)

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Starts a daemon thread at the time of this one."""
        with self._changed:
            self._started += 1
            started = HostThread(self.thread.time, self._started)
            self._threads.append(started)

        def run() -> None:
            self._local.thread = started
            try:
                target()
            finally:
                with self._changed:
                    self._threads.remove(started)
                    self._changed.notify_all()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def wake(self, time: float) -> None:
        """Continues the threads whose condition holds now, at a time; called by a thread that has the turn."""
        for thread in self._threads:
            if thread.waits_for is not None and thread.waits_for():
                thread.waits_for, thread.time = None, max(thread.time, time)

    def _await_turn(self, thread: HostThread) -> None:
        while thread is not (earliest := self._advance_device()):
            self._changed.wait()
        self._device.advance(earliest.time)

    def _await_condition(self, thread: HostThread) -> None:
        """Returns when a thread's condition holds, or its deadline has come."""
        while thread.waits_for is not None:
            earliest = self._advance_device()
            if thread.waits_for is None or (thread is earliest and thread.deadline < math.inf):
                return
            if earliest.next_action[0] == math.inf:
                raise RuntimeError(
                    "the host waits for ever: nothing is on the device that would end its wait, and no other thread "
                    "can launch anything (an event that was never recorded, or a thread that ended?)"
                )
            self._changed.wait()

    def _advance_device(self) -> HostThread:
        """Lets happen on the device what comes before any thread acts; returns the thread that acts then."""
        while True:
            earliest = min(self._threads, key=lambda thread: thread.next_action)
            following = self._device.next_time()
            if following == math.inf or following > earliest.next_action[0]:
                return earliest
            self._device.advance(following)
            self.wake(following)
            self._changed.notify_all()


class VirtualSignal:
    """Flag of threads in virtual time; see :class:`deeppool.device.clock.Signal`."""

    def __init__(self, clock: VirtualClock) -> None:
        """Is not set."""
        self._clock, self._set = clock, False

    def set(self) -> None:
        """Sets the flag; those that wait for it continue at the time of this thread."""
        with self._clock.turn() as now:
            self._set = True
            self._clock.wake(now)

    def clear(self) -> None:
        """Clears the flag."""
        with self._clock.turn():
            self._set = False

    def is_set(self) -> bool:
        """Whether the flag is set."""
        with self._clock.turn():
            return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Returns whether the flag is set, after waiting for it at most ``timeout`` virtual seconds."""
        deadline = math.inf if timeout is None else self._clock.now() + timeout
        return self._clock.wait_until(lambda: self._set, deadline)
