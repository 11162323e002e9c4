"""The predicted step of waves is that of a schedule played event by event."""

import random

import numpy as np
import pytest

from deeppool.errors import InvalidValueError, PlanError
from deeppool.graph.capture.capture import capture
from deeppool.interleaving.wavelet.rotation import partitions
from deeppool.interleaving.wavelet.step_time import (
    PartitionCosts,
    efficiency,
    equal_partitions,
    vanilla_step_time,
    wave_memory,
    waves_step_time,
    waves_that_fit,
)
from tests.interleaving.wavelet.rotating_rank import WIDTH, make_model


def played(costs: list[PartitionCosts]) -> float:
    """Plays the order of model_parallel.py on one processor and one link, which takes transfers in order."""
    now = link = 0.0

    def sent(seconds: float) -> float:
        nonlocal link
        link = max(link, now) + seconds
        return link

    arrived = {0: sent(costs[0].weights)}
    last = len(costs) - 1
    for k, one in enumerate(costs):
        now = max(now, arrived[k])
        if k < last:
            arrived[k + 1] = sent(costs[k + 1].weights)
        now += one.forward
        if k < last:
            now = sent(one.moved)
    here = {last: now}
    for k in range(last, -1, -1):
        now = max(now, here[k])
        if k > 0:
            here[k - 1] = sent(costs[k - 1].weights)
        now += costs[k].backward
        summed = costs[k].gradients
        if k > 0:
            now = sent(costs[k - 1].moved)
        # The sum is started behind the gradients that others wait for.
        end = sent(summed)
    return max(now, end)


def test_the_formula_is_the_played_schedule_where_no_transfer_outlasts_two_phases() -> None:
    draw = random.Random(0)
    for _ in range(200):
        costs = [
            PartitionCosts(
                draw.uniform(2, 4), draw.uniform(4, 8), draw.uniform(0, 1), draw.uniform(0, 2), draw.uniform(0, 2)
            )
            for _ in range(draw.randint(2, 6))
        ]
        assert waves_step_time(costs) == pytest.approx(played(costs))


def test_without_transfers_the_speed_up_is_the_number_of_waves() -> None:
    assert efficiency([PartitionCosts(1.0, 2.0, 0.0, 0.0, 0.0)] * 4) == 1.0
    costs = [PartitionCosts(1.0, 2.0, 0.5, 0.25, 0.25)] * 2
    assert vanilla_step_time(costs) == 8.0
    assert waves_step_time(costs) == 0.25 + 1.5 + 1.0 + 2.5 + 2.0 + 0.25


def test_equal_partitions_compute_for_a_second_and_transfer_by_the_ratio() -> None:
    for count in (2, 4, 8):
        costs = equal_partitions(count, 2.0)
        assert sum(one.forward + one.backward for one in costs) == pytest.approx(1.0)
        assert sum(2 * (one.moved + one.weights) + one.gradients for one in costs) == pytest.approx(0.5)
        shares = [efficiency(equal_partitions(count, ratio)) for ratio in (0.5, 1.0, 2.0, 10.0, 1e6)]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)
    with pytest.raises(InvalidValueError, match="got 1 and 2"):
        equal_partitions(1, 2.0)


def test_fewer_waves_need_less_memory_and_the_most_that_fit_are_found() -> None:
    graph = capture(make_model(), (WIDTH,)).graph
    parts = partitions(graph, 3)
    needs = [wave_memory(graph, parts, 1000, waves) for waves in (1, 2, 3)]
    assert needs == sorted(needs)
    assert [waves_that_fit(graph, parts, 1000, need) for need in needs] == [1, 2, 3]
    assert waves_that_fit(graph, parts, 1000, needs[1] - 1) == 1
    with pytest.raises(PlanError, match="a smaller batch, or more ranks"):
        waves_that_fit(graph, parts, 1000, needs[0] - 1)
    assert waves_that_fit(graph, parts, np.uint16(1000), needs[1]) == 2
    for wrong, message in (
        ((parts, 0, 1.0), "samples must be at least 1, got 0"),
        ((parts, 1, float("nan")), "memory must be positive and finite, got nan"),
        (([], 1, 1.0), "parts must have a partition, got none"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            waves_that_fit(graph, *wrong)
