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
    waiting = set(range(len(requests)))
    order: list[SentTransfer] = []
    while waiting:
        starts = {
            index: max(requests[index].ready, *(free[rank] for rank in requests[index].ranks)) for index in waiting
        }
        now = min(starts.values())
        chosen = min(
            (index for index, start in starts.items() if start == now),
            key=lambda index: (requests[index].part, requests[index].seconds, index),
        )
        end = now + requests[chosen].seconds
        free |= dict.fromkeys(requests[chosen].ranks, end)
        order.append(SentTransfer(chosen, now, end))
        waiting.remove(chosen)
    return order


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
