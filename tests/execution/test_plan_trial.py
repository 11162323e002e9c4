"""Plans of transfers are tried by turns until all ranks keep the same one, whatever was predicted."""

import statistics
import threading
from collections.abc import Callable

import pytest

from deeppool.collectives.batching import Gradient
from deeppool.collectives.candidate_plans import candidate_plans
from deeppool.errors import InvalidValueError
from deeppool.execution.plan_trial import PlanTrial
from deeppool.records.transfer_plan import PartTimes, PlannedTransfer, TransferPlan

PARTS = [PartTimes(str(number), 1.0, 1.0, (0, 1)) for number in range(6)]
GRADIENTS = [Gradient(f"w{part}", 100, part) for part in reversed(range(6))]


def plan(name: str, predicted: float = 1.0) -> TransferPlan:
    """A plan that its only gradient names."""
    transfer = PlannedTransfer((name,), 8, (0, 1), "library", 0, 0.0, 0.0, 0.0, 0.0)
    return TransferPlan((PartTimes("part", predicted, 0.0, (0, 1)),), (transfer,), None, None)


def name(tried: TransferPlan) -> str:
    return tried.transfers[0].gradients[0]


def perform(trial: PlanTrial, seconds: Callable[[TransferPlan], float], updates: int) -> list[str]:
    """Names of the plans of some updates, which take some seconds."""
    now, performed = 0.0, []
    for _ in range(updates):
        performed.append(name(trial.plan))
        now += seconds(trial.plan)
        if trial.ends_turn(now):
            trial.advance()
    return performed


def test_half_of_the_plans_leave_after_each_round_and_the_fastest_is_kept() -> None:
    times = {"a": 5.0, "b": 3.0, "c": 4.0, "d": 6.0, "e": 2.0}
    trial = PlanTrial([plan(each, predicted=1.5) for each in times], 2, lambda own: own)
    performed = perform(trial, lambda tried: times[name(tried)], 40)
    # Three updates a turn: one that does not count, and two. Of five plans three are left, and then two.
    first, second, third = "aaabbbcccdddeee", "bbbccceee", "bbbeee"
    assert "".join(performed) == first + second + third + "e" * 10
    assert not trial.running
    assert name(trial.plan) == "e"
    assert [each.seconds for each in trial.plan.tried] == [(2.0,) * 6, (3.0,) * 6, (4.0,) * 4, (5.0,) * 2, (6.0,) * 2]
    kept, *_ = trial.plan.tried
    assert (kept.predicted, kept.transfers, kept.patterns) == (1.5, 1, ("library",))
    assert "the fastest of 5 tried" in str(trial.plan)
    line = next(line for line in trial.plan.table().splitlines() if line.startswith("kept"))
    assert (
        line.split() == "kept 2 s an iteration (6 measured, predicted 1.5 s): 1 transfers any size by library".split()
    )


def test_an_update_after_a_change_of_plan_does_not_count() -> None:
    trial = PlanTrial([plan("a"), plan("b")], 1, lambda own: own)
    # The first update of a turn finds no transfers under way: b seems fast in it.
    for now, change in ((10.0, False), (13.0, True), (13.5, False), (18.5, True)):
        assert trial.ends_turn(now) == change
        if change:
            trial.advance()
    assert name(trial.plan) == "a"
    assert [each.seconds for each in trial.plan.tried] == [(3.0,), (5.0,)]


def test_one_long_iteration_does_not_decide() -> None:
    times = iter([0.0, 2.0, 9.0, 0.0, 3.0, 3.0])
    trial = PlanTrial([plan("a"), plan("b")], 2, lambda own: own)
    perform(trial, lambda tried: next(times), 6)
    assert name(trial.plan) == "a"


def test_without_a_trial_the_first_plan_is_kept() -> None:
    for trial in (
        PlanTrial([plan("a"), plan("b")], 0, lambda own: own),
        PlanTrial([plan("a")], 2, lambda own: own),
    ):
        assert not trial.running
        assert perform(trial, lambda tried: 1.0, 5) == ["a"] * 5
        assert trial.plan.tried == ()
        assert "tried" not in str(trial.plan)
    with pytest.raises(InvalidValueError, match="no plan of transfers to try"):
        PlanTrial([], 2, lambda own: own)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_keep_one_plan_though_each_finds_another_one_faster(ranks: int) -> None:
    """Plan c is second on every rank; one rank is slow, and so outvotes the others on what a mean is."""
    own = {rank: {"a": 5.0, "b": 5.0, "c": 3.0} | {"ab"[rank % 2]: 2.0} for rank in range(ranks)}
    own[1] = {each: 10 * seconds for each, seconds in own[1].items()}
    shared: dict[int, list[float]] = {}
    barrier = threading.Barrier(ranks)
    found: dict[int, tuple[list[str], TransferPlan]] = {}

    def train(rank: int) -> None:
        def agree(numbers: list[float]) -> list[float]:
            shared[rank] = numbers
            barrier.wait()
            means = [statistics.fmean(each) for each in zip(*shared.values(), strict=True)]
            barrier.wait()
            return means

        trial = PlanTrial([plan(each) for each in "abc"], 2, agree)
        performed = perform(trial, lambda tried: own[rank][name(tried)], 18)
        found[rank] = performed, trial.plan

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[rank] == found[0] for rank in range(ranks))
    means = {each: sum(own[rank][each] for rank in range(ranks)) / ranks for each in "abc"}
    # Rank 1 takes ten times as long: 20 s by b, and 30 s by c.
    assert name(found[0][1]) == min(means, key=means.__getitem__) == "b"


def iteration_by(plan: TransferPlan, price: Callable[[int], float]) -> float:
    """Seconds of an iteration of PARTS by a plan on a network of other prices: each transfer once it is ready."""
    ready = {f"w{part}": float(6 - part) for part in range(6)}
    sums: dict[str, float] = {}
    free, sent = 0.0, set()
    for transfer in plan.transfers:
        whole = price(transfer.size)
        half = any(word in transfer.pattern for word in ("scatter", "gather"))
        second = transfer.gradients in sent
        start = max(free, 6.0 if second else max(ready[each] for each in transfer.gradients))
        free = start + (whole / 2 if half else whole)
        sent.add(transfer.gradients)
        sums |= dict.fromkeys(transfer.gradients, free)
    now = 6.0
    for part in range(6):
        now = max(now, sums[f"w{part}"]) + 1.0
    return now


@pytest.mark.parametrize(("believed", "true"), [(0.1, 1.6), (2.0, 0.01)])
def test_a_wrong_price_of_latency_is_corrected_by_the_trial(believed: float, true: float) -> None:
    """Believed too low, the prediction sends too many transfers; too high, too few."""

    def price(ranks: int, size: int) -> tuple[str, float]:
        return "ring", believed + size / 200

    plans = candidate_plans(PARTS, GRADIENTS, price, library=price, halves=price)
    seconds = [iteration_by(each, lambda size: true + size / 200) for each in plans]
    assert min(seconds) < 0.93 * seconds[0]
    by_plan = {id(each): taken for each, taken in zip(plans, seconds, strict=True)}
    trial = PlanTrial(plans, 1, lambda own: own)
    now = 0.0
    while trial.running:
        now += by_plan[id(trial.plan)]
        if trial.ends_turn(now):
            trial.advance()
    assert trial.plan.tried[0].typical == pytest.approx(min(seconds))
    kept = [taken for each, taken in zip(plans, seconds, strict=True) if each.transfers == trial.plan.transfers]
    assert kept == [pytest.approx(min(seconds))]
