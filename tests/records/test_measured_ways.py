"""Whether a technique is faster than its controls: how often the verdict is wrong on rounds of known times."""

import math
import random
import re

import pytest

from deeppool.records.confidence_interval import student_quantile
from deeppool.records.measured_ways import MeasuredWay, MeasuredWays

DRAWS = 1500


def record(*ways: MeasuredWay, repetitions: int) -> MeasuredWays:
    return MeasuredWays(
        model="m", global_batch=8, ranks=2, device_name="by hand", ways=ways, repetitions=repetitions, late=0.0,
        date="2026-11-28", versions={},
    )  # fmt: skip


def drawn(draw: random.Random, seconds: tuple[float, ...], repetitions: int, rounds: int) -> MeasuredWays:
    """A technique and its controls on a machine whose speed changes between repetitions, and which is disturbed."""
    speeds = [math.exp(draw.gauss(0.0, 0.2)) for _ in range(repetitions)]

    def times(typical: float) -> tuple[float, ...]:
        found = []
        for speed in speeds:
            own = typical * speed * math.exp(draw.gauss(0.0, 0.03))
            found += [own * (1 + draw.expovariate(5) * (draw.random() < 0.05)) for _ in range(rounds)]
        return tuple(found)

    technique, *controls = [MeasuredWay(f"way {number}", times(each), 8) for number, each in enumerate(seconds)]
    technique = MeasuredWay(technique.name, technique.seconds, 8, technique="some")
    return record(technique, *controls, repetitions=repetitions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "repetitions", "rounds"),
    [((1.0, 1.0), 3, 3), ((1.0, 1.0, 1.0, 1.0), 5, 3), ((1.0, 1.1, 1.1, 3.0), 10, 1), ((1.0, 0.9, 2.0), 5, 2)],
)
def test_intervals_hold_19_times_of_20_and_a_wrong_verdict_comes_once_in_40(seconds, repetitions, rounds) -> None:
    """Of 1,500 draws, so chance alone moves a share of 0.025 by 0.004; texts say what the numbers do."""
    draw, lead = random.Random(repetitions), min(seconds[1:]) / seconds[0]
    inside = faster = slower = 0
    for _ in range(DRAWS):
        found = drawn(draw, seconds, repetitions, rounds)
        ours = found.lead("way 0")
        assert ours is not None and ours.low is not None and ours.high is not None
        inside += ours.low <= lead <= ours.high
        faster += ours.verdict == "yes"
        slower += ours.verdict == "no"
        first, *controls = str(found).splitlines()[1:]
        printed = re.search(r"(\S+) \((\S+) … (\S+)\) times the samples per second of (way \d)", first)
        assert printed is not None
        low, high = float(printed[2]), float(printed[3])
        assert (ours.verdict == "yes", ours.verdict == "no") == (low > 1, high < 1)
        assert (", a loss" in first, "no difference shown" in first) == (high < 1, low <= 1 <= high)
        # The control that it is compared with is the one that the text says is the fastest.
        assert [line.split()[1] for line in controls if "the fastest control" in line] == [printed[4].split()[1]]
    assert inside / DRAWS > 0.94
    assert lead > 1 or faster / DRAWS < 0.035
    assert lead < 1 or slower / DRAWS < 0.035


def test_an_interval_of_paired_ratios_holds_where_that_of_pooled_medians_does_not() -> None:
    """Ten repetitions of one round: the jackknife of two medians, used before, held the true ratio 85 times of 100."""
    draw = random.Random(0)
    inside = 0
    for _ in range(DRAWS):
        _, low, high = drawn(draw, (1.0, 1.2), 10, 1).gain("way 0", "way 1")
        assert low is not None and high is not None
        inside += low <= 1.2 <= high
    assert 0.94 < inside / DRAWS < 0.99


@pytest.mark.slow
def test_of_several_ways_of_one_technique_the_best_may_be_picked() -> None:
    """Four ways as fast as the control: one of them seems faster no more often than one alone would."""
    draw = random.Random(0)
    picked = 0
    for _ in range(DRAWS):
        *ways, control = drawn(draw, (1.0, 1.0, 1.0, 1.0, 1.0), 5, 3).ways
        ways = [MeasuredWay(way.name, way.seconds, 8, technique="some") for way in ways]
        found = record(*ways, control, repetitions=5)
        leads = [found.lead(way.name) for way in ways]
        picked += any(lead is not None and lead.verdict == "yes" for lead in leads)
    assert picked / DRAWS < 0.03


def test_the_quantiles_are_those_of_students_t() -> None:
    """Table 26.10 of Abramowitz and Stegun."""
    for freedom, tail, expected in (
        (1, 0.025, 12.706), (2, 0.025, 4.303), (4, 0.025, 2.776), (9, 0.025, 2.262), (30, 0.025, 2.042),
        (1, 0.005, 63.657), (4, 0.005, 4.604), (10, 0.005, 3.169), (1000, 0.025, 1.962),
    ):  # fmt: skip
        assert student_quantile(freedom, tail) == pytest.approx(expected, abs=6e-4)


def test_controls_follow_from_what_ways_do() -> None:
    ways = (
        MeasuredWay("DDP", (1.0, 1.0), 8),
        MeasuredWay("two apart", (1.5, 1.5), 16, control_of="crossover"),
        MeasuredWay("crossed", (1.8, 1.8), 16, technique="crossover"),
        MeasuredWay("plan", (0.9, 0.9), 8, technique="burst parallelism"),
    )
    found = record(*ways, repetitions=2)
    assert [way.name for way in found.controls("crossover")] == ["DDP", "two apart"]
    crossed, plan = found.lead("crossed"), found.lead("plan")
    assert crossed is not None and plan is not None
    # 8.9 samples/s are more than the 8 of one job by DDP, and fewer than the 10.7 of two apart.
    assert (crossed.over, crossed.verdict) == ("two apart", "no")
    assert (plan.over, plan.controls, plan.verdict) == ("DDP", 1, "yes")
    assert found.lead("DDP") is None
    alone = record(ways[3], repetitions=2)
    assert alone.lead("plan") is None
    assert "no control was measured" in str(alone)
