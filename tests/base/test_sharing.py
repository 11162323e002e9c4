"""The record of mechanisms: what it refuses, and how it reads."""

import pytest

from deeppool.base.sharing import POLICIES, Sharing, find_sharing, policy_name
from deeppool.errors import InvalidValueError


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("share", 0.0, "share must be more than 0 and less than 1, got 0: .*for example 0.2 for 20 %"),
        ("share", 1.0, "share must be more than 0 and less than 1, got 1: "),
        ("in_flight", 0.0, "in_flight must be more than 0 and finite, got 0: .*for example 0.001 for 1 ms"),
        ("feedback", -0.1, "feedback must be more than 0 and finite, got -0.1: .*for example 0.1 for 10 %"),
        ("max_slowdown", float("nan"), "max_slowdown must be more than 0 and finite, got nan: .*0.03 for 3 %"),
        ("max_slowdown", float("inf"), "max_slowdown must be more than 0 and finite, got inf: "),
        ("pieces", 0, "pieces must be at least 1, got 0 .*for example 2"),
    ],
)
def test_a_mechanism_out_of_its_bounds_is_refused_with_what_it_means_and_an_example(
    field: str, value: float, said: str
) -> None:
    with pytest.raises(InvalidValueError, match=said):
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
