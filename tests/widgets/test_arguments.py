"""Arguments of panels are refused as those of the functions that the panels call, before anything is displayed."""

from collections.abc import Callable

import pytest

import deeppool as dp
from deeppool.errors import InvalidValueError
from tests.figures.records import two_layer_plan

PLAN = two_layer_plan()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dp.widgets.CollocationPanel("plan.json"), "plan must be a Plan, got 'plan.json'"),
        (lambda: dp.widgets.CollocationPanel(PLAN, policy="best"), "policy must be one of none, naive, .*got 'best'"),
        (lambda: dp.widgets.CollocationPanel(PLAN, max_slowdown=-1), "max_slowdown must be .*, got -1"),
        (lambda: dp.widgets.CollocationPanel(PLAN, seconds=-1), "seconds must be .*, got -1"),
        (lambda: dp.widgets.TechniquePanel("resnet18", global_batch=4), "job must be a TrainingJob, got 'resnet18'"),
        (lambda: dp.widgets.TransferPanel("resnet18", global_batch=4), "job must be a TrainingJob, got 'resnet18'"),
        (lambda: dp.widgets.OrderPanel([], global_batch=4, repetitions=0), "repetitions must be within 1…"),
        (lambda: dp.widgets.ModeComparisonPanel(ranks="two"), "ranks must be a whole number, got 'two'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make()
