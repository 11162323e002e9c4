"""A background thread that runs only the newest task of a widget."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from deeppool.base.cancellation import Cancellation
from deeppool.errors import RunCancelledError


@dataclass(frozen=True, slots=True)
class _Task:
    key: Hashable
    work: Callable[[], Any]
    on_result: Callable[[Any], None]
    on_error: Callable[[Exception], None]


class LatestTask:
    """Runs the most recently submitted task in a background thread; there is no queue.

    A new task replaces one that has not started, and cancels the current one at its next
    :func:`deeppool.base.cancellation.check`, which long plan searches call.
    """

    def __init__(self) -> None:
        """Starts no thread; one exists only while there is work."""
        self._changed = threading.Condition()
        self._current: tuple[_Task, Cancellation] | None = None
        self._next: _Task | None = None
        self._idle = True

    def submit(
        self,
        key: Hashable,
        work: Callable[[], Any],
        on_result: Callable[[Any], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Starts a task, or schedules it to follow the current one, which is cancelled.

        Args:
            key: identifies the task; a current task with the same key continues.
            work: the computation.
            on_result: called in the thread with the result, unless a newer task was submitted meanwhile.
            on_error: called in the thread with the exception that the task raised.
        """
        with self._changed:
            if self._current is not None:
                task, cancellation = self._current
                if task.key == key and not cancellation.requested:
                    self._next = None
                    return
                cancellation.request()
            self._next = _Task(key, work, on_result, on_error)
            if not self._idle:
                return
            self._idle = False
        threading.Thread(target=self._run, name="deeppool latest", daemon=True).start()

    def cancel(self) -> None:
        """Cancels the current task and discards the next one."""
        with self._changed:
            self._next = None
            if self._current is not None:
                self._current[1].request()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there is no work left; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._idle, timeout)

    def _run(self) -> None:
        while (begun := self._take_next()) is not None:
            task, cancellation = begun
            try:
                with cancellation.applied():
                    result = task.work()
                    cancellation.check()
                task.on_result(result)
            except RunCancelledError:
                continue
            except Exception as error:  # the submitter handles it
                task.on_error(error)

    def _take_next(self) -> tuple[_Task, Cancellation] | None:
        with self._changed:
            task, self._next = self._next, None
            self._current = None if task is None else (task, Cancellation())
            if self._current is None:
                self._idle = True
                self._changed.notify_all()
            return self._current
