"""A background job in the process of a rank: its training in pieces, on a stream of its own, in a thread.

In one process a GPU runs two jobs at once without a daemon, separates them by priority, and the foreground's stamps
show what it does now: replaying a graph releases the interpreter's lock. The cost: what ends the device's context ends
both jobs, and both launch from one process: on an H200 ranks were slowed by more, the more pieces were launched
(``benchmarks/gpu``). A process of its own (:mod:`deeppool.collocation.background_worker`) contains a fault, unless MPS
joins the two. On a CPU the thread shares the rank's core, random numbers and the interpreter's lock at equal priority.
"""

import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from typing import Any

from deeppool.collocation.background_training import KEPT_PIECES, BackgroundTraining
from deeppool.collocation.piece_launcher import ForegroundState, PieceLauncher
from deeppool.device.protocol import Device
from deeppool.errors import RunError
from deeppool.scheduling.background_limits import CLOSED, BackgroundLimits, Operator

POLL_SECONDS = 2.5e-4
"""Interval between two polls of a closed gate, half of the longest piece: each takes the interpreter's lock, for which
the foreground's launches then wait."""
DRAIN_SECONDS = 60.0
"""Time-out for pieces in flight to finish."""


class _ClosedError(Exception):
    """Ends the background's thread at its next piece."""


class InProcessBackground:
    """Trains one background job in the process of a rank; used by the rank's thread, which lets it train and rest."""

    def __init__(self, training: BackgroundTraining, device: Device, foreground: ForegroundState) -> None:
        """Takes a first step; the foreground must not run meanwhile.

        Args:
            training: training of the job, paced.
            device: the rank's device, selected.
            foreground: reads the state of the foreground; called by the background's thread.
        """
        self.training = training
        self.priority = self.training.shared.granted or "the rank's own priority"
        self._foreground = foreground
        self.training.step()
        self.finished = 0
        """Pieces that have finished so far, without those of the first step."""
        trainer = self.training.trainer
        self._launcher = PieceLauncher(
            self.training.sharing, self._read, trainer, on_finished=self._piece_finished, wait=self._wait
        )
        trainer.watcher = self._launcher
        self._clock = device.clock
        self._resumed, self._drained = self._clock.signal(), self._clock.signal()
        self._drained.set()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._cpu_clock: int | None = None
        """Clock of the thread's CPU time."""
        self._cpu_at_end = 0.0
        self.error: Exception | None = None
        """The exception that ended the training."""
        self._began = 0.0
        self._ends = array("d")
        """When the pieces of this phase had finished, ascending."""
        self._losses: list[float] = []
        """Losses of the steps that ended in this phase."""
        self._pieces: deque[tuple[float, float]] = deque(maxlen=KEPT_PIECES)
        """Start and end of the pieces that have finished last."""

    def begin(self) -> None:
        """Starts a training phase: the step continues where it was stopped."""
        self._began, self._ends, self._losses = self._clock.now(), array("d"), []
        if self.error is None:
            self._drained.clear()
        self._resumed.set()
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, "deeppool background")

    def rest(self, clock_offset: float = 0.0, until: float | None = None) -> dict[str, Any]:
        """Ends the training phase; pieces in flight at its end do not count. Returns when none is in flight.

        Args:
            clock_offset: the launcher's clock minus this machine's.
            until: launcher's clock at the end of the phase, which is over; None: it ends now.

        Returns:
            As the only one of its ``parts``, the steps of the phase, and the losses of those that ended in it; kind,
            start and end of its last ``pieces``; and the progress of the job. ``why`` it ended, if an exception ended
            it.

        Raises:
            RunError: pieces in flight do not end.
        """
        finished = bisect_right(self._ends, self._clock.now() if until is None else until - clock_offset)
        self._resumed.clear()
        if not self._drained.wait(DRAIN_SECONDS):
            raise RunError(
                f"{self._launcher.in_flight} pieces of the background did not end within {DRAIN_SECONDS:.0f} s "
                "(the device hangs, or a piece is far too long)"
            )
        if self.error is not None:
            return {"why": f"failed: {type(self.error).__name__}: {self.error}"}
        pieces = [
            ("piece", began + clock_offset, ended + clock_offset)
            for began, ended in self._pieces
            if began >= self._began
        ]
        steps = finished / self.training.pieces
        return {"parts": [(steps, self._losses)], "pieces": pieces, **self.training.progress(clock_offset)}

    def close(self) -> None:
        """Ends the thread, and the training in the middle of its step; it cannot begin again."""
        if self._resumed.is_set():
            self.rest()
        self._closed = True
        if self._thread is not None and self._thread.is_alive():
            self._drained.clear()
            self._resumed.set()
            # In the device's time: a thread that has the turn there must not wait for another in any other way.
            self._drained.wait(DRAIN_SECONDS)
            self._thread.join(DRAIN_SECONDS)

    def cpu_seconds(self) -> float:
        """Returns the CPU time that the thread has used; on a CPU most of it is the pieces' own."""
        try:
            return self._cpu_at_end if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:  # the thread has just ended
            return self._cpu_at_end

    def _run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            while True:
                loss = self.training.step()
                self._losses.append(loss)
        except _ClosedError:
            pass
        # No exception of a background may end the foreground.
        except Exception as error:
            self.error = error.with_traceback(None)  # which would hold the step's tensors
        finally:
            self._cpu_at_end, self._cpu_clock = time.thread_time(), None
            self._drained.set()

    def _read(self) -> tuple[BackgroundLimits, Operator | None]:
        """Returns the state of the foreground for the next piece; none may begin while the job rests."""
        if self._closed:
            raise _ClosedError
        if self._resumed.is_set():
            return self._foreground()
        if not self._launcher.in_flight:
            self._drained.set()
        return CLOSED, None

    def _wait(self, seconds: float) -> bool:
        """Waits between two polls of the gate; while the job rests, until it begins again."""
        if self._drained.is_set():
            self._resumed.wait()
        else:
            self._clock.sleep(POLL_SECONDS)
        return True

    def _piece_finished(self, seconds: float) -> None:
        self.finished += 1
        # A GPU's pieces are seen to be finished when the next one is launched.
        now = self._clock.now()
        self._pieces.append((now - seconds, now))
        self._ends.append(now)
