"""Partial all-reduces over TCP: a participant whose messages a thread of its own delivers.

Sends never block: what the system does not take at once waits until it does, so that two ranks which send to each other
cannot block each other.
"""

import logging
import math
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.partial.participant import Contribution, PartialMessage
from deeppool.collectives.partial.rounds import RoundResult
from deeppool.collectives.partial.state import RoundSpec
from deeppool.collectives.partial.straggler_aware import participant_of
from deeppool.errors import RankFailedError, RunError
from deeppool.execution.transports.received import TIMEOUT, Received

_HEADER = struct.Struct("!BBqq")
"""Kind of message, whether it has a total, its round, its dimension."""
_KINDS: tuple[Literal["arrival", "activation", "data"], ...] = ("arrival", "activation", "data")
_CLOSES = len(_KINDS)
"""Kind of the last message of a rank that ends in order."""
_PIECE = 1 << 18
"""Bytes to read at once."""
_log = logging.getLogger(__name__)


class TcpRounds:
    """One rank's side of partial all-reduces over TCP."""

    def __init__(
        self, rank: int, peers: dict[int, socket.socket], spec: RoundSpec, *, timeout: float = TIMEOUT
    ) -> None:
        """Starts the thread.

        Args:
            rank: of this process or thread.
            peers: connections to all others.
            spec: the same on all ranks.
            timeout: seconds to wait for other ranks.
        """
        self.rank, self.rule, self.timeout = rank, spec.rule, timeout
        self._spec, self._dtype = spec, np.dtype(spec.dtype)
        self._participant = participant_of(rank, spec)
        self._peers = peers
        self._queues: dict[int, deque[memoryview]] = {other: deque() for other in peers}
        self._read = {other: bytearray() for other in peers}
        self._ended: set[int] = set()
        self._failure: str | None = None
        self._stop_at = math.inf
        """When the thread ends though not all is sent."""
        self._closed = False
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._wakes, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        for other, peer in peers.items():
            self._selector.register(peer, selectors.EVENT_READ, other)
        self._thread = threading.Thread(target=self._progress, name="partial-all-reduce", daemon=True)
        self._thread.start()

    def all_reduce(self, gradient: NDArray[Any], number: int | None = None) -> Received:
        """Adds a gradient, and returns results; see :meth:`SharedMemoryRounds.all_reduce`.

        Raises:
            RankFailedError: another rank's process ended.
            RunError: no result came in time.
        """
        self._spec.check(gradient)
        with self._changed:
            self._check()
            if number is None or self._participant.applied <= number:
                self._participant.submit(gradient, time.monotonic())
                self._flush()
                results = self._await_results()
            else:
                self._participant.add(gradient, 1)
                results = self._participant.results()
            accepted = self._participant.accepted
        return Received(tuple(results), accepted)

    def restore(self, pending: NDArray[Any], count: int) -> None:
        """Adds gradients of an earlier run to this rank's send buffer; the next round takes them."""
        self._spec.check(pending)
        with self._changed:
            self._participant.add(pending, count)

    def drain(self) -> Iterator[RoundResult]:
        """Delivers what is left in all send buffers; yields the rounds to apply. Ends when all ranks have called it."""
        with self._changed:
            self._check()
            self._participant.finish(time.monotonic())
            self._flush()
        while True:
            with self._changed:
                results = self._await_results()
            if not results:
                return
            yield from results

    def pending(self) -> tuple[NDArray[Any], int]:
        """Returns a copy of the gradients in this rank's send buffer, and their number."""
        with self._changed:
            held, count = self._participant.pending, self._participant.pending_count
        return (np.zeros(self._spec.elements, self._dtype) if held is None else held.copy()), count

    def close(self, *, agreed: bool = False) -> None:
        """Ends this rank's part; see :meth:`SharedMemoryRounds.close`."""
        if self._closed:
            return
        with self._changed:
            in_order = agreed or self._participant.closed
            if in_order:
                for other in self._queues:
                    self._queues[other].append(memoryview(_HEADER.pack(_CLOSES, 0, 0, 0)))
                self._flush()
            # Where the others are to end in an error, nothing more is sent.
            self._stop_at = time.monotonic() + self.timeout if in_order else -math.inf
            self._closed = True
        self._wake()
        self._thread.join()
        self._selector.close()
        for each in (*self._peers.values(), self._wakes, self._woken):
            each.close()

    def _await_results(self) -> list[RoundResult]:
        """Returns what this rank has not received, at least one; none: all ranks have finished."""
        end = time.monotonic() + self.timeout
        while not (results := self._participant.results()) and not self._participant.closed:
            self._check()
            if (left := end - time.monotonic()) <= 0:
                raise RunError(
                    f"round {self._participant.completed} of a partial all-reduce did not complete within "
                    f"{self.timeout:g} s (raise timeout, or find out which rank stopped)"
                )
            self._changed.wait(left)
        return results

    def _check(self) -> None:
        if self._closed:
            raise RunError(f"rank {self.rank} has closed its partial all-reduces (call close last)")
        if self._failure is not None:
            raise RankFailedError(self._failure)

    def _progress(self) -> None:
        """Delivers messages until this rank ends; an error here is one of all that wait."""
        try:
            self._deliver()
        except Exception as error:
            _log.exception("rank %d cannot deliver the messages of its partial all-reduces", self.rank)
            with self._changed:
                self._failure = (
                    f"rank {self.rank} cannot deliver messages of partial all-reduces: {error!r} (see the log)"
                )
                self._changed.notify_all()

    def _deliver(self) -> None:
        """Delivers messages until this rank ends and all that it has to send is sent."""
        while True:
            with self._changed:
                now = time.monotonic()
                if self._closed and (now >= self._stop_at or not any(self._queues.values())):
                    return
                wait = min(self._participant.fires_at(), self._stop_at) - now
            ready = self._selector.select(None if wait == math.inf else max(wait, 0.0))
            with self._changed:
                before = self._participant.completed
                for key, events in ready:
                    self._serve(key.data, events)
                self._participant.advance(time.monotonic())
                self._flush()
                if self._participant.completed > before or self._failure is not None:
                    self._changed.notify_all()

    def _serve(self, other: int | None, events: int) -> None:
        if other is None:
            self._woken.recv(_PIECE)
        elif events & selectors.EVENT_READ:
            self._receive(other)

    def _receive(self, other: int) -> None:
        """Reads what a rank has sent, and delivers its complete messages."""
        try:
            piece = self._peers[other].recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        buffer = self._read[other]
        buffer += piece
        while (message := self._next_message(other, buffer)) is not None:
            self._participant.receive(other, message, time.monotonic())
        if not piece:
            self._selector.unregister(self._peers[other])
            self._queues[other].clear()
            if other not in self._ended and not self._participant.closed:
                self._failure = f"rank {other} of a partial all-reduce ended without draining (see its own error)"

    def _next_message(self, other: int, buffer: bytearray) -> PartialMessage | None:
        """Takes a complete message from the bytes of a rank; None: more have to come."""
        if len(buffer) < _HEADER.size:
            return None
        kind, has_total, number, dimension = _HEADER.unpack_from(buffer)
        if kind > _CLOSES:
            raise RunError(f"rank {other} sent a message of unknown kind {kind} (run one version on all ranks)")
        if kind == _CLOSES:
            self._ended.add(other)
            del buffer[: _HEADER.size]
            return None
        ranks, start = self.rule.ranks, _HEADER.size
        middle = start + (16 * ranks if _KINDS[kind] == "data" else 0)
        end = middle + (self._participant.elements_of(dimension) * self._dtype.itemsize if has_total else 0)
        if len(buffer) < end:
            return None
        contribution = None
        if _KINDS[kind] == "data":
            numbers = np.frombuffer(buffer[start:middle], np.int64)
            total = np.frombuffer(buffer[middle:end], self._dtype) if has_total else None
            contribution = Contribution(numbers[:ranks], numbers[ranks:], total)
        del buffer[:end]
        return PartialMessage(_KINDS[kind], number, dimension, contribution)

    def _flush(self) -> None:
        """Queues the participant's messages, and sends what the system takes."""
        for destination, message in self._participant.outbox:
            self._queues[destination].extend(_encoded(message))
        self._participant.outbox.clear()
        for other, queue in self._queues.items():
            if queue:
                self._send(other, queue)
        if threading.current_thread() is not self._thread and self._participant.fires_at() < math.inf:
            # An arrival has started a grace window, whose end the thread has to meet.
            self._wake()

    def _wake(self) -> None:
        """Makes the thread look again; it does so anyway where its socket is full of such bytes."""
        with suppress(BlockingIOError):
            self._wakes.send(b"\0")

    def _send(self, other: int, queue: deque[memoryview]) -> None:
        try:
            while queue:
                sent = self._peers[other].send(queue[0])
                queue[0] = queue[0][sent:]
                if not queue[0]:
                    queue.popleft()
        except BlockingIOError:
            pass
        except OSError:
            # Part of a message may be sent: nothing can follow it. Reading shows that the other rank has ended.
            queue.clear()
            with suppress(OSError):
                self._peers[other].shutdown(socket.SHUT_RDWR)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if queue else 0)
        known = self._selector.get_map().get(self._peers[other])
        if known is not None and known.events != wanted:
            self._selector.modify(self._peers[other], wanted, other)
            if queue and threading.current_thread() is not self._thread:
                self._wake()


def _encoded(message: PartialMessage) -> Iterator[memoryview]:
    held = message.contribution
    total = None if held is None else held.total
    yield memoryview(_HEADER.pack(_KINDS.index(message.kind), total is not None, message.number, message.dimension))
    if held is not None:
        yield memoryview(np.concatenate([held.counts, held.finished]).tobytes())
        if total is not None and len(total):
            yield total.data.cast("B")
