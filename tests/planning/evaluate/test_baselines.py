"""Plans are compared with data parallelism on as many GPUs as it is fastest on, wherever they are."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import DATA_PARALLEL_BUCKETS, DDP_BUCKETS
from deeppool.collectives.transfer_methods import DDP
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.errors import PlanError
from deeppool.planning.evaluate.baselines import DataParallelComparison, DataParallelTime
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.evaluate.placement import data_parallel
from tests.sampling import examples
from tests.strategies import make_graph, measured_network, profile_from_times

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


MB = 10**6


@pytest.mark.parametrize(
    ("capacity", "gpus", "text"),
    [
        # By hand: 7 MB of the model and 8 of samples on one GPU, 4 on two, 2 on four.
        (None, 1, "8 s on 1 GPU, where it is fastest, 12 s on all"),
        (15 * MB, 1, "8 s on 1 GPU, where it is fastest, 12 s on all"),
        (15 * MB - 1, 2, "10 s on 2 GPUs, where it is fastest of those that hold it, 12 s on all"),
        (10 * MB, 4, "12 s on all, where it is fastest of those that hold it"),
        (
            8 * MB,
            1,
            "8 s on 1 GPU, where it is fastest, 12 s on all, but on 4 GPUs or fewer it does not fit: a GPU needs "
            "8.6 MiB, and has 7.6 MiB",
        ),
    ],
)
def test_the_baseline_is_the_fastest_of_what_fits_into_memory(capacity, gpus, text) -> None:
    times = zip((1, 2, 4), (8, 10, 12), (15 * MB, 11 * MB, 9 * MB), strict=True)
    found = DataParallelComparison(10.0, tuple(DataParallelTime(*each) for each in times), 0.3, capacity=capacity)
    assert (found.fastest.gpus, found.baseline_text) == (gpus, text)
    # On four GPUs a gain of 20 % is within the error; where it fits nowhere, nothing is as good as a plan.
    verdicts = {1: "no", 2: "no", 4: "unknown"}
    nowhere = capacity == 8 * MB
    assert found.verdict == ("yes" if nowhere else verdicts[gpus])
    assert found.within_error == (gpus == 4)


def test_memory_that_is_as_much_as_on_fewer_is_told_of_equals_too() -> None:
    times = (DataParallelTime(1, 1.0, 9), DataParallelTime(2, 2.0, 8), DataParallelTime(4, 2.0, 7))
    found = DataParallelComparison(1.0, times, capacity=8)
    assert found.baseline_text == "2 s on 2 GPUs, where it is fastest of those that hold it, as on all"
    assert found.too_large == "on 1 GPU it does not fit: a GPU needs 9 B, and has 8 B"


LARGE = 4 * MB
"""Bytes of parameters of a layer, of which a GPU holds 3 times as many: gradients and momentum."""


def large(*seconds: float):
    """A layer of 1 MB a sample, with its seconds on one GPU, on two and on four that share 16 samples."""
    graph = make_graph([()], parameter_bytes=[LARGE], activation_bytes=[MB])
    return profile_from_times(graph, [dict(zip((16, 8, 4), seconds, strict=True)).__getitem__], (4, 8, 16))


NO_TIME = Link(1e15, 0.0, "takes no time")
SMALL = Cluster(4, "small", 4, NO_TIME, NO_TIME, memory=20 * MB)


def test_plans_frontiers_and_goals_are_compared_with_what_fits(tmp_path) -> None:
    # 12 MB of the model, and 16, 8 or 4 MB of samples: 28 MB on one GPU, 20 on two, 16 on four. In two micro-steps of 8
    # samples one GPU holds it, too, and takes twice as long for each half as two GPUs for both.
    slower = large(8e-3, 10e-3, 12e-3)
    text = "10 ms on 2 GPUs, where it is fastest, 12 ms on all"
    why = (
        "whole batches do not fit, so that it accumulates gradients over micro-steps: 2 on 1 GPU (a BatchNorm has the "
        "statistics of each)"
    )
    for goal in ("fastest", "ddp_speed"):
        made = dp.plan(slower, SMALL, 16, goal=goal)
        assert [one.memory for one in made.comparison.data_parallel] == [20 * MB, 20 * MB, 16 * MB]
        assert [one.seconds for one in made.comparison.data_parallel] == pytest.approx([20e-3, 10e-3, 12e-3])
        assert (made.comparison.fastest.gpus, made.comparison.gain) == (2, pytest.approx(1.0))
        assert f"DDP, which takes {text};" in str(made)
        assert made.explain_memory().splitlines()[-1] == f"  DDP: {why}"
        dp.check(made, slower)
        assert dp.load(dp.save(made, tmp_path / "plan.json")).comparison == made.comparison
    assert dp.plan(slower, replace(SMALL, memory=None), 16).comparison.fastest.gpus == 1
    found = dp.frontier(slower, SMALL, 16)
    assert f"; data parallel {text}; " in str(found)
    assert list(dp.figures.of(found).data[1].marker.symbol) == ["square-open"] * 3
    adam = dp.plan(slower, SMALL, 16, memory=28 * MB, optimizer="adam")
    assert adam.comparison.fastest.gpus == 2


@pytest.mark.parametrize(
    ("device", "cluster", "model", "as_by"),
    [
        ("cuda", NODES, "nccl", "best"),
        ("cuda", replace(NODES, gpus=2), "ring", "ring"),
        ("cuda", replace(NODES, gpus_per_node=1), "ring", "ring"),
        ("cpu", NODES, "ring", "ring"),
    ],
)
def test_gpus_of_several_nodes_sum_through_all_their_ports(device, cluster, model, as_by) -> None:
    times = replace(profile(), device=device)
    for make in (dp.plan, dp.frontier, data_parallel_plan):
        found, same = make(times, cluster, 8), make(times, cluster, 8, network_model=as_by)
        assert found.comparison.data_parallel == same.comparison.data_parallel
    assert dp.plan(times, cluster, 8).network_model == model
    assert dp.advise(times, cluster, 8).plan.network_model == model


@pytest.mark.parametrize(
    # 12 MB of the model, and 4, 2 or 1 MB of samples; on one GPU 16 samples in parts of up to 4, 3 or 1.
    ("memory", "steps", "alone"),
    [(16 * MB, 1, 4), (16 * MB - 1, 2, 6), (13 * MB, 4, 16)],
)
def test_data_parallelism_that_does_not_fit_accumulates_micro_steps_with_one_all_reduce(memory, steps, alone) -> None:
    """1 ms a sample and 1 ms a pass; 4 MB of gradients over 1 GB/s, and an update of 1 ns a byte, once each."""
    graph = make_graph([()], parameter_bytes=[LARGE], activation_bytes=[MB])
    times = replace(profile_from_times(graph, [lambda b: 1e-3 + 1e-3 * b], (1, 2, 4, 8, 16)), update_per_byte=1e-9)
    cluster = Cluster(4, "small", 4, FAST, FAST, memory)
    found = dp.frontier(times, cluster, 16).comparison
    everywhere = found.data_parallel[-1]
    assert (everywhere.gpus, everywhere.micro_steps) == (4, steps)
    assert everywhere.seconds == pytest.approx((steps + 4) * 1e-3 + 2 * 3 / 4 * LARGE / 1e9 + LARGE * 1e-9)
    assert everywhere.memory == 12 * MB + 4 // steps * MB
    # The iteration of a GPU by itself sums nothing.
    first = found.data_parallel[0]
    assert (first.micro_steps, first.seconds) == (alone, pytest.approx((alone + 16) * 1e-3 + LARGE * 1e-9))
    assert first.memory == 12 * MB + -(-16 // alone) * MB
    # Plans of the whole batch hold as much as data parallelism at least.
    if steps > 1:
        with pytest.raises(PlanError, match=f"such as {16 // steps} with accumulation={steps} of the job"):
            dp.plan(times, cluster, 16)


def test_gpu_counts_that_do_not_hold_it_are_listed_where_fewer_gpus_hold_it_in_micro_steps() -> None:
    """A GPU holds four samples, of which the profile has the least time: 20 are five such steps, 10 and 5 are none."""
    graph = make_graph([()], parameter_bytes=[0], activation_bytes=[10**6])
    times = profile_from_times(graph, [lambda b: 1e-3 * b], (4, 8, 16))
    found = dp.frontier(times, Cluster(4, "by hand", 4, FAST, FAST), 20, memory=4e6).comparison
    assert [one.micro_steps for one in found.data_parallel] == [5, 1, 1]
    assert found.too_large == "on 2, 4 GPUs it does not fit: a GPU needs 4.8 MiB, and has 3.8 MiB"
    assert found.baseline_text == "20 ms on 1 GPU in 5 micro-steps, where it is fastest of those that hold it"


def test_gradients_are_copied_into_buckets_once_however_many_micro_steps() -> None:
    graph = make_graph([(), *((layer,) for layer in range(7))], None, [LARGE // 8] * 8, [MB // 8] * 8)
    times = profile_from_times(graph, [lambda b: 1e-3 * b] * 8, (1, 2, 4, 8, 16))
    network = measured_network(dict.fromkeys((2, 3, 4), (1e-6, 2e-6, 3e-6)))
    for memory, steps in ((16 * MB, 1), (13 * MB, 4)):
        cluster = Cluster(4, "small", 4, FAST, FAST, memory, measured=network)
        copying = replace(cluster, measured=replace(network, copy_seconds_per_byte=1e-9))
        free, copied = (dp.frontier(times, each, 16).comparison.data_parallel[-1] for each in (cluster, copying))
        assert copied.micro_steps == steps
        # The all-reduces hide behind other layers, but for microseconds.
        assert copied.seconds - free.seconds == pytest.approx(LARGE * 1e-9, rel=1e-3)


SIZES = st.sampled_from([1000, 100_000, 900_000, 3 * MB, 20 * MB, 70 * MB])
LATENCIES = st.sampled_from([0.0, 1e-4, 1e-3])


@examples(60)
@given(st.lists(SIZES, min_size=1, max_size=7), st.integers(2, 8), LATENCIES, st.sampled_from(["cpu", "cuda"]))
def test_the_baseline_is_ddp_in_its_own_buckets_or_in_faster_ones(sizes, gpus, latency, device) -> None:
    """The simulation of transfers fills DDP's buckets by itself, and knows nothing of a plan's schedule."""
    graph = make_graph([(), *((index,) for index in range(len(sizes) - 1))], parameter_bytes=sizes)
    times = profile_from_times(graph, [lambda b: 1e-3 * b] * len(sizes), (1, 2, 4, 8))
    backward = tuple(replace(each, backward=each.forward) for each in times.measurements)
    times = replace(times, measurements=backward, update_per_byte=1e-10, device=device)
    cluster = Cluster(gpus, "by hand", 4, Link(1e9, latency, "by hand"), Link(3e8, latency, "by hand"))
    ddp = dp.compare_transfers(times, cluster, 8).plan(DDP).iteration_time
    made = dp.plan(times, cluster, 8)
    costs = price(times, Network(cluster, made.network_model), 8, (1, gpus))
    others = [each for each in DATA_PARALLEL_BUCKETS if each != DDP_BUCKETS]
    tuned = [data_parallel(replace(costs, buckets=each), 1).iteration_time for each in others]
    baseline = made.comparison.data_parallel[-1].seconds
    assert baseline == pytest.approx(min(ddp, *tuned)) == data_parallel_plan(times, cluster, 8).iteration_time
    assert made.iteration_time <= baseline * (1 + 1e-9)
    assert dp.check(made, times).iteration_time == pytest.approx(made.iteration_time)


def test_where_no_plan_holds_a_batch_the_goal_is_the_speed_of_accumulating_data_parallelism() -> None:
    # On one of two GPUs of 21 MB two micro-steps of 8 samples take 20 ms, as long as on two GPUs.
    made = dp.plan(large(15e-3, 10e-3, 20e-3), replace(SMALL, gpus=2, memory=20 * MB), 16, goal="ddp_speed")
    assert [one.micro_steps for one in made.comparison.data_parallel] == [2, 1]
    assert made.iteration_time == pytest.approx(10e-3)


def test_files_without_the_memory_of_data_parallelism_compare_as_before(tmp_path) -> None:
    file = dp.save(dp.plan(large(8e-3, 10e-3, 12e-3), SMALL, 16), tmp_path / "plan.json")
    fields = json.loads(file.read_text())
    del fields["data_parallel_memory"], fields["data_parallel_micro_steps"]
    fields["data_parallel_on_fewer"][0]["seconds"] = 8e-3
    for each in fields["data_parallel_on_fewer"]:
        del each["memory"], each["micro_steps"]
    file.write_text(json.dumps(fields))
    compared = dp.load(file).comparison
    assert (compared.fastest.gpus, compared.baseline_text) == (1, "8 ms on 1 GPU, where it is fastest, 12 ms on all")
    assert not compared.too_large


def test_the_command_line_compares_with_what_fits(deeppool, tmp_path) -> None:
    file = dp.save(large(8e-3, 10e-3, 12e-3), tmp_path / "profile.json")
    place = dp.save(SMALL, tmp_path / "cluster.json")
    request = [file, "--gpus", "4", "--global-batch", "16", "--cluster", place]
    for command in ("plan", "frontier"):
        code, out, _ = deeppool(command, *request)
        assert code == 0
        assert "10 ms on 2 GPUs, where it is fastest, 12 ms on all" in " ".join(out.split())
    code, out, _ = deeppool("plan", *request, "--json")
    made = json.loads(out)
    assert [each["memory"] for each in made["data_parallel_on_fewer"]] == [20 * MB, 20 * MB]
    assert [each["micro_steps"] for each in made["data_parallel_on_fewer"]] == [2, 1]
    assert made["data_parallel_memory"] == 16 * MB
    # Nothing fits: a frontier says so of both, and a plan is refused.
    request += ["--memory", "15MB"]
    code, out, _ = deeppool("frontier", *request)
    assert "on 4 GPUs or fewer it does not fit: a GPU needs 15.3 MiB, and has 14.3 MiB" in " ".join(out.split())
    code, _, error = deeppool("plan", *request)
    assert code == 1
    assert "data parallelism fits from 6 GPUs" in error


def test_the_caution_about_estimates_is_of_the_gain_over_the_fastest() -> None:
    plain = dp.plan(profile(), NODES, 8)
    gain = plain.comparison.gain - 1
    assert plain.comparison.fastest.gpus == 2
    assert 0 < gain < 1 < plain.data_parallel_iteration_time / plain.iteration_time - 1
    unsure, sure = (dp.plan(profile(error), NODES, 8) for error in (gain * 1.01, gain * 0.99))
    assert unsure.caveats == (
        f"the gain over data parallelism on 2 GPUs, {100 * gain:.1f} %, is within the median error of estimates, "
        f"{101 * gain:.0f} % (measure a profile to decide)",
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
    ratio = shared.efficient()[0].throughput / best.throughput
    assert curve.customdata[0][4] == f"{ratio:.2f}× data parallel on 2 GPUs, predicted"
