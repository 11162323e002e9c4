"""One workload by every strategy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import SEARCHED_BUCKETS
from deeppool.collectives.transfer_methods import DDP
from deeppool.errors import PlanError
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.evaluate.placement import data_parallel
from deeppool.planning.request import cost_table
from deeppool.planning.studies.collocation_tradeoff import share
from deeppool.profiling.table import Profile
from deeppool.records import files
from deeppool.simulation.cluster import job_costs
from deeppool.simulation.cluster.comparison import compare_strategies
from deeppool.simulation.cluster.simulate import simulate_cluster
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace, single_foreground_trace
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.simulation.plan.simulate import simulate
from deeppool.simulation.transfers.compare import compare_transfers
from tests.planning.searched import plan
from tests.sampling import examples
from tests.simulation.cluster.random_traces import random_trace
from tests.strategies import contested_problems, make_graph, profile_from_times

LINK = Link(1e9, 1e-5, "made by hand")
CLUSTER = Cluster(4, "by hand", 4, LINK, LINK, None)
PROFILE = profile_from_times(
    make_graph([(), (0,)], [[], [4096]], [2**20, 2**20]), [lambda b: 1e-3 * b, lambda b: 8e-3 + 1e-5 * b]
)
SOURCES = {"net": PROFILE}
STEADY = single_foreground_trace("net", 4, 16, iterations=10, amplification_limit=1.5)


def test_every_strategy_is_compared_with_the_partitions_of_the_paper(tmp_path):
    progress = []
    found = compare_strategies(
        STEADY, CLUSTER, sources=SOURCES, amplification_limits=(1.0, 4.0), on_progress=lambda *x: progress.append(x)
    )
    assert [result.label for result in found.results] == [
        "data-parallel",
        "partition, 1 for foregrounds",
        "partition, 2 for foregrounds",
        "partition, 4 for foregrounds",
        "burst-parallel",
        "collocated",
        "collocated, limit 1",
        "collocated, limit 4",
    ]
    assert progress[0] == ("data-parallel", 0.0) and progress[-1] == ("done", 1.0)
    assert files.load(files.save(found, tmp_path / "comparison.json")) == found
    assert all(result.label in str(found) for result in found.results)


def keeping(profile: Profile, bytes_a_sample: int) -> Profile:
    """The same profile of layers of which each keeps so much for the backward pass."""
    layers = tuple(replace(layer, activation_bytes=bytes_a_sample) for layer in profile.graph.layers)
    return replace(profile, graph=replace(profile.graph, layers=layers))


def test_data_parallelism_is_on_as_many_gpus_as_it_is_fastest_on():
    """Sums over a slow link take 42 ms on two GPUs and 63 ms on four, one GPU computes for 24 ms: all wait for it."""
    link = Link(1e8, 1e-5, "made by hand")
    slow = replace(CLUSTER, inside=link, between=link)
    found = compare_strategies(STEADY, slow, sources=SOURCES)
    for result in found.results[:4]:
        assert result.completion_time == pytest.approx(10 * (16e-3 + 8.16e-3))
        assert result.speedup == pytest.approx(1)
    everyone = simulate_cluster(STEADY, slow, sources=SOURCES, strategy="data-parallel")
    assert [job.gpu_count for job in everyone.jobs] == [1] * 5
    # The other three train backgrounds.
    assert everyone.gpu_seconds.background == pytest.approx(3 * everyone.makespan)


def test_data_parallelism_that_does_not_fit_accumulates_gradients():
    """Both layers keep 1 MB a sample: at batch 16 a GPU needs 32 MB and some MiB of parameters; so 8 twice."""
    found = compare_strategies(STEADY, replace(CLUSTER, memory=30e6), sources={"net": keeping(PROFILE, 10**6)})
    assert [result.foreground_gpus for result in found.results] == [None, 1, 2, 4, None, None]
    assert found.results[1].completion_time == pytest.approx(10 * 2 * (8e-3 + 8.08e-3))
    assert not found.left_out
    # On a GPU with room for 3 samples no plan holds the 4 of data parallelism on four GPUs.
    sources = {"net": keeping(PROFILE, 10**6)}
    found = compare_strategies(STEADY, replace(CLUSTER, memory=14e6), sources=sources)
    assert [result.foreground_gpus for result in found.results] == [None, 1, 2, 4]
    assert [line.split(":")[0] for line in found.left_out] == ["burst-parallel", "collocated"]
    with pytest.raises(PlanError, match="4 GPUs cannot share a global batch of 3"):
        compare_strategies(single_foreground_trace("net", 4, 3), CLUSTER, sources=SOURCES)
    with pytest.raises(PlanError, match="no plan"):
        compare_strategies(STEADY, replace(CLUSTER, memory=5e6), sources=sources)


def test_data_parallelism_is_ddp_in_its_own_buckets_where_these_are_faster():
    """DDP sends the last of four layers of 8 MiB first and then three at once; the oracle simulates transfers."""
    graph = make_graph([(), (0,), (1,), (2,)], parameter_bytes=[2**23] * 4)
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 4)
    profile = replace(profile, measurements=tuple(replace(x, backward=x.forward) for x in profile.measurements))
    link = Link(1e10, 8e-4, "made by hand")
    cluster = replace(CLUSTER, inside=link, between=link)
    ddp = compare_transfers(profile, cluster, 16).plan(DDP).iteration_time
    costs = cost_table(profile, cluster, 16)
    everywhere = [data_parallel(replace(costs, buckets=each), -1 + len(costs.gpu_counts)) for each in SEARCHED_BUCKETS]
    assert ddp < 0.99 * min(one.iteration_time for one in everywhere)
    trace = replace(STEADY, jobs=STEADY.jobs[:1])
    found = simulate_cluster(trace, cluster, sources={"net": profile}, strategy="data-parallel")
    assert found.makespan == pytest.approx(10 * ddp)


def test_strategies_whose_data_parallelism_does_not_fit_are_left_out_with_the_reason(tmp_path):
    """Four GPUs hold their 5 samples of 2 MB; two accumulate 4 and 5, and the profile has no time of 4."""
    profile = replace(profile_from_times(PROFILE.graph, [lambda b: 1e-3 * b] * 2, (5, 16)), update_per_byte=0.0)
    sources, cluster = {"net": keeping(profile, 10**6)}, replace(CLUSTER, memory=17e6)
    trace = replace(STEADY, jobs=tuple(replace(x, batch=18 if x.role == "foreground" else 5) for x in STEADY.jobs))
    found = compare_strategies(trace, cluster, sources=sources)
    assert [result.foreground_gpus for result in found.results] == [None, 4, None, None]
    first, second = found.left_out
    assert first.startswith(
        "partition of 1 GPU: job 'foreground' does not fit by data parallelism on 1 GPU: each needs "
    )
    assert second.startswith("partition of 2 GPUs: job 'foreground' does not fit by data parallelism on 2 GPUs: ")
    assert f"  left out: {first}" in str(found)
    assert files.load(files.save(found, tmp_path / "comparison.json")) == found
    with pytest.raises(PlanError, match="does not fit by data parallelism on 1 GPU"):
        simulate_cluster(trace, cluster, sources=sources, strategy="partition", foreground_gpus=1)


def test_jobs_that_never_have_enough_gpus_are_counted_and_partitions_of_no_use_left_out():
    background = TraceJob(name="wide", role="background", source="net", gpus=4, iterations=10)
    endless = TraceJob(name="endless", role="background", source="net", arrival=1.0)
    narrow = TraceJob(name="narrow", role="background", source="net", iterations=10, arrival=0.1)
    found = compare_strategies(
        WorkloadTrace("t", "by hand", (background, endless)), CLUSTER, sources=SOURCES, partitions=()
    )
    assert [result.unfinished for result in found.results] == [0, 0, 0]
    trace = WorkloadTrace("t", "by hand", (STEADY.jobs[0], background, narrow))
    found = compare_strategies(trace, CLUSTER, sources=SOURCES)
    assert [result.unfinished for result in found.results] == [0, 2, 2, 2, 0, 0]
    assert str(found).count("2 jobs did not finish") == 3
    assert str(replace(found.results[1], unfinished=1)).endswith(", 1 job did not finish")
    found = compare_strategies(WorkloadTrace("t", "by hand", (narrow,)), CLUSTER, sources=SOURCES)
    assert [result.foreground_gpus for result in found.results] == [None, 1, 2, None, None]


def test_static_partitions_are_those_of_the_analytic_model():
    analytic = share(PROFILE, CLUSTER, 16, PROFILE)
    found = compare_strategies(STEADY, CLUSTER, sources=SOURCES)
    simulated = [result for result in found.results if result.strategy == "partition"]
    for point, result in zip(analytic.data_parallel_partitions, simulated, strict=True):
        assert result.foreground_gpus == point.gpus
        assert result.speedup == pytest.approx(point.speedup)
        assert result.foreground_throughput == pytest.approx(point.foreground_throughput)
        assert result.background_throughput == pytest.approx(point.background_throughput)


def test_a_limit_for_all_is_as_if_the_trace_had_it():
    found = compare_strategies(STEADY, CLUSTER, sources=SOURCES, amplification_limits=(1.1,)).results[-1]
    alone = simulate_cluster(
        single_foreground_trace("net", 4, 16, iterations=10, amplification_limit=1.1), CLUSTER, sources=SOURCES
    )
    assert found.completion_time == alone.mean_completion_time()
    assert found.background_throughput == alone.background_throughput


def test_each_distinct_combination_is_simulated_once(monkeypatch):
    calls = []
    real = job_costs.simulate_gpu

    def counting(plan, work, *rest, **options):
        calls.append((id(plan), work.gpus, id(rest[1]), rest[2]))
        return real(plan, work, *rest, **options)

    monkeypatch.setattr(job_costs, "simulate_gpu", counting)
    pairs = tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs)
    kinds = [
        TraceJob(name="f", role="foreground", source="net", iterations=20, gpus=4, batch=16, amplification_limit=1.5),
        TraceJob(name="b", role="background", source="net", iterations=30),
        TraceJob(name="c", role="background", source="net", iterations=30, batch=4),
    ]
    drawn = random_trace(kinds, jobs=40, interval=0.05, seed=1)
    simulate_cluster(drawn, CLUSTER, sources=SOURCES, interference=measured)
    assert len(calls) == len(set(calls))
    assert 1 < len(calls) <= 2 * len({work for _, work, _, _ in calls})


@examples(60)
@given(contested_problems(gpus=(1, 2, 3, 4)), st.booleans())
def test_the_data_parallel_plan_has_the_reported_data_parallel_iteration_time(problem, overlap):
    profile, cluster, batch = problem
    model = "ring" if overlap else "paper"
    made = data_parallel_plan(profile, cluster, batch, network_model=model)
    assert {layer.gpus for layer in made.layers} == {tuple(range(cluster.gpus))}
    searched = plan(profile, cluster, batch, network_model=model, overlap_sync=overlap)
    assert made.iteration_time == pytest.approx(searched.data_parallel_iteration_time)
    # Ranks read it from a file.
    made.check_totals()
    once = simulate(made)
    assert once.iteration_time == pytest.approx(made.iteration_time)
    assert once.gpu_seconds == pytest.approx(made.gpu_seconds)
    assert once.idle_gpu_seconds == pytest.approx(0, abs=1e-12)


def test_data_parallelism_needs_a_sample_for_each_gpu():
    with pytest.raises(PlanError, match="4 GPUs cannot share a global batch of 3"):
        data_parallel_plan(PROFILE, CLUSTER, 3)
