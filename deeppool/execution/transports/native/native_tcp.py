"""Partial all-reduces over TCP whose messages a native thread delivers; its bytes are those of ``TcpRounds``."""

import ctypes
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.partial.firing import MODES
from deeppool.collectives.partial.rounds import RoundResult
from deeppool.collectives.partial.state import DTYPES, RoundSpec
from deeppool.collectives.patterns.recursive_doubling import recursive_doubling
from deeppool.errors import RankFailedError, RunError
from deeppool.execution.transports.received import TIMEOUT, Received

_SLICE = 0.2
"""Seconds of one wait in the engine: between two of them Python handles signals."""
_KINDS = ("send", "receive", "reduce")
_CLOSED = -1
"""What the engine's wait returns when no result will come; below it a rank has failed."""


class NativeTcpRounds:
    """One rank's side of partial all-reduces over TCP, by the native engine."""

    def __init__(
        self,
        engine: ctypes.CDLL,
        rank: int,
        peers: dict[int, socket.socket],
        spec: RoundSpec,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Starts the thread.

        Args:
            engine: what :func:`deeppool.execution.transports.native.build.load_engine` returns.
            rank: of this process or thread.
            peers: connections to all others, which the engine closes.
            spec: the same on all ranks.
            timeout: seconds to wait for other ranks.

        Raises:
            RunError: the system has no thread or file descriptor left.
        """
        rule = spec.rule
        self.rank, self.rule, self.timeout = rank, rule, timeout
        self._engine, self._spec, self._dtype = engine, spec, np.dtype(spec.dtype)
        integers = (
            rank, rule.ranks, MODES.index(rule.mode), rule.quorum or 1, rule.staleness_limit or 0,
            rule.synchronous_every or 0, int(spec.delivery == "latest"), DTYPES.index(spec.dtype),
        )  # fmt: skip
        mine = [step for step in recursive_doubling(rule.ranks).steps if step.rank == rank]
        steps = [number for step in mine for number in (_KINDS.index(step.kind), step.peer)]
        sockets = [-1 if other == rank else peers[other].detach() for other in range(rule.ranks)]
        self._handle: int | None = engine.deeppool_start(
            _array(integers), rule.grace, rule.seed % 2**64, spec.elements, _array(steps), len(mine), _array(sockets)
        )
        if self._handle is None:
            raise RunError(f"rank {rank} cannot start a thread for partial all-reduces (raise ulimit -n or ulimit -u)")

    def all_reduce(self, gradient: NDArray[Any], number: int | None = None) -> Received:
        """Adds a gradient, and returns results; see :meth:`SharedMemoryRounds.all_reduce`.

        Raises:
            RankFailedError: another rank's process ended.
            RunError: no result came in time.
        """
        self._check()
        waits = number is None or self._state()[1] <= number
        self._add(gradient, 1, arrives=waits)
        results = self._await_results() if waits else self._take()
        return Received(tuple(results), bool(self._state()[2]))

    def restore(self, pending: NDArray[Any], count: int) -> None:
        """Adds gradients of an earlier run to this rank's send buffer; the next round takes them."""
        self._add(pending, count, arrives=False)

    def drain(self) -> Iterator[RoundResult]:
        """Delivers what is left in all send buffers; yields the rounds to apply. Ends when all ranks have called it."""
        self._check()
        self._engine.deeppool_finish(self._open())
        while results := self._await_results():
            yield from results

    def pending(self) -> tuple[NDArray[Any], int]:
        """Returns a copy of the gradients in this rank's send buffer, and their number."""
        total = np.empty(self._spec.elements, self._dtype)
        return total, int(self._engine.deeppool_pending(self._open(), total.ctypes.data))

    def close(self, *, agreed: bool = False) -> None:
        """Ends this rank's part; see :meth:`SharedMemoryRounds.close`."""
        if self._handle is not None:
            self._engine.deeppool_stop(self._handle, int(agreed), self.timeout)
            self._handle = None

    def _add(self, gradients: NDArray[Any], count: int, *, arrives: bool) -> None:
        self._spec.check(gradients)
        contiguous = np.ascontiguousarray(gradients)
        self._engine.deeppool_add(self._open(), contiguous.ctypes.data, count, int(arrives))

    def _await_results(self) -> list[RoundResult]:
        """Returns what this rank has not received, at least one; none: all ranks have finished."""
        end = time.monotonic() + self.timeout
        while not (found := self._engine.deeppool_wait(self._open(), min(_SLICE, max(0.0, end - time.monotonic())))):
            if time.monotonic() > end:
                raise RunError(
                    f"round {self._state()[0]} of a partial all-reduce did not complete within {self.timeout:g} s "
                    "(raise timeout, or find out which rank stopped)"
                )
        if found < _CLOSED:
            self._check()
        return self._take()

    def _take(self) -> list[RoundResult]:
        results: list[RoundResult] = []
        while True:
            counts, total = np.empty(self.rule.ranks, np.int64), np.empty(self._spec.elements, self._dtype)
            number = self._engine.deeppool_take(self._open(), counts.ctypes.data, total.ctypes.data)
            if number < 0:
                return results
            results.append(RoundResult(number, tuple(counts.tolist()), total))

    def _check(self) -> None:
        if (failed := self._state()[3]) >= 0:
            raise RankFailedError(f"rank {failed} of a partial all-reduce ended without draining (see its own error)")

    def _open(self) -> int:
        """Returns the engine's handle; raises after :meth:`close`, where there is none."""
        if self._handle is None:
            raise RunError(f"rank {self.rank} has closed its partial all-reduces (call close last)")
        return self._handle

    def _state(self) -> list[int]:
        """Returns completed and received rounds, whether these hold all gradients of this rank, and who failed."""
        found = np.empty(4, np.int64)
        self._engine.deeppool_state(self._open(), found.ctypes.data)
        return found.tolist()


def _array(numbers: tuple[int, ...] | list[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * max(len(numbers), 1))(*numbers)
