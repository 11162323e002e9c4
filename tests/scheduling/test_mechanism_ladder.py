"""Mechanism ladder: each rung adds one mechanism to the one before."""

from dataclasses import asdict, replace
from itertools import pairwise

from deeppool.base.sharing import Sharing
from deeppool.scheduling.mechanism_ladder import mechanism_ladder


def test_each_rung_keeps_the_mechanisms_of_the_one_before() -> None:
    rungs = list(mechanism_ladder().values())
    assert rungs[0].sharing == Sharing(priority="normal")
    for before, after in pairwise(rungs):
        assert after != before
        kept = {name: value for name, value in asdict(before.sharing).items() if value and name != "priority"}
        assert kept.items() <= asdict(after.sharing).items()
        assert after.batch <= before.batch


def test_batches_and_the_bound_are_those_requested() -> None:
    found = mechanism_ladder(batch=8, smaller_batch=2, bound=0.03)
    assert [rung.batch for rung in found.values()] == [8, 8, 8, 8, 2, 2]
    last = list(found)[-1]
    assert last == "+ bound 3 %"
    assert found[last].sharing == replace(found["+ smaller batch"].sharing, max_slowdown=0.03)


def test_a_share_is_a_rung_of_its_own_before_the_bound() -> None:
    found = mechanism_ladder(share=0.25)
    assert list(found)[-3:] == ["+ smaller batch", "+ SM share 25 %", "+ bound 1 %"]
    assert found["+ SM share 25 %"].sharing == replace(found["+ smaller batch"].sharing, share=0.25)
    assert found["+ bound 1 %"] == mechanism_ladder()["+ bound 1 %"]
