"""Times of what happens on a device, and waits until some seconds after the latest of several.

A device that computes at once, or whose host can wait for it, is timed by the host's clock. A GPU does both by itself
(:mod:`deeppool.device.cuda_event_times`), so that its host can go on launching.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar

E = TypeVar("E", bound=Hashable)

SPIN = 100e-6
"""Seconds of busy waiting at the end of a wait: a sleeping core wakes up that late."""


class EventTimes(Protocol):
    """Times of events on the current stream, the latest of each event."""

    def mark(self, event: Hashable) -> None:
        """Makes an event happen behind all work that was launched."""
        ...

    def when(self, moment: Mapping[E, float]) -> float:
        """Returns a moment on the clock of ``time.perf_counter``; 0 where the host does not know it.

        Args:
            moment: the latest of some events, each plus a number of seconds.
        """
        ...

    def wait(self, moment: Mapping[E, float], *, reached: Hashable = None) -> None:
        """Delays all work that is launched later.

        Args:
            moment: as of :meth:`when`.
            reached: event that happens at this moment, which may have passed; None: there is none.
        """
        ...


def wait_until(moment: float) -> None:
    """Returns at a time of ``time.perf_counter``, or at once if it has passed."""
    left = moment - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < moment:
        pass


class HostEventTimes:
    """Times by the host's clock, which waits for the device."""

    def __init__(
        self,
        synchronize: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wait_until: Callable[[float], None] = wait_until,
    ) -> None:
        """Starts without events.

        Args:
            synchronize: waits for the device: an event happens when the work before it has run, not at its launch.
            clock: seconds.
            wait_until: returns at a time of the clock.
        """
        self._synchronize, self._clock, self._wait_until = synchronize, clock, wait_until
        self._times: dict[Hashable, float] = {}

    def mark(self, event: Hashable) -> None:
        """Waits for the device, and reads the clock."""
        self._synchronize()
        self._times[event] = self._clock()

    def when(self, moment: Mapping[E, float]) -> float:
        """Returns the moment."""
        return max(self._times[event] + seconds for event, seconds in moment.items())

    def wait(self, moment: Mapping[E, float], *, reached: Hashable = None) -> None:
        """Waits in the calling thread."""
        until = self.when(moment)
        if reached is not None:
            self._times[reached] = until
        self._wait_until(until)
