"""Plans are compared with data parallelism on as many GPUs as it is fastest on, wherever they are."""

from dataclasses import replace

import pytest

import deeppool as dp
from deeppool.cluster.cluster import Cluster, Link
from deeppool.planning.evaluate.baselines import DataParallelComparison, DataParallelTime
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from tests.strategies import make_graph, profile_from_times

FAST, SLOW = (Link(bandwidth, 0.0, "by hand") for bandwidth in (1e9, 1e8))
NODES = Cluster(4, "two nodes", 2, FAST, SLOW)
"""On two GPUs of one node gradients take a fifteenth of what they take on all four."""


def compared(*seconds: float, time: float = 1.0, error: float | None = None) -> DataParallelComparison:
    return DataParallelComparison(
        time, tuple(DataParallelTime(2**power, each) for power, each in enumerate(seconds)), error
    )


def profile(error: float | None = None):
    """Layers of 8 ms in all on one GPU; the gradients of the second take 8 ms on two of a node and 120 on all four."""
    graph = make_graph([(), (0,)], [(), (1,)], [0, 8_000_000])
    return replace(profile_from_times(graph, [lambda b: 5e-3 * b, lambda b: 1e-3 * b], (1, 2, 4, 8)), error=error)


@pytest.mark.parametrize(
    ("seconds", "gpus", "text"),
    [
        ((4, 3, 2), 4, "2 s"),
        ((4, 1.5, 2), 2, "1.5 s on 2 GPUs, where it is fastest, 2 s on all"),
        ((4, 2, 2), 2, "2 s on 2 GPUs, as on all"),
        ((2, 3, 2 * (1 - 1e-12)), 1, "2 s on 1 GPU, as on all"),
    ],
)
def test_the_baseline_is_the_fastest_and_of_equals_that_on_the_fewest_gpus(seconds, gpus, text) -> None:
    found = compared(*seconds)
    assert found.fastest.gpus == gpus
    assert found.baseline_text == text
    assert found.gain == pytest.approx(min(seconds))


@pytest.mark.parametrize(
    ("time", "error", "within", "verdict"),
    [
        (1.0, None, False, "yes"),
        (1.0, 0.4, False, "yes"),
        (1.0, 0.6, True, "unknown"),
        (1.47, None, False, "no"),
        (1.47, 0.1, True, "no"),
        (1.6, 0.1, False, "no"),
    ],
)
def test_a_gain_is_worth_it_beyond_its_error(time, error, within, verdict) -> None:
    found = compared(4, 1.5, 2, time=time, error=error)
    assert (found.within_error, found.verdict) == (within, verdict)


def test_the_caution_about_estimates_is_of_the_gain_over_the_fastest() -> None:
    plain = dp.plan(profile(), NODES, 8)
    gain = plain.comparison.gain - 1
    assert plain.comparison.fastest.gpus == 2
    assert 0 < gain < 1 < plain.data_parallel_iteration_time / plain.iteration_time - 1
    unsure, sure = (dp.plan(profile(error), NODES, 8) for error in (gain * 1.01, gain * 0.99))
    assert unsure.caveats == (
        f"the gain over data parallelism on 2 GPUs, {100 * gain:.1f} %, is within the error of estimated layer times, "
        f"± {101 * gain:.0f} % (measure a profile to decide)",
    )
    assert not sure.caveats


def test_frontiers_and_data_parallelism_on_all_gpus_name_the_fastest_too() -> None:
    text = dp.plan(profile(), NODES, 8).comparison.baseline_text
    assert "on 2 GPUs, where it is fastest" in text
    assert f"; data parallel {text}; " in str(dp.frontier(profile(), NODES, 8))
    assert f"DDP, which takes {text}; " in str(data_parallel_plan(profile(), NODES, 8))


def test_all_gpus_are_among_the_baselines_of_a_frontier_that_does_not_search_them() -> None:
    # 5 GPUs have shards as large as 4.
    found = dp.frontier(profile(), replace(NODES, gpus=5), 8, gpu_counts="all")
    squares = dp.figures.of(found).data[1]
    assert list(squares.text) == ["1", "2", "3", "4", "5"]


def test_a_shared_cluster_is_compared_with_the_fastest_partition() -> None:
    shared = dp.share(profile(), NODES, 8, profile())
    best = shared.data_parallel
    assert (best.gpus, best.iteration_time) == (2, dp.plan(profile(), NODES, 8).comparison.fastest.seconds)
    assert f"; data parallel on 2 GPUs {best.speedup:.2f}x and " in str(shared)
    curve = dp.figures.of(shared).data[0]
    assert (
        curve.customdata[0][4] == f"{shared.efficient()[0].throughput / best.throughput:.2f}× data parallel on 2 GPUs"
    )
