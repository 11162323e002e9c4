"""Partial all-reduces of the ranks of one host, through memory that they share.

Whichever rank sees that a round fires performs it, with the send buffers of all: nothing waits for a late rank's
thread, and no thread is needed beside it. Waiting ranks sleep until a round is completed; now and then they check that
the others' processes live.
"""

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from deeppool.collectives.partial.rounds import RoundResult, Rounds
from deeppool.collectives.partial.state import RoundSpec, RoundState
from deeppool.errors import RankFailedError, RunError
from deeppool.execution.transports.file_lock import FileLock
from deeppool.execution.transports.futex import Futex
from deeppool.execution.transports.received import TIMEOUT, Received
from deeppool.processes.end_of_processes import has_ended

CHECK_INTERVAL = 1.0
"""Seconds between two checks that the other ranks live."""


class SharedMemoryRounds:
    """One rank's side of partial all-reduces in shared memory."""

    def __init__(self, path: Path, rank: int, spec: RoundSpec, *, timeout: float = TIMEOUT) -> None:
        """Maps the memory; every rank does.

        Args:
            path: file made by :func:`create`.
            rank: of this process or thread.
            spec: the same on all ranks.
            timeout: seconds to wait for other ranks.
        """
        self.rank, self.rule, self.timeout = rank, spec.rule, timeout
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), RoundState.size(spec))
        self._state = RoundState(spec, self._memory)
        self._rounds = Rounds(self._state)
        self._lock, self._changed = FileLock(path, timeout), Futex(self._state.event)
        self._checked = time.monotonic()
        self._processes: dict[int, psutil.Process] = {}
        """Of ranks that were seen alive: each tells its process from a later one of the same number."""
        with self._lock:
            self._state.process[rank] = os.getpid()

    def all_reduce(self, gradient: NDArray[Any], number: int | None = None) -> Received:
        """Adds a gradient, and returns the results that this rank has not received.

        Waits if there are none, unless this rank has received the round ``number``, which the call is for.

        Raises:
            RankFailedError: another rank's process ended.
            RunError: no result came in time.
        """
        self._write(gradient)
        waits = number is None or self._state.applied[self.rank] <= number
        if waits:
            self._step(arrives=True)
        else:
            with self._lock:
                self._rounds.end_write(self.rank, 1)
        self._check_peers()
        results = self._await_results() if waits else self._receive()
        return Received(tuple(results), self._rounds.accepted(self.rank))

    def restore(self, pending: NDArray[Any], count: int) -> None:
        """Adds gradients of an earlier run to this rank's send buffer; the next round takes them."""
        self._write(pending)
        with self._lock:
            self._rounds.end_write(self.rank, count)

    def drain(self) -> Iterator[RoundResult]:
        """Delivers what is left in all send buffers; yields the rounds to apply. Ends when all ranks have called it."""
        with self._lock:
            self._rounds.finish(self.rank)
        self._step()
        while results := self._await_results():
            # What this rank has received no longer holds up the next round.
            self._step()
            yield from results

    def pending(self) -> tuple[NDArray[Any], int]:
        """Returns a copy of the gradients in this rank's send buffer, and their number."""
        with self._lock:
            buffer, _ = self._rounds.begin_write(self.rank)
            self._rounds.end_write(self.rank, 0)
            count = int(self._state.pending[self.rank])
            return (buffer.copy() if count else np.zeros_like(buffer)), count

    def close(self, *, agreed: bool = False) -> None:
        """Ends this rank's part; unless all have agreed to end, or it has drained, the others end in an error."""
        if not (agreed or self._rounds.closed or self._lock.closed):
            self._fail(self.rank)
        self._lock.close()

    def _write(self, gradient: NDArray[Any]) -> None:
        """Adds to the send buffer, which no round takes until the caller ends the write."""
        self._state.spec.check(gradient)
        with self._lock:
            buffer, adds = self._rounds.begin_write(self.rank)
        if adds:
            buffer += gradient
        else:
            buffer[...] = gradient

    def _step(self, *, arrives: bool = False) -> None:
        """Performs rounds as long as they fire, after this rank's arrival or as it finds them."""
        performed = False
        while True:
            with self._lock:
                now = time.monotonic()
                if arrives:
                    self._rounds.arrive(self.rank, now)
                firing, arrives = self._rounds.fire(self.rank, now), False
                if firing is None:
                    wakes = performed or self._rounds.closed
                    if wakes:
                        self._changed.notify()
                    break
            firing.sum()
            with self._lock:
                self._rounds.complete(firing)
                performed = performed or firing.completes
        # An arrival that fires no round changes nothing for others: whoever starts a grace window awaits its end.
        if wakes:
            self._changed.wake()

    def _await_results(self) -> list[RoundResult]:
        """Returns what this rank has not received, at least one; none: all ranks have finished."""
        end = time.monotonic() + self.timeout
        while not (results := self._receive()):
            with self._lock:
                seen, fires_at, closed = self._changed.value(), self._rounds.fires_at(), self._rounds.closed
                progress = self._rounds.completed > self._state.applied[self.rank]
            if closed and not progress:
                break
            now = time.monotonic()
            if fires_at <= now:
                self._step()
            elif not progress:
                self._check_peers()
                if now > end:
                    self._give_up()
                self._changed.wait(seen, min(fires_at - now, CHECK_INTERVAL, max(end - now, 0.001)))
        return results

    def _receive(self) -> list[RoundResult]:
        slots = self._rounds.unread(self.rank)
        # Only ``latest`` overwrites what is being copied; its newer result then replaces it.
        results = [result for slot in slots if (result := self._rounds.read(slot)) is not None]
        if results and self._rounds.received(self.rank, results[-1].number):
            self._changed.notify()
            self._changed.wake()
        return results

    def _check_peers(self) -> None:
        """Raises if a rank is gone before all gradients are delivered, or has given up.

        Each rank looks after the next one that lives, and records what it finds, so that a call costs little.
        """
        if not self._state.failed[0] and time.monotonic() > self._checked + CHECK_INTERVAL:
            self._checked = time.monotonic()
            for distance in range(1, self.rule.ranks):
                other = (self.rank + distance) % self.rule.ranks
                if not self._state.process[other]:
                    continue
                # In this order: a rank that has ended in order did so after the last round.
                if self._lives(other) or self._rounds.closed:
                    break
                self._fail(other)
        if failed := int(self._state.failed[0]):
            process = int(self._state.process[failed - 1])
            raise RankFailedError(
                f"rank {failed - 1} of a partial all-reduce ended without draining, or gave up: process {process} "
                "(see its own error)"
            )

    def _lives(self, rank: int) -> bool:
        try:
            process = self._processes.setdefault(rank, psutil.Process(int(self._state.process[rank])))
            return not has_ended(process)
        except psutil.NoSuchProcess:
            return False

    def _give_up(self) -> None:
        with self._lock:
            number, state = self._rounds.completed, self._state
            late = [
                rank for rank in range(self.rule.ranks) if not state.finished[rank] and state.joined[rank] <= number
            ]
        self._fail(self.rank)
        raise RunError(
            f"round {number} of a partial all-reduce did not complete within {self.timeout:g} s: ranks {late} have not "
            "arrived (raise timeout, or find out what stops them)"
        )

    def _fail(self, rank: int) -> None:
        """Records that a rank failed, and wakes all; without the lock, which a stopped rank may hold."""
        self._state.failed[0] = self._state.failed[0] or rank + 1
        self._changed.notify()
        self._changed.wake()


def create(path: Path, spec: RoundSpec) -> None:
    """Creates the memory as a file that only this user can read; one rank calls it before any maps it.

    Raises:
        RunError: the file system has too little space.
    """
    size = RoundState.size(spec)
    if (free := psutil.disk_usage(str(path.parent)).free) < size:
        raise RunError(
            f"the ranks' shared memory needs {size} bytes and {path.parent} has {free} "
            "(use delivery='latest', or a smaller staleness_limit)"
        )
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.ftruncate(file, size)
    finally:
        os.close(file)
