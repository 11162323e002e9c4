"""What may be changed in a run while it goes on, and what its record says of that.

A bound on the foreground's slowdown is held by a governor beside every rank, which has learned what the background
costs. A run that has none cannot be given one: its background does not look at anybody's orders piece by piece.
"""

import queue
import threading
from dataclasses import dataclass

from deeppool.base.sharing import Sharing
from deeppool.errors import InvalidValueError
from deeppool.units import format_percent, format_seconds

DECIDED_SECONDS = 10.0
"""For a run that has just been started to check what it was asked; no process is started before."""


@dataclass(frozen=True, slots=True)
class BoundInterval:
    """The part of a run under one bound, where that was changed while it ran."""

    bound: float | None
    """On the foreground's mean slowdown: 0.03 is 3 %; None: none yet."""
    since: float
    """Seconds from when the run began to measure to when the ranks were told."""
    iterations: int
    """Collocated ones that were measured while every rank held it."""
    iteration_time: float | None
    """Mean of those; None where there are none."""
    slowdown: float | None
    """That mean against the foreground alone."""
    background_throughput: float | None
    """Samples per second beside the foreground, over all ranks; None where no time was measured."""

    def __str__(self) -> str:
        bound = "no bound" if self.bound is None else f"{100 * self.bound:g} %"
        when = "from the start" if not self.since else f"from {format_seconds(self.since)} on"
        if self.slowdown is None or self.background_throughput is None:
            return f"{bound} {when}: nothing was measured under it"
        return (
            f"{bound} {when}: {self.iterations} iterations, slowdown {format_percent(self.slowdown)}, background "
            f"{self.background_throughput:.3g} samples/s"
        )


class RunControl:
    """The way into a run: one thread changes, the run's own thread takes notice between two iterations."""

    def __init__(self) -> None:
        """Of a run that has not begun; give it to :func:`deeppool.launch`."""
        self._decided = threading.Event()
        self._refusal: str | None = "the run has not begun"
        self._wanted: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._bound: float | None = None

    @property
    def bound(self) -> float | None:
        """On the foreground's slowdown, as it was asked for last: 0.03 is 3 %."""
        return self._bound

    @property
    def refusal(self) -> str | None:
        """Why the bound cannot be changed now; None: it can."""
        return self._refusal

    def change_bound(self, max_slowdown: float) -> None:
        """Has the ranks hold another bound from one of their next collocated iterations on; any thread may.

        Args:
            max_slowdown: of the foreground, on average: 0.03 is 3 %. The last one that was asked for counts.

        Raises:
            InvalidValueError: it is no bound, or the run cannot hold one, or is over.
        """
        self._decided.wait(DECIDED_SECONDS)
        if self._refusal is not None:
            raise InvalidValueError(f"the bound cannot be changed: {self._refusal}")
        Sharing(max_slowdown=max_slowdown)
        self._bound = max_slowdown
        self._wanted.put(max_slowdown)

    # -- by the run -----------------------------------------------------------------------------------

    def open(self, sharing: Sharing | None) -> None:
        """The run has mechanisms that can hold a bound, or not."""
        self._bound = None if sharing is None else sharing.max_slowdown
        self._refusal = refusal(sharing)
        self._decided.set()

    def refuse(self, why: str) -> None:
        """From now on the bound cannot be changed."""
        self._refusal = why
        self._decided.set()

    def close(self) -> None:
        """The run is over."""
        self.refuse("the run is over")

    def take(self) -> float | None:
        """The bound that was asked for since the last call, the newest if there are several."""
        newest = None
        while not self._wanted.empty():
            newest = self._wanted.get()
        return newest


def refusal(sharing: Sharing | None) -> str | None:
    """Why a run with these mechanisms cannot change its bound; None: it can."""
    if sharing is None:
        return "the run has no background job that could slow anything down"
    if not sharing.learns:
        return (
            f"with {sharing} nothing measures what the background costs while it runs (start it with a bound, a loose "
            "one if need be, or with policy 'feedback')"
        )
    return None
