"""The figure of any record, and which have none."""

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from tests.figures.records import run_of, two_layer_plan


def test_each_kind_has_its_own_figure() -> None:
    assert figures.of(run_of()) == figures.collocation(run_of())
    assert figures.of(two_layer_plan(), dark=True) == figures.timeline(two_layer_plan(), dark=True)
    assert figures.of(run_of().timeline) == figures.timeline(run_of().timeline)


def test_a_kind_without_a_figure_is_named() -> None:
    with pytest.raises(InvalidValueError, match="there is no figure of a str"):
        figures.of("plan")
