"""Numbers that a user gives: which are taken, as which, and what is said of others."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from deeppool.base.number_checks import positive_number, real_number, seed_number, whole_number
from deeppool.errors import InvalidValueError


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4), np.array(4), torch.tensor(4)], ids=repr)
def test_whole_numbers_of_any_library_become_pythons(value: object) -> None:
    found = whole_number("steps", value, 1, 4)
    assert (found, type(found)) == (4, int)


@pytest.mark.parametrize("value", [True, np.True_, 4.0, np.float64(4), "4", None, [4], Fraction(4)], ids=repr)
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidValueError) as refused:
        whole_number("steps", value, note="give a number")
    assert str(refused.value) == f"steps must be a whole number, got {value!r} (give a number)"


def test_bounds_of_whole_numbers_are_inclusive_and_named() -> None:
    assert [whole_number("rank", value, 0, 3) for value in (0, 3)] == [0, 3]
    assert whole_number("seed", -5, least=None) == -5
    with pytest.raises(InvalidValueError, match=r"^rank must be at least 0, got -1$"):
        whole_number("rank", np.int64(-1), 0, 3)
    with pytest.raises(InvalidValueError, match=r"^rank must be at most 3, got 4 \(there are 4\)$"):
        whole_number("rank", 4, 0, 3, "there are 4")


@pytest.mark.parametrize(
    "value", [1.5, np.float32(1.5), Fraction(3, 2), Decimal("1.5"), np.array(1.5), torch.tensor(1.5)], ids=repr
)
def test_numbers_of_any_library_become_pythons(value: object) -> None:
    for found in (real_number("seconds", value), positive_number("seconds", value)):
        assert (found, type(found)) == (1.5, float)


@pytest.mark.parametrize("value", [True, False, "1.5", b"1.5", None, [1.5], 1j, torch.ones(2), np.ones(2)], ids=repr)
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidValueError) as refused:
        positive_number("seconds", value)
    assert str(refused.value) == f"seconds must be a number, got {value!r}"


def test_numbers_and_texts_that_fill_pages_are_told_in_a_line() -> None:
    with pytest.raises(InvalidValueError, match=r"^seconds must be a number, got one of 16610 bits$"):
        real_number("seconds", 10**5000)
    with pytest.raises(InvalidValueError, match=r"^steps must be at most 9223372036854775807, got one of 16610 bits$"):
        whole_number("steps", 10**5000)
    with pytest.raises(InvalidValueError, match=r"^seconds must be a number, got tensor[^\n]{51}\.\.\.$"):
        real_number("seconds", torch.zeros(9, 9))


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan])
def test_a_number_that_is_not_positive_and_finite_is_refused(value: float) -> None:
    assert real_number("seconds", value) == pytest.approx(value, nan_ok=True)
    with pytest.raises(InvalidValueError, match=rf"^seconds must be positive and finite, got {value:g} \(or none\)$"):
        positive_number("seconds", value, "or none")


def test_seeds_are_those_that_torch_takes() -> None:
    for seed in (-(2**63), 0, 2**64 - 1):
        torch.manual_seed(seed_number(seed))
    for seed in (-(2**63) - 1, 2**64):
        with pytest.raises(InvalidValueError, match="seed must be at "):
            seed_number(seed)
