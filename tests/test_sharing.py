"""The record of mechanisms: what it refuses, and how it reads."""

import pytest

from deeppool.errors import InvalidValueError
from deeppool.sharing import POLICIES, Sharing


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", 0.0),
        ("share", 1.0),
        ("in_flight", 0.0),
        ("feedback", -0.1),
        ("max_slowdown", float("nan")),
        ("pieces", 0),
    ],
)
def test_a_mechanism_out_of_its_bounds_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=field):
        Sharing(**{field: value})


def test_it_reads_as_what_is_used() -> None:
    assert str(Sharing()) == "priority lowest"
    assert str(Sharing(priority="nice", pieces=2, max_slowdown=0.03)) == "priority nice, pieces 2, max_slowdown 0.03"
    assert str(Sharing(gaps_only=True)) == "priority lowest, gaps_only 1"


def test_each_policy_adds_one_mechanism() -> None:
    assert POLICIES["none"] is None
    assert POLICIES["priority"] == Sharing(priority="lowest")
    assert POLICIES["paced"] == Sharing(pieces=2, in_flight=0.001)
