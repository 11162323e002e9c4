"""The clock of a device's host: the time that programs read, sleep by and wait on.

Beside a real device it is the machine's. An emulated GPU has a virtual one (:mod:`deeppool.device.emulated.host_time`),
which passes for launches and waits only: code that measures, paces or polls work of a device asks the device's clock.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Signal(Protocol):
    """A flag that threads wait for, as :class:`threading.Event`."""

    def set(self) -> None:
        """Sets the flag and wakes all that wait for it."""
        ...

    def clear(self) -> None:
        """Clears the flag."""
        ...

    def is_set(self) -> bool:
        """Whether the flag is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Returns whether the flag is set, after waiting for it at most ``timeout`` seconds."""
        ...


class Clock(Protocol):
    """Time of the threads that launch on a device."""

    def now(self) -> float:
        """Returns the current time of this thread, in seconds; it never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Lets some time pass."""
        ...

    def signal(self) -> Signal:
        """Creates a flag with which threads that launch on the device wait for each other."""
        ...

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Starts a daemon thread that launches on the device beside this one."""
        ...


class WallClock:
    """The machine's clock, that of ``time.perf_counter``."""

    def now(self) -> float:
        """Returns the time of ``time.perf_counter``."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Suspends the thread."""
        time.sleep(seconds)

    def signal(self) -> threading.Event:
        """Returns an event of the standard library."""
        return threading.Event()

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Starts a daemon thread."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


WALL = WallClock()
"""The clock beside every real device."""
