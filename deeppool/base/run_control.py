"""Changes to a run while it runs, and their entries in its record.

A bound on the foreground's slowdown is held by a controller beside every rank, which has measured what the background
costs. A run without a controller cannot get a bound: its background is not limited piece by piece.
"""

import queue
import threading
from dataclasses import dataclass

from deeppool.base.sharing import Sharing
from deeppool.errors import InvalidValueError
from deeppool.units import format_percent, format_rate, format_seconds

DECIDED_SECONDS = 10.0
"""Seconds within which a run that has just started checks its arguments; no process is started before."""


@dataclass(frozen=True, slots=True)
class BoundInterval:
    """Part of a run under one bound, recorded when the bound was changed during the run."""

    bound: float | None
    """Bound on the foreground's mean slowdown, where 0.03 is 3 %, or None before the first bound."""
    since: float
    """Seconds from the start of the measurement to the message to the ranks."""
    iterations: int
    """Collocated iterations that were measured while every rank held the bound."""
    iteration_time: float | None
    """Mean time of those iterations, in seconds, or None if there are none."""
    slowdown: float | None
    """Slowdown of that mean over the foreground alone."""
    background_throughput: float | None
    """Samples per second while collocated, over all ranks, or None if no time was measured."""

    def __str__(self) -> str:
        bound = "no bound" if self.bound is None else f"{100 * self.bound:g} %"
        when = "from the start" if not self.since else f"from {format_seconds(self.since)} on"
        if self.slowdown is None or self.background_throughput is None:
            return f"{bound} {when}: nothing was measured under it"
        return (
            f"{bound} {when}: {self.iterations} iterations, slowdown {format_percent(self.slowdown)}, background "
            f"{format_rate(self.background_throughput)} samples/s"
        )


class RunControl:
    """Changes the slowdown bound of a run from any thread; the run's own thread applies it between two iterations."""

    def __init__(self) -> None:
        """Creates the control of a run that has not begun: an argument of :func:`deeppool.launch`."""
        self._decided = threading.Event()
        self._refusal: str | None = "the run has not begun"
        self._requested: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._bound: float | None = None

    @property
    def bound(self) -> float | None:
        """Bound on the foreground's slowdown that was requested last: 0.03 is 3 %."""
        return self._bound

    @property
    def refusal(self) -> str | None:
        """Reason why the bound cannot be changed now, or None if it can."""
        return self._refusal

    def change_bound(self, max_slowdown: float) -> None:
        """Requests another bound, which the ranks hold from one of their next collocated iterations on; for any thread.

        Args:
            max_slowdown: bound on the foreground's mean slowdown: 0.03 is 3 %. The last request counts.

        Raises:
            InvalidValueError: the value is no bound, or the run cannot hold one, or is over.
        """
        self._decided.wait(DECIDED_SECONDS)
        if self._refusal is not None:
            raise InvalidValueError(f"the bound cannot be changed: {self._refusal}")
        bound = Sharing(max_slowdown=max_slowdown).max_slowdown
        assert bound is not None
        self._bound = bound
        self._requested.put(bound)

    # -- called by the run -----------------------------------------------------------------------------------

    def open(self, sharing: Sharing | None) -> None:
        """Sets the mechanisms of the run, which can hold a bound or not."""
        self._bound = None if sharing is None else sharing.max_slowdown
        self._refusal = refusal(sharing)
        self._decided.set()

    def refuse(self, reason: str) -> None:
        """Refuses changes of the bound from now on, for this reason."""
        self._refusal = reason
        self._decided.set()

    def close(self) -> None:
        """Refuses changes, because the run is over."""
        self.refuse("the run is over")

    def take(self) -> float | None:
        """Returns the newest bound that was requested since the last call, or None."""
        newest = None
        while not self._requested.empty():
            newest = self._requested.get()
        return newest


def refusal(sharing: Sharing | None) -> str | None:
    """Returns the reason why a run with these mechanisms cannot change its bound, or None if it can."""
    if sharing is None:
        return "the run has no background job that could slow anything down"
    if not sharing.learns:
        return (
            f"with {sharing} nothing measures what the background costs while it runs (start it with a bound, a loose "
            "one if need be, or with policy 'feedback')"
        )
    return None
