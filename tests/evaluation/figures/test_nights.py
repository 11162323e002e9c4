"""Figures of nightly runs and of evaluations beside the paper."""

from deeppool.evaluation.entries import Check
from deeppool.evaluation.figures import nights
from deeppool.evaluation.record import Evaluation
from tests.evaluation.test_regression_report import done, failed, nightly_run

CHECKS = (Check("holds", True), Check("does not hold", False), Check("cannot fail", True, inapplicable="one GPU"))
COUNTED = "1 of 2 checks hold, 1 not applicable"


def test_a_check_that_cannot_fail_is_not_counted_as_one_that_holds() -> None:
    night = nightly_run(1, done("a", checks=CHECKS), done("b", checks=CHECKS[:1]), failed("boom", "c"))
    assert "2 of 3 checks hold, 1 not applicable" in str(night)
    texts = [text for bar in nights.night(night).data for text in bar.text]
    assert texts == [COUNTED, "1 of 1 checks hold", "boom"]
    evaluation = Evaluation("fig5", "Figure 5", (), CHECKS, "a processor", "2026-11-01", {}, {})
    assert COUNTED in nights.against_paper(evaluation).layout.title.subtitle.text
