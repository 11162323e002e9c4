"""Long computations in the background of a widget, of which only the newest matters."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deeppool.cancellation import Cancellation
from deeppool.errors import RunCancelledError


@dataclass(frozen=True, slots=True)
class _Task:
    work: Callable[[], Any]
    tell: Callable[[Any], None]
    fail: Callable[[Exception], None]


class Latest:
    """Does what it was asked last, in a thread of its own: nothing waits in a queue.

    A new task ends the one under way where that asks :func:`deeppool.cancellation.check`, as long searches of
    plans do, and takes the place of one that has not begun.
    """

    def __init__(self) -> None:
        """Nothing to do yet; there is a thread only while there is."""
        self._changed = threading.Condition()
        self._next: _Task | None = None
        self._governs: Cancellation | None = None

    def ask(self, work: Callable[[], Any], tell: Callable[[Any], None], fail: Callable[[Exception], None]) -> None:
        """Begins a task, or has it follow the one under way as soon as that ends.

        Args:
            work: the computation.
            tell: called in the thread with its result, unless something newer was asked by then.
            fail: the same with its error.
        """
        with self._changed:
            self._next = _Task(work, tell, fail)
            if self._governs is not None:
                self._governs.ask()
                return
            self._governs = Cancellation()
        threading.Thread(target=self._run, name="deeppool latest", daemon=True).start()

    def drop(self) -> None:
        """Nothing of what was asked is wanted any more."""
        with self._changed:
            self._next = None
            if self._governs is not None:
                self._governs.ask()

    def wait(self, timeout: float | None = None) -> bool:
        """Until there is nothing to do; whether that came within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._governs is None, timeout)

    def _run(self) -> None:
        while (begun := self._begin()) is not None:
            task, cancellation = begun
            try:
                with cancellation.governing():
                    result = task.work()
                    cancellation.check()
                task.tell(result)
            except RunCancelledError:
                continue
            except Exception as error:  # for whoever asked
                task.fail(error)

    def _begin(self) -> tuple[_Task, Cancellation] | None:
        with self._changed:
            task, self._next = self._next, None
            self._governs = None if task is None else Cancellation()
            if task is None or self._governs is None:
                self._changed.notify_all()
                return None
            return task, self._governs
