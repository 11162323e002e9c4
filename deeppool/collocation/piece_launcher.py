"""Launches pieces of a background's work on a stream as fast as a gate admits them, without waiting for the device.

On a GPU the pieces are CUDA graphs captured on a stream of low priority, launched by a thread of the rank's own
process: replaying a graph releases the interpreter's lock, so graphs of two jobs run concurrently. A background that is
not captured launches its kernels one by one and would take the lock from the foreground; it needs a process of its own.
On a CPU a piece is done when its launch returns. Never run on a GPU so far.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deeppool.device.protocol import Device, Launch, Stream
from deeppool.errors import RunError
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate

POLL_SECONDS = 1e-4
"""Interval between two polls of a closed gate; each takes the interpreter's lock for some microseconds."""
DRAIN_SECONDS = 60.0
"""Time-out for pieces in flight to finish."""
MAX_QUEUED_SECONDS = 0.02
"""Expected seconds of pieces in flight beyond the first two, whatever the gate admits. They keep a device as busy as
the thousand launches that a driver's queue holds, which would run for seconds after the launcher was stopped.
"""
REPETITIONS = 5

ForegroundState = Callable[[], tuple[BackgroundLimits, Operator | None]]
"""Returns the foreground's limits for the background, and the operator that it runs now."""


@dataclass(frozen=True, slots=True)
class LaunchedPiece:
    """A slice of a background's step that is launched as a unit."""

    work: Callable[[], None]
    expected: float
    """Seconds that it holds the device, alone."""
    prepare: Callable[[], None] | None = None
    """Work of the host before it polls the gate; may be called again, and does not hold the device."""


def time_pieces(works: Sequence[Callable[[], None]], stream: Stream, device: Device) -> tuple[LaunchedPiece, ...]:
    """Measures the pieces of a step, in order. It waits for the device, so the foreground must not run meanwhile."""
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
    """Launches pieces on a stream when a gate admits them. Used by one thread at a time."""

    def __init__(self, stream: Stream, gate: Gate, foreground: ForegroundState) -> None:
        """Starts without pieces in flight.

        Args:
            stream: runs the pieces, at low priority.
            gate: admits them.
            foreground: reads the state of the foreground before each piece; must be fast.
        """
        self._stream, self._gate, self._foreground = stream, gate, foreground
        self._in_flight: deque[tuple[Launch, float]] = deque()
        """Launches that have not finished, with their expected seconds."""
        self._queued_seconds = 0.0
        """Sum of their expected seconds."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._clock: int | None = None
        """Clock of the thread's CPU time."""
        self._cpu_before = 0.0
        """CPU seconds of the threads that have ended."""
        self.launched = 0
        """Pieces launched so far."""
        self.finished = 0
        """Pieces finished so far."""
        self.seconds = 0.0
        """Seconds that finished pieces held the device."""
        self.error: Exception | None = None
        """The exception that ended the thread."""

    def launch(self, piece: LaunchedPiece) -> bool:
        """Launches a piece as soon as the gate admits it; returns False if stopped first."""
        while not self._stopping.is_set():
            self._collect()
            limits, doing = self._foreground()
            admitted = self._gate.admits(time.perf_counter(), limits, doing, piece.expected)
            if admitted and (len(self._in_flight) < 2 or self._queued_seconds < MAX_QUEUED_SECONDS):
                self._in_flight.append((self._stream.launch(piece.work), piece.expected))
                self._queued_seconds += piece.expected
                self._gate.launched(time.perf_counter(), piece.expected)
                self.launched += 1
                return True
            time.sleep(POLL_SECONDS)
        return False

    @contextmanager
    def running(self, pieces: Sequence[LaunchedPiece]) -> Iterator[None]:
        """Launches the pieces during the block, as :meth:`start` does."""
        self.start(pieces)
        try:
            yield
        finally:
            self.stop()

    def start(self, pieces: Sequence[LaunchedPiece]) -> None:
        """Launches the pieces in a loop, in a thread, continuing where it was stopped.

        A piece that fails ends the thread; the exception is in :attr:`error`.

        Args:
            pieces: the pieces of a step, in order; the same ones in every call.
        """
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(pieces,), name="deeppool background", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops launching; returns when no piece is in flight."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def cpu_seconds(self) -> float:
        """Returns the CPU time that its threads have used; on a CPU most of it is the pieces' own."""
        clock = self._clock
        return self._cpu_before + (0.0 if clock is None else _read(clock))

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
        # No exception of a background may end the foreground.
        except Exception as error:
            self.error = error
        finally:
            self._cpu_before, self._clock = self._cpu_before + time.thread_time(), None

    def _collect(self) -> None:
        """Counts the pieces that have finished, oldest first."""
        while self._in_flight and self._in_flight[0][0].done():
            launch, expected = self._in_flight.popleft()
            self._queued_seconds = self._queued_seconds - expected if self._in_flight else 0.0
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
    """Reads a thread's clock; zero where the thread has just ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
