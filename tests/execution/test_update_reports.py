"""A rank reports an iteration with the outcome of its update, once this is known."""

from typing import Any

from deeppool.execution.update_reports import UpdateReports
from deeppool.training.update import UpdateOutcome


class FakeUpdate:
    """Updates that end when a test, or :meth:`decide`, says so."""

    on_end: Any = None

    def __init__(self) -> None:
        self.undecided: list[UpdateOutcome] = []

    def decide(self) -> None:
        while self.undecided:
            self.on_end(self.undecided.pop(0))


def outcome(rate: float, *, skipped: bool = False) -> UpdateOutcome:
    return UpdateOutcome(rate, skipped, stuck=False)


def make_reports() -> tuple[FakeUpdate, UpdateReports, list[tuple[int, float | None]]]:
    update, sent = FakeUpdate(), list[tuple[int, float | None]]()
    reports = UpdateReports(
        update,  # type: ignore[arg-type]
        lambda report, outcome: sent.append((report["step"], -1.0 if outcome.skipped else outcome.learning_rate)),
    )
    return update, reports, sent


def test_reports_are_in_order_with_their_own_outcome_and_wait_for_nothing() -> None:
    update, reports, sent = make_reports()
    for number, rate in enumerate((0.5, 0.25)):
        update.on_end(outcome(rate))
        reports.add({"step": number})
    assert sent == [(0, 0.5), (1, 0.25)]
    # The device decides.
    update.undecided.append(outcome(0.125, skipped=True))
    reports.add({"step": 2})
    assert update.undecided
    assert len(sent) == 2
    update.decide()
    update.undecided.append(outcome(0.125))
    reports.add({"step": 3})
    assert sent[2:] == [(2, -1.0)]
    reports.close()
    assert sent[3:] == [(3, 0.125)]
    reports.close()
    assert len(sent) == 4


def test_one_iteration_may_end_no_update_or_two_and_updates_may_end_before_their_iterations() -> None:
    update, reports, sent = make_reports()
    reports.add({"step": 0})
    assert not sent
    # As where plans of transfers are tried: the update of the iteration before, and its own.
    update.on_end(outcome(0.5))
    update.on_end(outcome(0.25))
    reports.add({"step": 1})
    assert sent == [(0, 0.5), (1, 0.25)]
    # As on a late rank of eager-SGD.
    for rate in (0.125, 0.0625):
        update.on_end(outcome(rate))
    reports.add({"step": 2})
    assert sent[2:] == [(2, 0.125)]
    reports.add({"step": 3})
    assert sent[3:] == [(3, 0.0625)]
    # As in waves: what is called before the end completes the update.
    reports.add({"step": 4})
    update.on_end(outcome(0.5))
    reports.close()
    assert sent[4:] == [(4, 0.5)]
