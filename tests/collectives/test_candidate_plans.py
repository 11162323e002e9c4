"""Plans that are tried differ in bounds, patterns and halves; one that a user gives must be of the same training."""

from dataclasses import replace

import pytest

from deeppool.collectives.batching import Gradient
from deeppool.collectives.candidate_plans import candidate_plans
from deeppool.collectives.given_plan import check_given
from deeppool.collectives.patterns import HALVES
from deeppool.collectives.plan_transfers import plan_transfers
from deeppool.errors import InvalidValueError
from deeppool.records.transfer_plan import PartTimes, PlannedTransfer, TransferPlan

PARTS = [PartTimes(str(number), 0.01, 0.01, (0, 1)) for number in range(40)]
GRADIENTS = [Gradient(f"w{part}", 100, part) for part in reversed(range(40))]


def ring(ranks: int, size: int) -> tuple[str, float]:
    return "ring", 0.04 + size / 1000


def library(ranks: int, size: int) -> tuple[str, float]:
    return "library", 0.05 + size / 1000


def sent(plan: TransferPlan) -> list[tuple[tuple[str, ...], str]]:
    return [(transfer.gradients, transfer.pattern) for transfer in plan.transfers]


def test_candidates_are_different_plans_for_three_latencies_whole_in_halves_and_by_the_library() -> None:
    plans = candidate_plans(PARTS, GRADIENTS, ring, library=library, halves=ring)
    assert sent(plans[0]) == sent(plan_transfers(PARTS, GRADIENTS, ring, halves=ring))
    assert len({str(sent(plan)) for plan in plans}) == len(plans) == 7
    for plan in plans:
        times = 1 if "ring-all-gather" not in plan.patterns else 2
        names = [name for transfer in plan.transfers for name in transfer.gradients]
        assert sorted(names) == sorted(times * [gradient.name for gradient in GRADIENTS])
    by_patterns: dict[tuple[str, ...], list[float]] = {}
    for plan in plans:
        by_patterns.setdefault(plan.patterns, []).append(plan.size_bound)
    # sqrt(4000 B * 0.041 s / 0.001 s/B) is 405 B; for a sixteenth of the latency 101 B, for 16 times as much 1,620 B.
    bounds = [pytest.approx(value, abs=1) for value in (101.2, 405.0, 1619.9)]
    assert sorted(by_patterns["ring",]) == bounds
    assert sorted(by_patterns["ring-reduce-scatter", "ring-all-gather"]) == bounds
    assert by_patterns["library",] == [pytest.approx(451.7, abs=1)]
    times = [plan.iteration_time for plan in plans[1:]]
    assert times == sorted(times)


def test_a_given_size_leaves_one_bound_and_no_halves_leave_fewer_plans() -> None:
    plans = candidate_plans(PARTS, GRADIENTS, ring, 300.0, library=library)
    assert {plan.size_bound for plan in plans} == {300.0}
    assert [plan.patterns for plan in plans] == [("ring",), ("library",)]
    # Equal plans are one.
    assert len(candidate_plans(PARTS, GRADIENTS, library, 300.0, library=library)) == 1


def test_a_pattern_whose_price_is_wrong_is_not_in_all_plans() -> None:
    """One is believed to be nearly free, whole and in halves."""

    def cheap(ranks: int, size: int) -> tuple[str, float]:
        return "parameter-server", 0.001

    plans = candidate_plans(PARTS, GRADIENTS, cheap, library=library, halves=cheap)
    assert plans[-1].patterns == ("library",)
    assert len(plans) > 1


def transfer(
    names: tuple[str, ...], size: int, ranks: tuple[int, ...] = (0, 1), pattern: str = "library"
) -> PlannedTransfer:
    return PlannedTransfer(names, size, ranks, pattern, 0, 0.0, 0.0, 0.0, 0.0)


def test_a_given_plan_of_another_training_is_refused() -> None:
    gradients = [Gradient("a", 8, 0), Gradient("b", 16, 1)]
    both = transfer(("a", "b"), 24)
    plan = TransferPlan((PartTimes("part", 1.0, 1.0, (0, 1)),), (both,), None, None)
    check_given(plan, gradients)
    halves = tuple(replace(both, pattern=pattern) for pattern in HALVES["ring"])
    check_given(replace(plan, transfers=halves), gradients)
    with pytest.raises(InvalidValueError, match=r"sends 1 gradients, the training sums 2; 1 are .* such as b "):
        check_given(replace(plan, transfers=(transfer(("a",), 8),)), gradients)
    with pytest.raises(InvalidValueError, match=r"sends a with 32 B over ranks \[0, 1\], the training has 24 B"):
        check_given(replace(plan, transfers=(transfer(("a", "b"), 32),)), gradients)
    with pytest.raises(InvalidValueError, match=r"over ranks \[0, 1, 2\], the training has 24 B and ranks \[0, 1\]"):
        check_given(replace(plan, transfers=(transfer(("a", "b"), 24, (0, 1, 2)),)), gradients)
    with pytest.raises(InvalidValueError, match=r"sends a 3 times"):
        check_given(replace(plan, transfers=(both, both, both)), gradients)


@pytest.mark.parametrize(
    "patterns",
    [("library", "library"), ("ring", "ring"), HALVES["ring"][:1], HALVES["ring"][::-1], ("ring", "ring-all-gather")],
)
def test_a_given_plan_that_does_not_sum_each_gradient_once_is_refused(patterns: tuple[str, ...]) -> None:
    gradients = [Gradient("a", 8, 0)]
    transfers = tuple(transfer(("a",), 8, pattern=pattern) for pattern in patterns)
    plan = TransferPlan((PartTimes("part", 1.0, 1.0, (0, 1)),), transfers, None, None)
    with pytest.raises(InvalidValueError, match=rf"sends a by {', then '.join(patterns)}, which is no sum \(once by "):
        check_given(plan, gradients)


def test_a_given_plan_that_sends_a_gradient_in_two_batches_is_refused() -> None:
    gradients = [Gradient("a", 8, 0), Gradient("b", 16, 0), Gradient("c", 4, 0)]
    # Each batch is sent once, and each has another first gradient.
    transfers = (transfer(("a", "b"), 24), transfer(("c", "b"), 20))
    plan = TransferPlan((PartTimes("part", 1.0, 1.0, (0, 1)),), transfers, None, None)
    with pytest.raises(InvalidValueError, match=r"sends b 2 times \(send a batch once, or in two halves\)"):
        check_given(plan, gradients)
    whole = transfer(("a", "b", "c"), 28)
    with pytest.raises(InvalidValueError, match="sends a batch of no gradients"):
        check_given(replace(plan, transfers=(whole, transfer((), 0))), gradients)


def test_a_given_plan_of_an_unknown_pattern_is_refused() -> None:
    plan = TransferPlan((PartTimes("part", 1.0, 1.0, (0, 1)),), (transfer(("a",), 8, pattern="rign"),), None, None)
    with pytest.raises(InvalidValueError, match=r"sends a by rign, .*of library, ring, halving-doubling"):
        check_given(plan, [Gradient("a", 8, 0)])
