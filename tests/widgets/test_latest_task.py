"""Only the newest task is completed: there is no queue, and superseded tasks are cancelled or not reported."""

import threading

import pytest

from deeppool.base import cancellation
from deeppool.widgets.latest_task import LatestTask
from tests.waiting import TIMEOUT


class TaskRecorder:
    """Tasks that start and end under the control of the test, with their reported results."""

    def __init__(self) -> None:
        self.latest = LatestTask()
        self.begun, self.results, self.failed = [], [], []
        self.started = {name: threading.Event() for name in "abcd"}
        self.may_end = {name: threading.Event() for name in "abcd"}

    def submit(self, name: str, error: Exception | None = None, checks_cancellation: bool = False) -> None:
        def work() -> str:
            self.begun.append(name)
            self.started[name].set()
            while not self.may_end[name].wait(0.005):
                if checks_cancellation:
                    cancellation.check()
            if error is not None:
                raise error
            return name

        self.latest.submit(name, work, self.results.append, self.failed.append)

    def end(self, *names: str) -> None:
        for name in names:
            self.may_end[name].set()
        assert self.latest.wait(300)


def test_a_result_is_reported_in_another_thread() -> None:
    latest, reported = LatestTask(), []
    assert latest.wait(0)
    latest.submit("a", threading.current_thread, reported.append, reported.append)
    assert latest.wait(300)
    assert len(reported) == 1
    assert reported[0] is not threading.main_thread()


def test_of_what_waits_only_the_newest_begins() -> None:
    recorder = TaskRecorder()
    recorder.submit("a")
    assert recorder.started["a"].wait(300)
    recorder.submit("b")
    recorder.submit("c")
    recorder.submit("d")
    recorder.end("a", "d")
    assert recorder.begun == ["a", "d"]
    assert recorder.results == ["d"]


def test_what_checks_cancellation_a_cancellation_ends_as_soon_as_it_is_superseded() -> None:
    recorder = TaskRecorder()
    recorder.submit("a", checks_cancellation=True)
    assert recorder.started["a"].wait(300)
    recorder.submit("b")
    # Nothing lets a end but its being superseded.
    recorder.end("b")
    assert recorder.results == ["b"]
    assert recorder.failed == []


def test_the_same_task_goes_on_and_what_waited_behind_it_is_forgotten() -> None:
    recorder = TaskRecorder()
    recorder.submit("a", checks_cancellation=True)
    assert recorder.started["a"].wait(300)
    recorder.submit("a", checks_cancellation=True)
    recorder.end("a")
    assert recorder.begun == ["a"]
    assert recorder.results == ["a"]


def test_a_task_that_was_superseded_and_is_asked_again_begins_again() -> None:
    recorder = TaskRecorder()
    recorder.submit("a")
    assert recorder.started["a"].wait(300)
    recorder.submit("b")
    recorder.submit("a")
    recorder.end("a")
    assert recorder.begun == ["a", "a"]
    assert recorder.results == ["a"]


def test_what_is_dropped_is_not_told() -> None:
    recorder = TaskRecorder()
    recorder.submit("a")
    assert recorder.started["a"].wait(300)
    recorder.submit("b")
    recorder.latest.cancel()
    recorder.end("a")
    assert (recorder.begun, recorder.results) == (["a"], [])


def test_an_error_is_reported_and_the_next_task_is_done() -> None:
    recorder = TaskRecorder()
    error = ValueError("no")
    recorder.submit("a", error)
    recorder.end("a")
    assert recorder.failed == [error]
    recorder.submit("b")
    recorder.end("b")
    assert recorder.results == ["b"]


def test_a_reader_that_fails_is_reported_its_own_error() -> None:
    latest, failed = LatestTask(), []

    def on_result(_: object) -> None:
        raise KeyError("drawn")

    latest.submit("a", lambda: 1, on_result, failed.append)
    assert latest.wait(300)
    with pytest.raises(KeyError):
        raise failed[0]


def test_a_handler_of_errors_that_fails_ends_no_later_task() -> None:
    latest, reported = LatestTask(), []

    def on_error(error: Exception) -> None:
        raise error

    latest.submit("a", lambda: 1 / 0, reported.append, on_error)
    assert latest.wait(TIMEOUT)
    latest.submit("b", lambda: 1, reported.append, on_error)
    assert latest.wait(TIMEOUT)
    assert reported == [1]
