"""A rank reports an update once it is known whether it was made."""

from typing import Any

from deeppool.execution.update_reports import UpdateReports


class FakeUpdate:
    """Updates whose outcome is known when the next one begins."""

    def __init__(self) -> None:
        self.skips = 4
        self.decided = True
        self.learning_rate = self.learning_rate_before = 0.5
        self._made = True

    def step(self, *, made: bool, at_once: bool) -> None:
        self.decide()
        self._made, self.decided = made, False
        if at_once:
            self.decide()

    def decide(self) -> None:
        if not self.decided:
            self.skips += not self._made
            self.decided = True


def test_reports_are_in_order_with_their_own_outcome_and_wait_for_nothing() -> None:
    update, sent = FakeUpdate(), list[tuple[int, bool]]()
    reports = UpdateReports(update, lambda report, skipped, _: sent.append((report["step"], skipped)))  # type: ignore[arg-type]

    def step(number: int, **how: Any) -> None:
        update.step(**how)
        reports.add({"step": number})

    step(0, made=False, at_once=True)
    step(1, made=True, at_once=True)
    assert sent == [(0, True), (1, False)]
    step(2, made=False, at_once=False)
    assert not update.decided
    assert len(sent) == 2
    step(3, made=True, at_once=False)
    assert sent[2:] == [(2, True)]
    step(4, made=False, at_once=False)
    reports.close()
    assert sent[3:] == [(3, False), (4, True)]
    reports.close()
    assert len(sent) == 5


def test_an_update_that_the_next_iteration_completes_is_reported_after_it() -> None:
    update, sent = FakeUpdate(), list[int]()
    reports = UpdateReports(update, lambda report, *_: sent.append(report["step"]))  # type: ignore[arg-type]
    reports.add({"step": 0})
    reports.add({"step": 1}, complete=False)
    assert sent == [0]
    reports.add({"step": 2}, complete=False)
    assert sent == [0, 1]
    reports.add({"step": 3})
    assert sent == [0, 1, 2, 3]
    reports.add({"step": 4}, complete=False)
    reports.close()
    assert sent == [0, 1, 2, 3, 4]


def test_the_learning_rate_of_an_update_is_that_before_the_next_one_though_both_are_reported_at_once() -> None:
    update, sent = FakeUpdate(), list[tuple[int, float | None]]()
    reports = UpdateReports(update, lambda report, _, rate: sent.append((report["step"], rate)))  # type: ignore[arg-type]

    def halve() -> None:
        update.learning_rate_before, update.learning_rate = update.learning_rate, update.learning_rate / 2

    # The next iteration completes the update, and then its own: as where plans of transfers are tried.
    reports.add({"step": 0}, complete=False)
    halve()
    halve()
    reports.add({"step": 1})
    assert sent == [(0, 0.25), (1, 0.125)]
    reports.add({"step": 2}, complete=False)
    halve()
    reports.add({"step": 3}, complete=False)
    halve()
    reports.close()
    assert sent[2:] == [(2, 0.0625), (3, 0.03125)]
