"""Pieces of a background's work, given to a stream as fast as a gate admits them; nothing ever waits for the device.

On a GPU the pieces are CUDA graphs captured on a stream of low priority, and the lane runs in a thread of the rank's
own process: replaying a graph releases the interpreter's lock, so graphs of two jobs run beside each other. A
background that is not captured launches its kernels one by one, and would take the lock from the foreground: it belongs
into a process of its own. On a CPU a piece is done when its launch returns. Never run on a GPU so far.
"""

import itertools
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deeppool.device.common import Device, Launch, Stream
from deeppool.errors import RunError
from deeppool.scheduling.gate import Gate
from deeppool.scheduling.orders import Operator, Orders

POLL_SECONDS = 1e-4
"""Between two looks at a gate that is closed; each takes the interpreter's lock for some microseconds."""
DRAIN_SECONDS = 60.0
"""That pieces in flight get to end."""
REPETITIONS = 5

Look = Callable[[], tuple[Orders, Operator | None]]
"""The foreground's orders, and what it does now."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of a background's step that is launched as a unit."""

    work: Callable[[], None]
    expected: float
    """Seconds that it holds the device, alone."""


def timed(works: Sequence[Callable[[], None]], stream: Stream, device: Device) -> tuple[Piece, ...]:
    """Measures pieces in the order in which they make up a step. Waits for the device: not beside a foreground."""
    runs = []
    for _ in range(REPETITIONS):
        launches = [stream.launch(work) for work in works]
        device.synchronize()
        runs.append([launch.seconds() for launch in launches])
    return tuple(
        Piece(work, statistics.median(times)) for work, times in zip(works, zip(*runs, strict=True), strict=True)
    )


class Lane:
    """A stream behind a gate. Belongs to one thread at a time."""

    def __init__(self, stream: Stream, gate: Gate, look: Look) -> None:
        """Nothing is in flight.

        Args:
            stream: where pieces go, of low priority.
            gate: says when.
            look: at the foreground, before each piece; takes no time.
        """
        self._stream, self._gate, self._look = stream, gate, look
        self._in_flight: deque[Launch] = deque()
        self._ending = threading.Event()
        self.finished = 0
        """Pieces so far."""
        self.seconds = 0.0
        """That they held the device."""
        self.error: Exception | None = None
        """What ended the lane by itself."""

    def launch(self, piece: Piece) -> bool:
        """Launches a piece as soon as the gate admits it; False: the lane was closed first."""
        while not self._ending.is_set():
            self._collect()
            orders, doing = self._look()
            if self._gate.admits(time.perf_counter(), orders, doing, piece.expected):
                self._in_flight.append(self._stream.launch(piece.work))
                self._gate.launched(time.perf_counter(), piece.expected)
                return True
            time.sleep(POLL_SECONDS)
        return False

    @contextmanager
    def running(self, pieces: Sequence[Piece]) -> Iterator[None]:
        """Launches the pieces over and over, in a thread, while the block runs; ends when none is in flight.

        A piece that fails ends the lane and not the block: it is in :attr:`error`.
        """
        self._ending.clear()
        thread = threading.Thread(target=self._run, args=(pieces,), name="deeppool background", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _run(self, pieces: Sequence[Piece]) -> None:
        try:
            for piece in itertools.cycle(pieces):
                if not self.launch(piece):
                    break
            self._drain()
        # Whatever it is, it must not end the foreground.
        except Exception as error:
            self.error = error

    def _collect(self) -> None:
        """Takes note of the pieces that have ended, oldest first."""
        while self._in_flight and self._in_flight[0].done():
            seconds = self._in_flight.popleft().seconds()
            self._gate.finished(time.perf_counter(), seconds)
            self.finished += 1
            self.seconds += seconds

    def _drain(self) -> None:
        deadline = time.perf_counter() + DRAIN_SECONDS
        while self._in_flight:
            if time.perf_counter() > deadline:
                raise RunError(
                    f"{len(self._in_flight)} pieces of the background did not end within {DRAIN_SECONDS:.0f} s "
                    "(the device hangs, or a piece is far too long)"
                )
            time.sleep(POLL_SECONDS)
            self._collect()
