"""Runs notebooks, each in a process of its own: several at once, and those that measure time alone."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from deeppool.base.number_checks import whole_number
from deeppool.device.cpu import usable_cores
from deeppool.evaluation.execution import ANSWER, KERNEL_ENVIRONMENT, ExecutedNotebook, NotebookTask
from deeppool.processes import stop_detector
from deeppool.processes.end_of_processes import wait_until_ended
from deeppool.processes.rank_group import private_folder
from deeppool.units import format_seconds

MAX_JOBS = 4
"""Default bound on notebooks at once; a kernel with torch loaded holds half a gigabyte."""
EXIT_SECONDS = 3.0
"""Time for a kernel, and the ranks that it started, to exit by themselves after their parent was killed."""


@dataclass(frozen=True, slots=True)
class CompletedTask:
    """A task that finished, failed, or was ended by the budget."""

    task: NotebookTask
    executed: ExecutedNotebook | None
    """Executed notebook; None: it failed or did not run to its end."""
    problem: str
    out_of_time: bool
    seconds: float


def default_jobs() -> int:
    """Returns the number of usable cores, at most :data:`MAX_JOBS`."""
    return min(MAX_JOBS, len(usable_cores()))


def run_tasks(
    tasks: Sequence[NotebookTask],
    *,
    jobs: int = 1,
    budget: float | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Iterator[CompletedTask]:
    """Runs tasks and yields each one when it has completed; closing the iterator ends the running ones.

    Args:
        tasks: notebooks; those that measure time run after the others, one at a time.
        jobs: notebooks that run at once, unless they measure time.
        budget: seconds after which running notebooks are ended and no other starts; None: no limit.
        on_progress: called with the names of the running notebooks and the share of completed ones; from worker
            threads, one call at a time.

    Raises:
        InvalidValueError: jobs below 1.
    """
    whole_number("jobs", jobs)
    processes = _NotebookProcesses(len(tasks), budget, on_progress or (lambda text, share: None))
    for measures, threads in ((False, jobs), (True, 1)):
        executor = ThreadPoolExecutor(threads)
        try:
            futures = [executor.submit(processes.run, task) for task in tasks if task.measures is measures]
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            processes.stopped.set()
            raise
        finally:
            executor.shutdown(cancel_futures=True)


class _NotebookProcesses:
    """Processes of one :func:`run_tasks` call; the threads of a pool each wait for one of them.

    Not a ProcessPoolExecutor: a worker of it that is killed breaks the pool and fails every other task.
    """

    def __init__(self, task_count: int, budget: float | None, on_progress: Callable[[str, float], None]) -> None:
        self.task_count, self.completed = task_count, 0
        self.budget = budget
        self.deadline = None if budget is None else time.monotonic() + budget
        self.on_progress = on_progress
        self.running: list[str] = []
        self.stopped = threading.Event()
        """Set: each thread ends its notebook, and no other starts."""
        self.lock = threading.Lock()

    def run(self, task: NotebookTask) -> CompletedTask:
        """Runs one notebook to its end, or to the end of the budget."""
        started = time.monotonic()
        if self._remaining() == 0 or self.stopped.is_set():
            return CompletedTask(task, None, f"{self._budget_text()} before it began", True, 0.0)
        # A notebook's process that is killed removes nothing, and neither does this one.
        with private_folder() as scratch:
            process = self._start(task, scratch)
            try:
                ended = self._wait(process)
                executed, problem = _read_answer(task, process.returncode, scratch)
                out_of_time, problem = False, f"notebook {task.name}: {ended}" if ended else problem
            except subprocess.TimeoutExpired:
                _end_process_tree(process)
                elapsed = format_seconds(time.monotonic() - started)
                executed, out_of_time = None, True
                problem = f"{self._budget_text()} while it ran, {elapsed} after it began"
            finally:
                self._finish(task)
                if process.stdin is not None:
                    process.stdin.close()
        return CompletedTask(task, executed, problem, out_of_time, time.monotonic() - started)

    def _wait(self, process: subprocess.Popen[str]) -> str:
        """Waits for the end of a notebook's process; ends it where all are to end, or a signal has stopped it.

        Returns:
            Why it was ended, or nothing.

        Raises:
            TimeoutExpired: the budget was spent.
        """
        detector = stop_detector.StopDetector()
        while not self.stopped.is_set():
            remaining = self._remaining()
            try:
                process.wait(min(stop_detector.CHECK_SECONDS, math.inf if remaining is None else remaining))
            except subprocess.TimeoutExpired:
                if self._remaining() == 0:
                    raise
                if detector.check(_process_and_kernel(process.pid)):
                    _end_process_tree(process)
                    return f"a signal stopped its process for {stop_detector.STOPPED_SECONDS:.0f} s, and it was ended"
                continue
            return ""
        _end_process_tree(process)
        return "it was ended with the others"

    def _start(self, task: NotebookTask, scratch: Path) -> subprocess.Popen[str]:
        with self.lock, (scratch / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "deeppool.evaluation.execution", scratch, json.dumps(task.to_json())],
                # Stays open: its end signals the notebook's process that this one has ended.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                env={**os.environ, **KERNEL_ENVIRONMENT},
                # Ctrl-C in a terminal reaches this process alone, which then ends the others.
                process_group=0,
            )
            self.running.append(task.name)
            self._report()
        return process

    def _finish(self, task: NotebookTask) -> None:
        with self.lock:
            self.running.remove(task.name)
            self.completed += 1
            self._report()

    def _report(self) -> None:
        text = f"running {', '.join(self.running)}" if self.running else "done"
        self.on_progress(text, self.completed / self.task_count)

    def _remaining(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _budget_text(self) -> str:
        return f"the budget of {format_seconds(self.budget or 0.0)} was spent"


def _read_answer(task: NotebookTask, exit_code: int, scratch: Path) -> tuple[ExecutedNotebook | None, str]:
    """Returns the executed notebook, or None with the reason."""
    if exit_code == 0:
        answer = json.loads((scratch / ANSWER).read_text(encoding="utf-8"))
        return (ExecutedNotebook(**answer["executed"]), "") if "executed" in answer else (None, answer["problem"])
    reason = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"
    last_line = (scratch / "stderr").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    return None, f"the process of notebook {task.name} {reason}" + (f": {last_line}" if last_line else "")


def _process_and_kernel(pid: int) -> list[int]:
    """Returns a notebook's process and its kernel; what the kernel starts is supervised there."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children())]
    except psutil.NoSuchProcess:
        return []


def _end_process_tree(process: subprocess.Popen[str]) -> None:
    """Kills a process, then what it started (a kernel has a session of its own) and what does not exit by itself.

    Returns when all have ended: a kernel that is starting makes the folder of its files anew.
    """
    # It starts nothing that would not be known.
    process.send_signal(signal.SIGSTOP)
    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        descendants = []
    process.kill()
    process.wait()
    # A kernel that exits by itself lets its runs remove their shared memory.
    alive = wait_until_ended(descendants, EXIT_SECONDS)
    for each in alive:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    wait_until_ended(alive, EXIT_SECONDS)
