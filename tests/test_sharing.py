"""The record of mechanisms: what it refuses, and how it reads."""

import pytest

from deeppool.errors import InvalidValueError
from deeppool.sharing import POLICIES, Sharing, find_sharing, policy_name


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


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_found_by_its_name_and_has_it_whatever_bound_it_holds(name) -> None:
    assert find_sharing(name) == POLICIES[name]
    assert policy_name(find_sharing(name)) == name
    if name != "none":
        bound = find_sharing(name, 0.03)
        assert bound.max_slowdown == 0.03
        assert policy_name(bound) == name


def test_mechanisms_of_your_own_are_a_policy_without_a_name() -> None:
    mine = Sharing(priority="normal", share=0.2)
    assert find_sharing(mine) == mine
    assert policy_name(mine) == "custom"
    assert not mine.in_pieces
    assert find_sharing(mine, 0.01).in_pieces
