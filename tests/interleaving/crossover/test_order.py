"""The turns of jobs, drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.interleaving.crossover.order import turns


def drawn(steps: dict[str, int], in_flight: tuple[str, ...] = (), *, drains: bool = True) -> str:
    """Each turn as its job: small, if it settles; large, if it computes; rounds apart."""
    rounds: dict[int, list[str]] = {}
    for turn in turns(steps, in_flight, drains=drains):
        mark = turn.job * turn.settles + turn.job.upper() * turn.computes
        rounds.setdefault(turn.round, []).append(mark)
    return " | ".join(" ".join(marks) for marks in rounds.values())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({"a": 3}, "A | aA | aA | a"),
        ({"a": 2, "b": 2}, "A B | aA bB | a b"),
        ({"a": 2, "b": 2, "c": 2}, "A B C | aA bB cC | a b c"),
        ({"a": 1, "b": 3}, "A B | a bB | bB | b"),
        ({"a": 3, "b": 1}, "A B | aA b | aA | a"),
        ({"a": 0, "b": 1}, "B | b"),
    ],
)
def test_turns(steps: dict[str, int], expected: str) -> None:
    assert drawn(steps) == expected


def test_steps_may_stay_in_flight_until_the_next_rounds() -> None:
    assert drawn({"a": 1, "b": 2}, drains=False) == "A B | a bB"
    assert drawn({"a": 1, "b": 1}, ("b",)) == "A bB | a b"
    # A job that joins, and one that is done.
    assert drawn({"a": 0, "b": 1, "c": 1}, ("a", "b"), drains=False) == "a bB C"


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_each_job_settles_every_step_before_it_computes_the_next(counts: list[int]) -> None:
    steps = {str(job): count for job, count in enumerate(counts)}
    computed, settled = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0)
    for turn in turns(steps):
        settled[turn.job] += turn.settles
        assert settled[turn.job] == computed[turn.job]
        computed[turn.job] += turn.computes
    assert computed == settled == steps
