"""Arguments that are no record: the file of one, and the function that makes one."""

import re
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.base.arguments import require
from deeppool.errors import InvalidValueError
from tests.figures.records import two_layer_plan


def job() -> None:
    """Stands for a function that makes a job."""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: dp.plan("own.json", 2, 8),
            "profile must be a Profile, got 'own.json' (dp.load('own.json') reads a file)",
        ),
        (lambda: dp.frontier(two_layer_plan(), 2, 8), "profile must be a Profile, got a Plan (dp.profile makes one)"),
        (
            lambda: dp.launch(Path("plan.json")),
            "plan must be a Plan, got 'plan.json' (dp.load('plan.json') reads a file)",
        ),
        (lambda: dp.simulate(None), "plan must be a Plan, got a NoneType (dp.plan makes one)"),
        (lambda: dp.train("plan.json", job, steps=1), "plan must be a Plan, got 'plan.json'"),
        (
            lambda: dp.train(two_layer_plan(), job, steps=1),
            "job must be a TrainingJob, got 'job' (give what it returns: job())",
        ),
        (
            lambda: dp.train(two_layer_plan(), "mine:job", steps=1),
            "job must be a TrainingJob, got 'mine:job' (import and call it)",
        ),
    ],
)
def test_an_argument_of_another_type_says_how_to_get_the_right_one(call, told) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(told)):
        call()


def test_what_has_its_type_is_taken() -> None:
    require(two_layer_plan(), object, "plan", maker="dp.plan")
