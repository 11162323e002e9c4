"""Of many tasks the newest is done: none waits behind another, what is superseded ends or is not told."""

import threading

import pytest

from deeppool.base import cancellation
from deeppool.widgets.latest_task import LatestTask


class Desk:
    """Tasks that begin and end when the test says so, and what is told of them."""

    def __init__(self) -> None:
        self.latest = LatestTask()
        self.begun, self.results, self.failed = [], [], []
        self.started = {name: threading.Event() for name in "abcd"}
        self.may_end = {name: threading.Event() for name in "abcd"}

    def ask(self, name: str, error: Exception | None = None, checks_cancellation: bool = False) -> None:
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
        assert self.latest.wait(30)


def test_a_result_is_told_in_another_thread() -> None:
    latest, told = LatestTask(), []
    assert latest.wait(0)
    latest.submit("a", threading.current_thread, told.append, told.append)
    assert latest.wait(30)
    assert len(told) == 1
    assert told[0] is not threading.main_thread()


def test_of_what_waits_only_the_newest_begins() -> None:
    desk = Desk()
    desk.ask("a")
    assert desk.started["a"].wait(30)
    desk.ask("b")
    desk.ask("c")
    desk.ask("d")
    desk.end("a", "d")
    assert desk.begun == ["a", "d"]
    assert desk.results == ["d"]


def test_what_checks_cancellation_a_cancellation_ends_as_soon_as_it_is_superseded() -> None:
    desk = Desk()
    desk.ask("a", checks_cancellation=True)
    assert desk.started["a"].wait(30)
    desk.ask("b")
    # Nothing lets a end but its being superseded.
    desk.end("b")
    assert desk.results == ["b"]
    assert desk.failed == []


def test_the_same_task_goes_on_and_what_waited_behind_it_is_forgotten() -> None:
    desk = Desk()
    desk.ask("a", checks_cancellation=True)
    assert desk.started["a"].wait(30)
    desk.ask("a", checks_cancellation=True)
    desk.end("a")
    assert desk.begun == ["a"]
    assert desk.results == ["a"]


def test_a_task_that_was_superseded_and_is_asked_again_begins_again() -> None:
    desk = Desk()
    desk.ask("a")
    assert desk.started["a"].wait(30)
    desk.ask("b")
    desk.ask("a")
    desk.end("a")
    assert desk.begun == ["a", "a"]
    assert desk.results == ["a"]


def test_what_is_dropped_is_not_told() -> None:
    desk = Desk()
    desk.ask("a")
    assert desk.started["a"].wait(30)
    desk.ask("b")
    desk.latest.cancel()
    desk.end("a")
    assert (desk.begun, desk.results) == (["a"], [])


def test_an_error_is_told_and_the_next_task_is_done() -> None:
    desk = Desk()
    error = ValueError("no")
    desk.ask("a", error)
    desk.end("a")
    assert desk.failed == [error]
    desk.ask("b")
    desk.end("b")
    assert desk.results == ["b"]


def test_a_reader_that_fails_is_told_its_own_error() -> None:
    latest, failed = LatestTask(), []

    def on_result(_: object) -> None:
        raise KeyError("drawn")

    latest.submit("a", lambda: 1, on_result, failed.append)
    assert latest.wait(30)
    with pytest.raises(KeyError):
        raise failed[0]
