"""The statistics of random chains: their kind, not their numbers."""

import pytest

from benchmarks.planner.published import LIMITS, Comparison, comparisons, median, row
from docs.results import readmes, results

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[float, list[Comparison]]:
    return {limit: list(comparisons(chains=40, layers=21, gpus=64, limit=limit)) for limit in (1.5, 4.0)}


def test_published_plans_break_their_limit_and_a_tight_one_more_often(found):
    over = {limit: sum(bool(x.published.over_limit) for x in pairs) for limit, pairs in found.items()}
    assert over[1.5] > over[4.0] > 0
    for pairs in found.values():
        for pair in pairs:
            assert pair.exact.over_limit == ()
            assert bool(pair.published.over_limit) == (pair.excess > 1 + 1e-9)


def test_published_plans_within_their_limit_are_never_faster_and_some_are_slower(found):
    within = [x for pairs in found.values() for x in pairs if not x.published.over_limit]
    assert min(x.ratio for x in within) >= 1 - 1e-12
    assert max(x.ratio for x in within) > 1.01


def test_at_the_amplification_that_a_published_plan_really_has_no_exact_plan_is_slower(found):
    pairs = [x for pairs in found.values() for x in pairs]
    assert all(x.as_amplified.iteration_time <= x.published.iteration_time * (1 + 1e-12) for x in pairs)
    # The limit that those over theirs do keep is a wider one.
    assert any(x.as_amplified.amplification_limit > x.exact.amplification_limit for x in pairs)


def test_a_row_counts_what_it_was_given(found):
    cells = row(1.5, found[1.5]).split("|")
    over = sum(bool(x.published.over_limit) for x in found[1.5])
    assert (cells[1].strip(), cells[2].strip()) == ("1.5", f"{over} of 40")
    assert cells[5].strip().endswith(f" of {40 - over}")


def test_the_median_of_nothing_is_a_dash():
    assert median([], "{:.0f}") == "–"
    assert median([1, 2, 6], "{:.0f}") == "2 (6)"


@pytest.mark.stress
def test_the_readme_has_what_the_command_prints():
    (told,) = (
        x for x in results("planner", readmes()["planner"]) if x.command == "python -m benchmarks.planner.published"
    )
    rows = [row(limit, list(comparisons(chains=300, layers=21, gpus=1024, limit=limit))) for limit in LIMITS]
    assert told.text.splitlines()[-len(rows) :] == rows
