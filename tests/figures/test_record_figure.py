"""The figure of any record, and which have none."""

from pathlib import Path

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.errors import InvalidValueError
from tests.figures.records import run_of, training_of, two_layer_plan

RECORDED = Path(__file__).parents[1] / "records/recorded"


def test_each_kind_has_its_own_figure() -> None:
    assert figures.of(run_of()) == figures.collocation(run_of())
    assert figures.of(two_layer_plan(), dark=True) == figures.timeline(two_layer_plan(), dark=True)
    assert figures.of(training_of()) == figures.training(training_of())
    profile = dp.find_profile("vgg16-cpu")
    assert figures.of(profile) == figures.batch_curves(profile)
    efficient = dp.frontier(profile, 2, 4)
    assert figures.of(efficient) == figures.frontier(efficient)
    simulated = dp.load(RECORDED / "cluster-simulation.json")
    assert figures.of(simulated) == figures.cluster(simulated)
    again = dp.load(RECORDED / "replan.json")
    assert figures.of(again).data == figures.timeline(again.before, again.after).data
    assert figures.of(run_of().timeline) == figures.timeline(run_of().timeline)


def test_a_kind_without_a_figure_is_named() -> None:
    with pytest.raises(InvalidValueError, match="there is no figure of a str"):
        figures.of("plan")
