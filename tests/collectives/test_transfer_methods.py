"""Plans of transfers by other rules, against what these rules give by hand."""

from dataclasses import replace

import pytest

from deeppool.collectives.batching import Gradient
from deeppool.collectives.patterns import ALL_REDUCES, HALVES, schedule_named
from deeppool.collectives.plan_transfers import plan_transfers
from deeppool.collectives.schedule import schedule_of
from deeppool.collectives.simulate import check_all_reduce
from deeppool.collectives.transfer_methods import (
    ddp_transfers,
    dear_transfers,
    fused_transfers,
    server_transfers,
)
from deeppool.errors import InvalidValueError
from deeppool.records.transfer_plan import PartTimes

PARTS = [PartTimes(name, 1.0, 2.0, (0, 1)) for name in "abc"]
"""Backward of c ends at 2, of b at 4, of a at 6; then forwards take 1 each."""
GRADIENTS = [Gradient("c", 30, 2), Gradient("b", 10, 1), Gradient("a", 10, 0)]


def price(ranks: int, size: int) -> tuple[str, float]:
    return "ring", size / 10


def price_of_servers(ranks: int, size: int) -> tuple[str, float]:
    return "parameter-server", size / 10


def moments(plan) -> list[tuple]:
    return [(*each.gradients, each.sent, each.done) for each in plan.transfers]


def test_ddp_waits_for_all_buckets_before_the_next_forward() -> None:
    plan = ddp_transfers(PARTS, GRADIENTS, price, 20)
    assert moments(plan) == [("c", 2.0, 5.0), ("b", "a", 6.0, 8.0)]
    assert plan.iteration_time == 8 + 3


def test_ddps_first_bucket_is_small() -> None:
    gradients = [Gradient(str(number), 2**19, 2) for number in range(6)]
    plan = ddp_transfers(PARTS, gradients, price)
    assert [len(each.gradients) for each in plan.transfers] == [2, 4]
    plan = ddp_transfers(PARTS, gradients, price, 2**21, first=2**20)
    assert [len(each.gradients) for each in plan.transfers] == [2, 4]
    # No first one is larger than the others, and of a given size none is smaller.
    assert moments(ddp_transfers(PARTS, GRADIENTS, price, 20, first=60)) == moments(
        ddp_transfers(PARTS, GRADIENTS, price, 20)
    )
    plan = ddp_transfers(PARTS, gradients, price, 2**21)
    assert [len(each.gradients) for each in plan.transfers] == [4, 2]
    # Each type has a first one.
    mixed = [replace(each, dtype="float16") if number % 2 else each for number, each in enumerate(gradients)]
    plan = ddp_transfers(PARTS, mixed, price)
    assert [each.gradients for each in plan.transfers] == [("0", "2"), ("1", "3"), ("4",), ("5",)]


def test_dear_gathers_in_the_order_of_the_next_forward() -> None:
    plan = dear_transfers(PARTS, GRADIENTS, price, 1)
    # Halves: c 1.5 s, b 0.5 s, a 0.5 s; all-gathers begin at 6.5, and part a waits for the first of them only.
    assert moments(plan) == [
        ("c", 2.0, 3.5),
        ("b", 4.0, 4.5),
        ("a", 6.0, 6.5),
        ("a", 6.5, 7.0),
        ("b", 7.0, 7.5),
        ("c", 7.5, 9.0),
    ]
    assert plan.forward_starts() == [7.0, 8.0, 9.0]
    assert [each.pattern for each in plan.transfers[2:4]] == ["ring-reduce-scatter", "ring-all-gather"]
    assert plan.transfer_time == pytest.approx(5)


def test_horovod_fuses_what_is_ready_in_a_cycle() -> None:
    plan = fused_transfers(PARTS, GRADIENTS, price, fusion=1000, cycle=2.5)
    # At 2.5 it sends c for 3 s, then looks again at 8.
    assert moments(plan) == [("c", 2.5, 5.5), ("b", "a", 8.0, 10.0)]
    assert plan.iteration_time == 10 + 3


def test_horovod_fuses_no_more_than_fits_its_buffer() -> None:
    sizes = {"e": 30, "d": 10, "c": 11, "b": 25, "a": 5}
    gradients = [Gradient(name, size, 0) for name, size in sizes.items()]
    plan = fused_transfers(PARTS[:1], gradients, price, fusion=20, cycle=2.5)
    # A larger one travels alone.
    assert [each.gradients for each in plan.transfers] == [("e",), ("d",), ("c",), ("b",), ("a",)]
    plan = fused_transfers(PARTS[:1], gradients, price, fusion=30, cycle=2.5)
    assert [each.gradients for each in plan.transfers] == [("e",), ("d", "c"), ("b", "a")]
    other = [replace(each, dtype="float16") if each.name == "c" else each for each in gradients]
    plan = fused_transfers(PARTS[:1], other, price, fusion=1000, cycle=2.5)
    assert [each.gradients for each in plan.transfers] == [("e", "d"), ("c",), ("b", "a")]


def test_servers_sum_each_gradient_by_itself_and_return_sums_in_the_order_of_need() -> None:
    plan = server_transfers(PARTS, [Gradient("d", 30, 2), *GRADIENTS], price_of_servers)
    # Halves: d and c 1.5 s each, b and a 0.5 s; the last is pushed at 6.5, and then all are pulled, a first.
    assert moments(plan) == [
        ("d", 2.0, 3.5),
        ("c", 3.5, 5.0),
        ("b", 5.0, 5.5),
        ("a", 6.0, 6.5),
        ("a", 6.5, 7.0),
        ("b", 7.0, 7.5),
        ("d", 7.5, 9.0),
        ("c", 9.0, 10.5),
    ]
    assert plan.forward_starts() == [7.0, 8.0, 10.5]
    assert [each.pattern for each in plan.transfers[3:5]] == ["parameter-server-push", "parameter-server-pull"]


def test_servers_work_side_by_side() -> None:
    gradients = [Gradient("c", 30, 2, (0,)), Gradient("b", 10, 1, (1,)), Gradient("a", 10, 0, (0,))]
    plan = server_transfers(PARTS, gradients, price_of_servers)
    assert moments(plan)[3:] == [("a", 6.5, 7.0), ("b", 6.5, 7.0), ("c", 7.0, 8.5)]
    # From 6.5 to 7 both servers send.
    assert plan.transfer_time == pytest.approx(1.5 + 0.5 + 0.5 + 2.0)
    # One that begins and ends during another counts for nothing: from 2 to 7.5, from 7.5 to 13.
    longer = server_transfers(PARTS, [Gradient("c", 100, 2, (0,)), *gradients[1:]], price_of_servers)
    assert moments(longer)[:2] == [("c", 2.0, 7.0), ("b", 4.0, 4.5)]
    assert longer.transfer_time == pytest.approx(11.0)


def test_bytes_that_the_user_gives_replace_both_bounds() -> None:
    plan = plan_transfers(PARTS, GRADIENTS, price, 20)
    assert [each.gradients for each in plan.transfers] == [("c",), ("b", "a")]
    assert plan.size_bound == 20
    assert plan.gap_bound is None
    assert "together up to 20 B, within any time" in str(plan)


@pytest.mark.parametrize("whole", HALVES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_two_halves_of_a_pattern_are_the_pattern(ranks: int, whole: str) -> None:
    rounds = [transfers for name in HALVES[whole] for transfers in schedule_named(name, ranks).transfers()]
    both = schedule_of("both", ranks, schedule_named(whole, ranks).chunks, rounds)
    assert both.steps == ALL_REDUCES[whole](ranks, 1).steps
    check_all_reduce(both)


def test_a_pattern_that_does_not_exist_is_refused() -> None:
    assert schedule_named("library", 4) is None
    with pytest.raises(InvalidValueError, match="no pattern is named 'rings' \\(there are library, ring, "):
        schedule_named("rings", 4)
