"""Times of a planned iteration, against counts of its seconds one by one."""

import random

import pytest

from deeppool.errors import InvalidValueError
from deeppool.records.transfer_plan import MOST_RANKS, PartTimes, PlannedTransfer, TransferPlan, TriedPlan


def part(name: str, forward: float, backward: float, ranks: tuple[int, ...] = (0, 1)) -> PartTimes:
    return PartTimes(name, forward, backward, ranks)


def transfer(of: int, sent: float, done: float, ranks: tuple[int, ...] = (0, 1)) -> PlannedTransfer:
    return PlannedTransfer(("w",), 8, ranks, "ring", of, sent, sent, done, done)


def plan_of(parts: list[PartTimes], transfers: list[PlannedTransfer], **more: object) -> TransferPlan:
    return TransferPlan(tuple(parts), tuple(transfers), None, None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_an_iteration_second_by_second(seed: int) -> None:
    draw = random.Random(seed)
    parts = [part(str(number), draw.randrange(1, 5), draw.randrange(5)) for number in range(draw.randrange(1, 5))]
    transfers = []
    for _ in range(draw.randrange(5)):
        sent = draw.randrange(20)
        transfers.append(transfer(draw.randrange(len(parts)), sent, sent + draw.randrange(1, 8)))
    computing, sending = set(), {second for each in transfers for second in range(int(each.sent), int(each.done))}
    now = 0
    for each in parts:
        computing |= set(range(now, now + int(each.backward)))
        now += int(each.backward)
    starts = []
    for number, each in enumerate(parts):
        while any(one.part == number and now < one.done for one in transfers):
            now += 1
        starts.append(now)
        computing |= set(range(now, now + int(each.forward)))
        now += int(each.forward)
    plan = plan_of(parts, transfers)
    assert plan.forward_starts() == starts
    assert (plan.iteration_time, plan.compute_time, plan.transfer_time) == (now, len(computing), len(sending))
    assert plan.utilisation == pytest.approx(len(computing) / now)
    assert plan.hidden_share == pytest.approx(len(computing & sending) / len(sending) if sending else 1)
    spans = plan.timeline().spans
    for rank in (0, 1):
        taken = {"sync": set[int](), "compute": set[int]()}
        for span in spans:
            if span.gpu == rank:
                taken["sync" if span.kind == "sync" else "compute"] |= set(range(int(span.start), int(span.end)))
        assert taken == {"sync": sending, "compute": computing}


def test_a_timeline_has_a_row_for_each_rank_up_to_the_last_one_that_does_anything() -> None:
    plan = plan_of([part("one", 1, 2, (0, 2)), part("two", 1, 2, (1,))], [transfer(0, 1, 2, (0, 2))])
    found = plan.timeline("DDP")
    assert (found.gpus, found.title) == (3, "DDP")
    assert [(span.gpu, span.kind, span.start, span.end) for span in found.spans] == [
        (0, "sync", 1, 2),
        (0, "backward", 2, 4),
        (0, "forward", 4, 5),
        (1, "backward", 0, 2),
        (1, "forward", 5, 6),
        (2, "sync", 1, 2),
        (2, "backward", 2, 4),
        (2, "forward", 4, 5),
    ]


@pytest.mark.parametrize(
    ("parts", "transfers", "phrase"),
    [
        ([part("one", 0, 0)], [], r"got 1 parts of 0 s, used by \[\]"),
        ([], [], "got 0 parts of 0 s"),
        ([part("one", 1, 0)], [transfer(1, 0, 1)], r"got 1 parts of 1 s, used by \[1\]"),
        ([part("one", 0, 1)], [transfer(0, 0, 1), transfer(-1, 0, 1)], r"used by \[-1, 0\]"),
    ],
)
def test_a_plan_whose_parts_compute_nothing_or_are_not_there_is_refused(
    parts: list[PartTimes], transfers: list[PlannedTransfer], phrase: str
) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        plan_of(parts, transfers)


@pytest.mark.parametrize("make", [lambda ranks: part("one", 1, 1, ranks), lambda ranks: transfer(0, 0, 1, ranks)])
def test_ranks_are_within_the_most_that_a_timeline_shows(make: object) -> None:
    assert make((0, MOST_RANKS - 1)).ranks == (0, 65_535)  # type: ignore[operator]
    for ranks in ((-1,), (0, 65_536)):
        with pytest.raises(InvalidValueError, match=r"must be within 0…65535"):
            make(ranks)  # type: ignore[operator]


def test_a_plan_that_was_tried_is_as_fast_as_the_lower_of_its_middle_iterations() -> None:
    tried = TriedPlan(3, ("ring",), None, 1.0, (4.0, 1.0, 2.0, 3.0))
    assert tried.typical == 2.0
    with pytest.raises(InvalidValueError, match="has measured iterations, got none"):
        TriedPlan(3, ("ring",), None, 1.0, ())
    plan = plan_of([part("one", 1, 1)], [transfer(0, 0, 3)], tried=(tried, tried))
    assert [row.split()[0] for row in plan.table().splitlines()] == ["needed", "one", "kept", "tried"]
    assert str(plan).endswith(
        "1 gradients in 1 transfers by ring (together up to any size, within any time); "
        "predicted 4 s an iteration, 33% of 3 s of transfers hidden; the fastest of 2 tried"
    )
