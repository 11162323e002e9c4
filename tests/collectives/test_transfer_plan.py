"""Transfers are batched, ordered and planned as the rules say, against searches and simulations that share none."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from deeppool.collectives.batching import BatchBounds, Gradient, batch_gradients, bounds_of_batches
from deeppool.collectives.ordering import FixedOrder, TransferRequest, order_transfers
from deeppool.collectives.plan_transfers import plan_transfers
from deeppool.errors import RunError
from deeppool.records.transfer_plan import PartTimes


def forward_end(sequence: list[tuple[float, float, int]], forward: list[float]) -> float:
    """End of a forward that starts at 0, whose parts wait for transfers (ready, seconds, part) sent in sequence."""
    now, done = 0.0, dict.fromkeys(range(len(forward)), 0.0)
    for ready, seconds, part in sequence:
        now = max(now, ready) + seconds
        done[part] = max(done[part], now)
    end = 0.0
    for part, seconds in enumerate(forward):
        end = max(end, done[part]) + seconds
    return end


@pytest.mark.parametrize("seed", range(20))
def test_among_ready_transfers_the_order_is_the_best_of_all_permutations(seed: int) -> None:
    draw = random.Random(seed)
    forward = [draw.uniform(0, 3) for _ in range(5)]
    transfers = [(0.0, draw.uniform(0, 3), draw.randrange(5)) for _ in range(6)]
    order = order_transfers([TransferRequest(*transfer) for transfer in transfers])
    found = forward_end([transfers[sent.request] for sent in order], forward)
    assert found == pytest.approx(min(forward_end(list(each), forward) for each in itertools.permutations(transfers)))


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_sends_one_transfer_at_a_time_and_none_that_is_needed_later_than_one_that_could_start(seed: int) -> None:
    draw = random.Random(seed)
    sets = [(0, 1), (1, 2), (0, 1, 2), (3, 4)]
    requests = [
        TransferRequest(draw.uniform(0, 5), draw.uniform(0.1, 2), draw.randrange(8), draw.choice(sets))
        for _ in range(15)
    ]
    order = order_transfers(requests)
    assert sorted(sent.request for sent in order) == list(range(15))
    for place, sent in enumerate(order):
        request = requests[sent.request]
        assert sent.start >= request.ready
        assert sent.end - sent.start == pytest.approx(request.seconds)
        for later in order[place + 1 :]:
            other = requests[later.request]
            if set(other.ranks) & set(request.ranks):
                assert later.start >= sent.end
            if other.ranks == request.ranks and other.ready <= sent.start:
                assert request.part <= other.part


@pytest.mark.parametrize("seed", range(30))
def test_nothing_could_start_earlier_and_of_what_could_at_once_the_most_urgent_does(seed: int) -> None:
    draw = random.Random(seed)
    requests = [
        TransferRequest(
            draw.choice([0.0, 1.0, draw.uniform(0, 5)]),
            draw.choice([0.0, 0.5, draw.uniform(0, 1)]),
            draw.randrange(4),
            tuple(draw.sample(range(4), draw.randint(1, 3))),
        )
        for _ in range(20)
    ]
    busy_until = dict.fromkeys(range(4), 0.0)
    order = order_transfers(requests)
    for place, sent in enumerate(order):
        could_start = []
        for later in order[place:]:
            other = requests[later.request]
            start = max([other.ready, *(busy_until[rank] for rank in other.ranks)])
            could_start.append((start, other.part, other.seconds, later.request))
        assert sorted(could_start)[0] == could_start[0]
        assert sent.start == could_start[0][0]
        busy_until |= dict.fromkeys(requests[sent.request].ranks, sent.end)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_order_of_readiness_transfers_start_in_the_fixed_order(seed: int) -> None:
    order, started = list(range(12)), list[int]()
    fixed = FixedOrder(order, started.append)
    ready = order.copy()
    random.Random(seed).shuffle(ready)
    for count, item in enumerate(ready, start=1):
        fixed.ready(item)
        # What starts is all that is ready, up to the first that is not.
        first = next((each for each in order if each not in ready[:count]), len(order))
        assert started == order[:first]
    fixed.finish()


def test_an_item_that_is_never_ready_is_reported() -> None:
    fixed = FixedOrder("ab", lambda item: None)
    fixed.ready("b")
    with pytest.raises(RunError, match="2 transfers were never ready"):
        fixed.finish()


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_keeps_both_bounds_and_its_ranks_and_type(seed: int) -> None:
    draw = random.Random(seed)
    parts = 8
    ready = sorted((draw.uniform(0, 10) for _ in range(parts)), reverse=True)
    gradients = [
        Gradient(f"{part}.{number}", draw.randint(1, 60), part, draw.choice([(0, 1), (0, 1, 2)]), draw.choice("hf"))
        for part in reversed(range(parts))
        for number in range(draw.randint(0, 4))
    ]
    bounds = BatchBounds(size=100, gap=2.0)
    batches = batch_gradients(gradients, ready, [bounds] * len(gradients))
    assert sorted(itertools.chain(*batches)) == list(range(len(gradients)))
    for batch in batches:
        members = [gradients[position] for position in batch]
        assert len({(each.ranks, each.dtype) for each in members}) == 1
        times = [ready[each.part] for each in members]
        assert max(times) - min(times) <= bounds.gap
        assert sum(each.size for each in members) <= bounds.size or len({each.part for each in members}) == 1
    # Gradients of one part, ranks and type are never apart.
    places = [
        {number for number, batch in enumerate(batches) if position in batch} for position in range(len(gradients))
    ]
    for one, other in itertools.combinations(range(len(gradients)), 2):
        if replace(gradients[one], name="", size=0) == replace(gradients[other], name="", size=0):
            assert places[one] == places[other]


def test_a_part_beyond_the_size_travels_alone_with_all_of_its_gradients() -> None:
    gradients = [
        Gradient(str(number), size, part)
        for number, (size, part) in enumerate([(10, 3), (1, 2), (500, 2), (10, 1), (20, 0)])
    ]
    assert batch_gradients(gradients, [1.0] * 4, [BatchBounds(100, 1.0)] * 5) == [[0], [1, 2], [3, 4]]


def test_batches_that_wait_for_the_network_anyway_travel_together_up_to_the_size() -> None:
    parts = [PartTimes(name, 1.0, 1.0, (0, 1)) for name in "abcde"]
    gradients = [
        Gradient("e", 300, 4),
        *(Gradient(name, 10, part) for name, part in (("d", 3), ("c", 2), ("b", 1), ("a", 0))),
    ]

    def price(ranks: int, size: int) -> tuple[str, float]:
        return "line", 0.2 + size / 100

    # e occupies the network from 1 to 4.2, when d, c and b are ready, and a at 5 is not. Their latency of 0.2 is much
    # less than the second between them, so by the bounds each would travel alone.
    plan = plan_transfers(parts, gradients, price)
    assert [(*sorted(each.gradients), each.sent, each.done) for each in plan.transfers] == [
        ("e", 1.0, pytest.approx(4.2)),
        ("b", "c", "d", pytest.approx(4.2), pytest.approx(4.7)),
        ("a", 5.0, pytest.approx(5.3)),
    ]
    # Of larger ones only two fit into a batch: the bound is sqrt(420 B * 0.21 s / 0.01 s/B), 94 B.
    large = [Gradient("e", 300, 4), *(Gradient(name, 40, part) for name, part in (("d", 3), ("c", 2), ("b", 1)))]
    plan = plan_transfers(parts, large, price, error=0.05)
    assert [sorted(each.gradients) for each in plan.transfers] == [["e"], ["b", "c"], ["d"]]


@pytest.mark.parametrize(("latency", "per_byte", "total"), [(1e-3, 8e-9, 500_000_000), (1e-4, 5e-10, 10_000_000)])
def test_the_size_bound_is_the_best_of_all_sizes(latency: float, per_byte: float, total: int) -> None:
    def exposed(size: float) -> float:
        return total / size * latency + size * per_byte

    found = bounds_of_batches(latency, per_byte, total)
    assert exposed(found.size) <= 1.0001 * min(exposed(10 ** (exponent / 50)) for exponent in range(100, 450))
    assert found.gap == latency
    assert bounds_of_batches(latency, 0.0, total).size == math.inf


def test_a_plan_of_a_small_model_is_the_one_worked_out_by_hand() -> None:
    # Backward of part 2 ends at 2, of part 1 at 4, of part 0 at 6; then forwards take 1 each.
    parts = [PartTimes(name, 1.0, 2.0, (0, 1)) for name in "abc"]
    gradients = [Gradient("c", 30, 2), Gradient("b", 10, 1), Gradient("a", 10, 0)]
    # No latency: nothing waits to travel together. A second for 10 bytes.
    plan = plan_transfers(parts, gradients, lambda ranks, size: ("line", size / 10))
    # c occupies the network from 2 to 5; a is ready at 6, b has waited from 4.
    assert [(each.gradients, each.ready, each.sent, each.done, each.needed) for each in plan.transfers] == [
        (("c",), 2.0, 2.0, 5.0, 8.0),
        (("b",), 4.0, 5.0, 6.0, 7.0),
        (("a",), 6.0, 6.0, 7.0, 6.0),
    ]
    # a is used at 7, one second late: the only second that is not hidden.
    assert plan.forward_starts() == [7.0, 8.0, 9.0]
    assert plan.iteration_time == 10.0
    assert plan.compute_time == 9.0
    assert plan.hidden_share == pytest.approx(1 - 1 / 5)
    assert "80% of 5 s of transfers hidden" in str(plan)
    assert "(together up to 25.0 MiB, within 2 s)" in str(replace(plan, size_bound=25 * 2**20, gap_bound=2.0))
    assert "(together up to any size, within any time)" in str(replace(plan, size_bound=None, gap_bound=None))
    assert len(plan.table().splitlines()) == 4
    timeline = plan.timeline()
    assert timeline.duration == 10.0
    busy = [span.duration for span in timeline.spans if span.gpu == 0 and span.kind != "idle"]
    assert sum(busy) == pytest.approx(9 + 5)


def test_what_is_needed_first_overtakes_what_was_ready_first() -> None:
    parts = [PartTimes(name, 1.0, 1.0, (0, 1)) for name in "abcd"]
    gradients = [Gradient("d", 50, 3), Gradient("c", 10, 2), Gradient("b", 10, 1), Gradient("a", 10, 0)]
    plan = plan_transfers(parts, gradients, lambda ranks, size: ("line", size / 10))
    assert [each.gradients[0] for each in plan.transfers] == ["d", "a", "b", "c"]


def test_gradients_of_nearly_the_same_time_share_a_transfer_and_its_latency() -> None:
    parts = [PartTimes("a", 1.0, 0.2, (0, 1)), PartTimes("b", 1.0, 0.2, (0, 1)), PartTimes("c", 1.0, 2.0, (0, 1))]
    parts.append(PartTimes("d", 1.0, 2.0, (0, 1)))
    gradients = [Gradient("d", 10, 3), Gradient("c", 10, 2), Gradient("b", 10, 1), Gradient("a", 10, 0)]
    plan = plan_transfers(parts, gradients, lambda ranks, size: ("line", 0.5 + size / 1000))
    assert [each.gradients for each in plan.transfers] == [("d",), ("c", "b", "a")]
    assert plan.gap_bound == pytest.approx(0.501)


def test_halves_are_sent_where_a_large_early_gradient_would_delay_a_small_one_that_is_needed_first() -> None:
    parts = [PartTimes(name, 1.0, 2.0, (0, 1)) for name in "abc"]
    gradients = [Gradient("c", 60, 2), Gradient("a", 10, 0)]

    def price(ranks: int, size: int) -> tuple[str, float]:
        return "ring", size / 10

    # c occupies the network from 2 to 8, and a from 8 to 9: the forward begins at 9.
    assert plan_transfers(parts, gradients, price).iteration_time == 12.0
    # Half of c from 2 to 5, half of a from 6 to 6.5; then the other halves, a's first: it begins at 7, c's at 10.
    plan = plan_transfers(parts, gradients, price, halves=price)
    assert [(*each.gradients, each.sent, each.done) for each in plan.transfers] == [
        ("c", 2.0, 5.0),
        ("a", 6.0, 6.5),
        ("a", 6.5, 7.0),
        ("c", 7.0, 10.0),
    ]
    assert plan.iteration_time == 11.0
    # Within the error of predictions, fewer transfers are better.
    assert len(plan_transfers(parts, gradients, price, halves=price, error=0.1).transfers) == 2
    # Patterns that can be halved may be slower.
    slow = plan_transfers(parts, gradients, price, halves=lambda ranks, size: ("ring", size / 5))
    assert len(slow.transfers) == 2
