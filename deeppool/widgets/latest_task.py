"""A background thread that runs only the newest task of a widget."""

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any

from deeppool.base.cancellation import Cancellation
from deeppool.errors import RunCancelledError

_LOG = logging.getLogger(__name__)


class LatestTask:
    """Runs the most recently submitted task in a background thread; there is no queue.

    A new task replaces one that has not started, and cancels the current one at its next
    :func:`deeppool.base.cancellation.check`, which long plan searches call.
    """

    def __init__(self) -> None:
        """Starts no thread; one exists only while there is work."""
        self._changed = threading.Condition()
        self._current: tuple[Hashable, Cancellation] | None = None
        self._next: tuple[Hashable, Callable[[Cancellation], None]] | None = None
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

        def run(cancellation: Cancellation) -> None:
            try:
                with cancellation.applied():
                    result = work()
                    cancellation.check()
                on_result(result)
            except RunCancelledError:
                return
            except Exception as error:  # the submitter handles it
                on_error(error)

        with self._changed:
            if self._current is not None:
                current, cancellation = self._current
                if current == key and not cancellation.requested:
                    self._next = None
                    return
                cancellation.request()
            self._next = key, run
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
        while True:
            with self._changed:
                task, self._next, self._current = self._next, None, None
                if task is None:
                    self._idle = True
                    self._changed.notify_all()
                    return
                (key, run), cancellation = task, Cancellation()
                self._current = key, cancellation
            try:
                run(cancellation)
            except Exception:  # of on_error; the next task is run all the same
                _LOG.exception("the error of a task could not be handled")
