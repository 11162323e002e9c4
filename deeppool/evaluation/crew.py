"""Runs many notebooks, each in a process of its own: some at once, those that measure alone."""

import queue
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError
from deeppool.evaluation.execution import Result
from deeppool.evaluation.task import Task
from deeppool.processes.fork_server_client import fork_server
from deeppool.processes.managed_process import Inbox, ManagedProcess, ProcessHandle
from deeppool.units import format_seconds

MOST_JOBS = 4
"""Unless told otherwise; a kernel with torch holds half a gigabyte."""
ENDING_SECONDS = 3.0
"""For a kernel to notice that the process which started it is gone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that is over."""

    task: Task
    result: Result | None
    """None: it failed, or did not run to its end."""
    problem: str
    out_of_time: bool
    seconds: float


def usual_jobs() -> int:
    """As many notebooks at once as there are cores, up to four."""
    return min(MOST_JOBS, len(usable_cores()))


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    seconds: float | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Iterator[Ended]:
    """Runs tasks, and tells of each when it is over; what runs when the iterator is left is ended.

    Args:
        tasks: those that measure run after the others, one at a time.
        jobs: others that run at once.
        seconds: after which what runs is ended, and nothing more begins; None: no such limit.
        on_progress: called with what runs, and the share of the tasks that is over.

    Raises:
        InvalidValueError: jobs below 1.
    """
    if jobs < 1:
        raise InvalidValueError(f"jobs must be at least 1, got {jobs}")
    if (ready := fork_server()) is not None:
        ready.preload("deeppool.evaluation.kernel")
    # Here, as a process that is killed removes nothing.
    with tempfile.TemporaryDirectory(prefix="deeppool-kernels-", ignore_cleanup_errors=True) as sockets:
        crew = _Crew(tasks, jobs, seconds, on_progress or (lambda what, share: None), Path(sockets))
        try:
            yield from crew.run()
        finally:
            crew.end()


class _Crew:
    """The processes of one call."""

    def __init__(
        self,
        tasks: Sequence[Task],
        jobs: int,
        seconds: float | None,
        on_progress: Callable[[str, float], None],
        sockets: Path,
    ) -> None:
        self.sockets = sockets
        self.waiting = deque(sorted(tasks, key=lambda task: task.measures))
        self.count, self.over = len(tasks), 0
        self.jobs, self.on_progress = jobs, on_progress
        self.budget = seconds
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.running: dict[ProcessHandle, tuple[Task, float]] = {}
        self.inbox: Inbox = queue.SimpleQueue()

    def run(self) -> Iterator[Ended]:
        while self.waiting or self.running:
            while self.waiting and self._left() != 0 and self._has_room(self.waiting[0]):
                self._start(self.waiting.popleft())
            try:
                child, message = self.inbox.get(timeout=self._left())
            except queue.Empty:
                yield from self._stop()
                return
            if child in self.running:
                yield self._bury(child, message)

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _has_room(self, task: Task) -> bool:
        measuring = task.measures or any(other.measures for other, _ in self.running.values())
        return not self.running if measuring else len(self.running) < self.jobs

    def _start(self, task: Task) -> None:
        child = ManagedProcess(
            "deeppool.evaluation.worker", f"notebook {task.name}", self.inbox, fork_server=fork_server()
        )
        self.running[child] = (task, time.monotonic())
        sockets = Path(tempfile.mkdtemp(dir=self.sockets))
        told = asdict(task) | {"path": str(task.path), "folder": str(task.folder), "sockets": str(sockets)}
        child.send("run", **told)
        self._tell()

    def _tell(self) -> None:
        names = ", ".join(task.name for task, _ in self.running.values())
        self.on_progress(f"running {names}" if names else "done", self.over / self.count)

    def _bury(self, child: ProcessHandle, message: dict[str, Any] | None) -> Ended:
        task, started = self.running.pop(child)
        self.over += 1
        took = time.monotonic() - started
        if message is None:
            problem = f"the process of notebook {task.name} {child.exit_reason()}"
        else:
            problem = message.get("problem", "")
        _end(child)
        self._tell()
        result = Result(**message["result"]) if message and message["event"] == "done" else None
        return Ended(task, result, problem, False, took)

    def _stop(self) -> Iterator[Ended]:
        """The time is over."""
        spent = f"the budget of {format_seconds(self.budget or 0.0)} was spent"
        cut = list(self.running.items())
        self.end()
        for _, (task, started) in cut:
            took = time.monotonic() - started
            yield Ended(task, None, f"{spent} while it ran, {format_seconds(took)} after it began", True, took)
        for task in self.waiting:
            yield Ended(task, None, f"{spent} before it began", True, 0.0)

    def end(self) -> None:
        """Ends what runs."""
        for child in list(self.running):
            _end(child)
            del self.running[child]


def _end(child: ProcessHandle) -> None:
    """Ends a process, and its kernel, which has a session of its own, with all that this started."""
    assert isinstance(child, ManagedProcess)
    try:
        heirs = psutil.Process(child.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        heirs = []
    child.kill()
    _, alive = psutil.wait_procs(heirs, ENDING_SECONDS)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, ENDING_SECONDS)
