"""Ranks as threads of one process: a communicator of values in memory, for tests of many short trainings."""

import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from deeppool.collectives.schedule import Schedule
from deeppool.device.transfer import PendingWork
from deeppool.execution.communicator import P2PBuffer, SingleRank

SECONDS = 20.0
"""After which a rank that waits for a value counts as waiting for ever."""
Result = TypeVar("Result")


class Board:
    """Values that threads leave for each other."""

    def __init__(self) -> None:
        self._values: dict[Hashable, torch.Tensor] = {}
        self._changed = threading.Condition()
        self._failed = False

    def put(self, key: Hashable, value: torch.Tensor) -> None:
        with self._changed:
            self._values[key] = value.detach().clone(memory_format=torch.contiguous_format)
            self._changed.notify_all()

    def get(self, key: Hashable) -> torch.Tensor:
        """Waits for a value; raises TimeoutError if none comes, or its rank has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or key in self._values, SECONDS)
            if key not in self._values:
                raise TimeoutError(f"no rank has left {key}")
            return self._values[key]

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


class Work:
    """Work that ends in :meth:`wait`."""

    def __init__(self, finish: Callable[[], object]) -> None:
        self.wait = finish


class ThreadGroup:
    """Some ranks; see :class:`deeppool.execution.communicator.Group`."""

    def __init__(self, board: Board, name: Hashable, rank: int, ranks: Sequence[int]) -> None:
        self._board, self._name, self._rank, self._ranks = board, name, rank, ranks
        self._numbers = itertools.count()

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> PendingWork:
        found = self._exchange(tensor)
        return Work(lambda: tensor.copy_(torch.stack(found()).sum(0)))

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        # Types of values are found by a run on tensors without data.
        return [tensor] * len(self._ranks) if isinstance(tensor, FakeTensor) else self._exchange(tensor)()

    def _exchange(self, tensor: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
        number = next(self._numbers)
        self._board.put((self._name, number, self._rank), tensor)
        return lambda: [self._board.get((self._name, number, rank)) for rank in self._ranks]

    def close(self) -> None:
        pass


class ThreadCommunicator(SingleRank):
    """All ranks; see :class:`deeppool.execution.communicator.Communicator`."""

    def __init__(self, board: Board, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._board, self._groups = board, itertools.count()
        self._all = ThreadGroup(board, "all", rank, range(ranks))
        self._sent, self._received = ([itertools.count() for _ in range(ranks)] for _ in range(2))

    def group(self, ranks: Sequence[int], *, schedules: bool = False) -> ThreadGroup:
        return ThreadGroup(self._board, next(self._groups), self.rank, ranks)

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        for tensor, peer in sending:
            self._board.put(("sent", self.rank, peer, next(self._sent[peer])), tensor)
        keys = [("sent", peer, self.rank, next(self._received[peer])) for _, peer in receiving]
        arrivals = [
            Work(lambda tensor=tensor, key=key: tensor.copy_(self._board.get(key)))
            for (tensor, _), key in zip(receiving, keys, strict=True)
        ]
        return [*arrivals, *(Work(lambda: None) for _ in sending)]

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        return self._all.all_reduce(tensor)

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1)).wait()


def run_ranks(ranks: int, run: Callable[[ThreadCommunicator], Callable[[], Result]]) -> list[Result]:
    """Prepares each rank in turn, then runs what that returns in a thread for each; returns their results.

    Raises:
        Exception: that of the first rank that failed by itself.
    """
    board = Board()
    works = [run(ThreadCommunicator(board, rank, ranks)) for rank in range(ranks)]
    results: dict[int, Result] = {}
    errors: list[Exception] = []

    def enter(rank: int) -> None:
        try:
            results[rank] = works[rank]()
        except Exception as error:
            errors.append(error)
            board.fail()

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, TimeoutError)), errors[0])
    return [results[rank] for rank in range(ranks)]
