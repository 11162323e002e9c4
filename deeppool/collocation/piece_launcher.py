"""Pieces of a background's work, given to a stream as fast as a gate admits them; nothing ever waits for the device.

On a GPU the pieces are CUDA graphs captured on a stream of low priority, and the lane runs in a thread of the rank's
own process: replaying a graph releases the interpreter's lock, so graphs of two jobs run beside each other. A
background that is not captured launches its kernels one by one, and would take the lock from the foreground: it belongs
into a process of its own. On a CPU a piece is done when its launch returns. Never run on a GPU so far.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deeppool.device.common import Device, Launch, Stream
from deeppool.errors import RunError
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate

POLL_SECONDS = 1e-4
"""Between two looks at a gate that is closed; each takes the interpreter's lock for some microseconds."""
DRAIN_SECONDS = 60.0
"""That pieces in flight get to end."""
AHEAD_SECONDS = 0.02
"""Of pieces in flight beyond the first two, whatever a gate admits: a device is as busy with them as with the thousand
launches that a driver's queue holds, which would go on for seconds after the lane was stopped.
"""
REPETITIONS = 5

Look = Callable[[], tuple[BackgroundLimits, Operator | None]]
"""The foreground's orders, and what it does now."""


@dataclass(frozen=True, slots=True)
class LaunchedPiece:
    """A slice of a background's step that is launched as a unit."""

    work: Callable[[], None]
    expected: float
    """Seconds that it holds the device, alone."""
    prepare: Callable[[], None] | None = None
    """What the host does before it asks the gate, as often as the lane likes: the device is not held for it."""


def timed(works: Sequence[Callable[[], None]], stream: Stream, device: Device) -> tuple[LaunchedPiece, ...]:
    """Measures pieces in the order in which they make up a step. Waits for the device: not beside a foreground."""
    runs = []
    for _ in range(REPETITIONS):
        launches = [stream.launch(work) for work in works]
        device.synchronize()
        runs.append([launch.seconds() for launch in launches])
    return tuple(
        LaunchedPiece(work, statistics.median(times))
        for work, times in zip(works, zip(*runs, strict=True), strict=True)
    )


class PieceLauncher:
    """A stream behind a gate. Belongs to one thread at a time."""

    def __init__(self, stream: Stream, gate: Gate, look: Look) -> None:
        """Nothing is in flight.

        Args:
            stream: where pieces go, of low priority.
            gate: says when.
            look: at the foreground, before each piece; takes no time.
        """
        self._stream, self._gate, self._look = stream, gate, look
        self._in_flight: deque[tuple[Launch, float]] = deque()
        """And the seconds that each is expected to take."""
        self._ahead = 0.0
        """Their sum."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._clock: int | None = None
        """Of the thread's CPU time."""
        self._used = 0.0
        self.launched = 0
        """Pieces so far; the next one to launch is the one after them."""
        self.finished = 0
        """Pieces so far."""
        self.seconds = 0.0
        """That they held the device."""
        self.error: Exception | None = None
        """What ended the lane by itself."""

    def launch(self, piece: LaunchedPiece) -> bool:
        """Launches a piece as soon as the gate admits it; False: the lane was closed first."""
        while not self._ending.is_set():
            self._collect()
            orders, doing = self._look()
            admitted = self._gate.admits(time.perf_counter(), orders, doing, piece.expected)
            if admitted and (len(self._in_flight) < 2 or self._ahead < AHEAD_SECONDS):
                self._in_flight.append((self._stream.launch(piece.work), piece.expected))
                self._ahead += piece.expected
                self._gate.launched(time.perf_counter(), piece.expected)
                self.launched += 1
                return True
            time.sleep(POLL_SECONDS)
        return False

    @contextmanager
    def running(self, pieces: Sequence[LaunchedPiece]) -> Iterator[None]:
        """Launches the pieces while the block runs, as :meth:`start` does."""
        self.start(pieces)
        try:
            yield
        finally:
            self.stop()

    def start(self, pieces: Sequence[LaunchedPiece]) -> None:
        """Launches the pieces over and over, in a thread, from where it was stopped before.

        A piece that fails ends the lane and not who started it: it is in :attr:`error`.

        Args:
            pieces: of a step, in order; always the same ones.
        """
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, args=(pieces,), name="deeppool background", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Launches no more, and returns when none is in flight."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def cpu_seconds(self) -> float:
        """CPU time that its threads have used: on a CPU most of it is the pieces'."""
        clock = self._clock
        return self._used + (0.0 if clock is None else _read(clock))

    def _run(self, pieces: Sequence[LaunchedPiece]) -> None:
        self._clock = (
            time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else None
        )
        try:
            while self.error is None:
                piece = pieces[self.launched % len(pieces)]
                if piece.prepare is not None:
                    piece.prepare()
                if not self.launch(piece):
                    break
            self._drain()
        # Whatever it is, it must not end the foreground.
        except Exception as error:
            self.error = error
        finally:
            self._used, self._clock = self._used + time.thread_time(), None

    def _collect(self) -> None:
        """Takes note of the pieces that have ended, oldest first."""
        while self._in_flight and self._in_flight[0][0].done():
            launch, expected = self._in_flight.popleft()
            self._ahead = self._ahead - expected if self._in_flight else 0.0
            seconds = launch.seconds()
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


def _read(clock: int) -> float:
    """Zero where the thread has just ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
