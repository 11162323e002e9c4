"""Long computations in the background of a widget, of which only the newest matters."""

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
    tell: Callable[[Any], None]
    fail: Callable[[Exception], None]


class Latest:
    """Does what it was asked last, in a thread of its own: nothing waits in a queue.

    A new task ends the one under way where that asks :func:`deeppool.base.cancellation.check`, as long searches of
    plans do, and takes the place of one that has not begun.
    """

    def __init__(self) -> None:
        """Nothing to do yet; there is a thread only while there is."""
        self._changed = threading.Condition()
        self._under_way: tuple[_Task, Cancellation] | None = None
        self._next: _Task | None = None
        self._idle = True

    def ask(
        self,
        key: Hashable,
        work: Callable[[], Any],
        tell: Callable[[Any], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Begins a task, or has it follow the one under way as soon as that ends.

        Args:
            key: of the task; the one under way goes on if it has the same.
            work: the computation.
            tell: called in the thread with its result, unless something newer was asked by then.
            fail: the same with its error.
        """
        with self._changed:
            if self._under_way is not None:
                task, cancellation = self._under_way
                if task.key == key and not cancellation.asked:
                    self._next = None
                    return
                cancellation.ask()
            self._next = _Task(key, work, tell, fail)
            if not self._idle:
                return
            self._idle = False
        threading.Thread(target=self._run, name="deeppool latest", daemon=True).start()

    def drop(self) -> None:
        """Nothing of what was asked is wanted any more."""
        with self._changed:
            self._next = None
            if self._under_way is not None:
                self._under_way[1].ask()

    def wait(self, timeout: float | None = None) -> bool:
        """Until there is nothing to do; whether that came within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._idle, timeout)

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
            self._under_way = None if task is None else (task, Cancellation())
            if self._under_way is None:
                self._idle = True
                self._changed.notify_all()
            return self._under_way
