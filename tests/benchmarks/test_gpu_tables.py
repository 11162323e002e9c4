"""The tables of the README are those of the records of a GPU, and of the profiles that come with deeppool."""

from collections.abc import Callable, Iterator

import pytest

import deeppool as dp
from benchmarks.gpu import tables

README = tables.FOLDER.with_name("README.md")


@pytest.mark.parametrize(
    "table",
    [
        tables.iterations,
        tables.launches,
        tables.beside,
        *(
            pytest.param(each, marks=[pytest.mark.stress, pytest.mark.slow])
            for each in (tables.estimates, tables.plans)
        ),
    ],
)
def test_a_table_stands_in_the_readme_word_for_word(table: Callable[[], Iterator[str]]) -> None:
    assert "\n".join(table()) in README.read_text(encoding="utf-8")


def test_plans_are_as_the_readme_says() -> None:
    """Of the model whose plans take the least time."""
    assert "\n".join([*tables.plans(["vgg16"])][2:]) in README.read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_estimate_is_as_the_readme_says() -> None:
    row, _ = tables.estimate(dp.capture("vgg16"), "fp16")
    assert row in README.read_text(encoding="utf-8")
