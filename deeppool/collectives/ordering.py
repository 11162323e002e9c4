"""The order of transfers: by the compute that they unblock, and the same on every rank.

Forward passes run part after part, so a transfer for an earlier part unblocks the compute of all parts up to the next
transfer's: of those that can start, the one that is needed first is sent (TicTac's rule: Hashemi et al., MLSys 2019;
ties: the shorter transfer). A transfer that has started is not interrupted, and none waits for one that is not ready.

The order is found once, from predicted times, and then kept: transfers of different ranks must match, and ranks are
ready at different times.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from deeppool.errors import RunError


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """A transfer that is to be ordered."""

    ready: float
    """When it can start, in seconds."""
    seconds: float
    """Time on the network."""
    part: int
    """First part of the model that uses it."""
    ranks: tuple[int, ...] = (0, 1)
    """Ranks that it occupies: each has one transfer at a time."""


@dataclass(frozen=True, slots=True)
class SentTransfer:
    """Position of a request, and when it is sent."""

    request: int
    start: float
    end: float


def order_transfers(requests: Sequence[TransferRequest]) -> list[SentTransfer]:
    """Returns all transfers in the order in which they are sent."""
    free = dict.fromkeys((rank for request in requests for rank in request.ranks), 0.0)
    of_ranks: dict[tuple[int, ...], list[int]] = {}
    for index in sorted(range(len(requests)), key=lambda index: requests[index].ready, reverse=True):
        of_ranks.setdefault(requests[index].ranks, []).append(index)
    queues = [_Queue(ranks, requests, indices) for ranks, indices in of_ranks.items()]
    order: list[SentTransfer] = []
    while queues:
        starts = [queue.start(max(free[rank] for rank in queue.ranks)) for queue in queues]
        now = min(starts)
        first = min(
            (queue for queue, start in zip(queues, starts, strict=True) if start == now),
            key=lambda queue: queue.first(now),
        )
        chosen = first.take()
        end = now + requests[chosen].seconds
        free |= dict.fromkeys(first.ranks, end)
        order.append(SentTransfer(chosen, now, end))
        if first.is_empty:
            queues.remove(first)
    return order


class _Queue:
    """The waiting transfers of the same ranks: those that are ready by urgency, and the others by when they will be."""

    def __init__(self, ranks: tuple[int, ...], requests: Sequence[TransferRequest], later: list[int]) -> None:
        """Takes the indices of requests, of which the last is ready first."""
        self.ranks = ranks
        self._requests, self._later = requests, later
        self._ready: list[tuple[int, float, int]] = []
        self._now = 0.0

    def start(self, free: float) -> float:
        """Returns when one of them can start, if the ranks are free from some time on."""
        return max(self._now if self._ready else self._requests[self._later[-1]].ready, free)

    def first(self, now: float) -> tuple[int, float, int]:
        """Returns the most urgent one that is ready by now: its part, its time, and its index."""
        self._now = now
        while self._later and self._requests[self._later[-1]].ready <= now:
            index = self._later.pop()
            heappush(self._ready, (self._requests[index].part, self._requests[index].seconds, index))
        return self._ready[0]

    def take(self) -> int:
        """Removes the one that ``first`` returned."""
        return heappop(self._ready)[-1]

    @property
    def is_empty(self) -> bool:
        return not self._ready and not self._later


T = TypeVar("T", bound=Hashable)


class FixedOrder(Generic[T]):
    """Starts items in one order, whatever the order in which they become ready."""

    def __init__(self, order: Sequence[T], start: Callable[[T], object]) -> None:
        """Sets the order of all items, each of which is started once."""
        self._next, self._start = deque(order), start
        self._ready: set[T] = set()

    def ready(self, item: T) -> None:
        """Starts an item, and those after it that are ready, once those before it have started."""
        self._ready.add(item)
        while self._next and self._next[0] in self._ready:
            self._start(self._next.popleft())

    def finish(self) -> None:
        """Checks that all have started.

        Raises:
            RunError: some have not become ready.
        """
        if self._next:
            raise RunError(f"{len(self._next)} transfers were never ready (each bucket must be announced once)")
