"""Many jobs on a simulated cluster, against closed forms and a brute-force simulation in small time steps."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deeppool.base.sharing import POLICIES
from deeppool.cluster.cluster import Cluster, Link, find_cluster
from deeppool.errors import DocumentError, InvalidValueError, PlanError
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.planner import plan
from deeppool.records import files
from deeppool.simulation.cluster.comparison import compare_strategies
from deeppool.simulation.cluster.job_costs import STRATEGIES
from deeppool.simulation.cluster.simulate import simulate_cluster
from deeppool.simulation.cluster.workload import (
    TraceJob,
    WorkloadTrace,
    load_sources,
    single_foreground_trace,
)
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.simulation.plan.collocated_plan import simulate_collocated_plan
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.simulate import simulate
from tests.figures.records import layer, plan_of
from tests.sampling import examples
from tests.simulation.cluster import small_cluster_steps
from tests.simulation.cluster.random_traces import random_trace
from tests.strategies import make_graph, profile_from_times

LINK = Link(1e12, 0.0, "made by hand")
CLUSTER = Cluster(4, "by hand", 4, LINK, LINK, None)
SCALES, STAYS = (lambda b: 1e-3 * b), (lambda b: 8e-3)
PROFILE = profile_from_times(make_graph([(), (0,)]), [SCALES, STAYS])
"""A layer that scales, and one that does not and that a limit keeps on one GPU."""
SOURCES = {"net": PROFILE}


def foreground(name, arrival=0.0, iterations=10, gpus=4, limit=1.5):
    return TraceJob(
        name=name,
        role="foreground",
        source="net",
        arrival=arrival,
        iterations=iterations,
        gpus=gpus,
        batch=16,
        amplification_limit=limit,
    )


def background(name, arrival=0.0, iterations=None, gpus=1, batch=16):
    return TraceJob(
        name=name, role="background", source="net", arrival=arrival, iterations=iterations, gpus=gpus, batch=batch
    )


def trace(*jobs):
    return WorkloadTrace("by hand", "written for a test", jobs)


def run(*jobs, cluster=CLUSTER, strategy="collocated", sources=SOURCES, **options):
    return simulate_cluster(trace(*jobs), cluster, strategy=strategy, sources=sources, **options)


def test_one_job_takes_the_iteration_times_of_the_replay():
    found = run(foreground("one", arrival=2.0, iterations=1000))
    once = simulate(plan(PROFILE, CLUSTER, 16, 1.5))
    (job,) = found.jobs
    assert (job.start, job.finish) == (2.0, pytest.approx(2.0 + 1000 * once.iteration_time))
    assert job.slowdown == pytest.approx(1.0)
    assert found.gpu_seconds.foreground == pytest.approx(1000 * once.gpu_seconds)
    assert found.gpu_seconds.idle == pytest.approx(1000 * once.idle_gpu_seconds + 4 * 2.0)
    assert job.speedup == pytest.approx(plan(PROFILE, CLUSTER, 16, 1.5).speedup)
    assert found.foreground_throughput == pytest.approx(16_000 / found.makespan)


def test_the_second_of_two_jobs_that_do_not_fit_together_starts_at_the_first_ones_end():
    first, second = run(foreground("first"), foreground("second", arrival=0.01)).jobs
    assert second.start == first.finish
    assert second.waiting == pytest.approx(first.finish - 0.01)
    assert second.slowdown == pytest.approx((2 * first.finish - 0.01) / first.finish)


def test_jobs_that_fit_together_do_not_wait():
    first, second = run(foreground("first", gpus=2), foreground("second", gpus=2)).jobs
    assert (first.start, second.start) == (0.0, 0.0)
    assert set(first.gpus).isdisjoint(second.gpus)


def test_a_background_trains_what_the_replay_leaves_idle():
    jobs = [background(f"back {gpu}") for gpu in range(4)]
    found = run(foreground("front", iterations=50), *jobs)
    once = simulate(plan(PROFILE, CLUSTER, 16, 1.5), background_sample_time=PROFILE.iteration_time(16) / 16)
    assert found.background_throughput * once.iteration_time == pytest.approx(once.background_samples)
    assert found.gpu_seconds.idle == pytest.approx(0, abs=1e-9)
    assert found.utilisation == pytest.approx(1)
    half = run(foreground("front", iterations=50), *jobs, harvest_of_idle=0.5)
    assert half.background_throughput == pytest.approx(found.background_throughput / 2)


def test_an_exclusive_job_preempts_the_background_which_keeps_its_progress():
    step = PROFILE.iteration_time(16)
    found = run(
        background("back", iterations=10, gpus=4),
        foreground("front", arrival=4 * step, iterations=5),
        strategy="burst-parallel",
    )
    back, front = found.jobs
    took = 5 * plan(PROFILE, CLUSTER, 16, 1.5).iteration_time
    assert front.start == pytest.approx(4 * step)
    assert front.finish == pytest.approx(4 * step + took)
    assert back.finish == pytest.approx(10 * step + took)
    assert back.suspensions == 1
    assert back.samples == 10 * 16 * 4
    assert [stint.background for stint in found.groups[0].stints] == ["back", None, "back"]


def test_a_partition_keeps_the_roles_apart_and_data_parallelism_on_its_part():
    jobs = [background(f"back {number}") for number in range(5)]
    found = run(foreground("front", iterations=20), *jobs, strategy="partition", foreground_gpus=2)
    front, *behind = found.jobs
    small = data_parallel_plan(PROFILE, replace(CLUSTER, gpus=2), 16)
    assert set(front.gpus) == {0, 1}
    assert found.makespan == pytest.approx(20 * small.iteration_time)
    assert [job.gpus for job in behind] == [(2,), (3,), (), (), ()]
    assert found.gpu_seconds.background == pytest.approx(2 * found.makespan)
    assert found.steps[0].queued == 3


def test_background_slowdown_equals_that_of_the_device_simulation():
    pairs = tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs)
    made = plan(PROFILE, CLUSTER, 16, 1.5)
    jobs = [background(f"back {gpu}") for gpu in range(4)]
    found = run(foreground("front", iterations=50), *jobs, interference=measured, policy="naive")
    alone = simulate_collocated_plan(made, PROFILE, measured, POLICIES["naive"], iterations=100)
    assert alone.slowdown > 0.01
    assert found.makespan == pytest.approx(50 * made.iteration_time * (1 + alone.slowdown))
    assert found.gpu_seconds.total == pytest.approx(4 * found.makespan)
    assert "a device" in str(found)
    beside_one = run(foreground("front", iterations=50), jobs[0], interference=measured, policy="naive")
    assert made.iteration_time * 50 < beside_one.makespan <= found.makespan
    kept = run(foreground("front", iterations=50), *jobs, interference=measured, strategy="burst-parallel")
    assert kept.makespan == pytest.approx(50 * made.iteration_time)


def test_a_background_that_ends_speeds_up_the_foreground():
    pairs = tuple(Arrangement(name, ((0.5,),), ((0.5,),)) for name in ("normal", "nice", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs)
    jobs = foreground("front", iterations=100, gpus=1), background("back", iterations=3)
    found = run(*jobs, cluster=replace(CLUSTER, gpus=1), interference=measured, policy="naive")
    # On one GPU without gaps both go half as fast, until the background's three steps are done.
    step = PROFILE.iteration_time(16)
    front, back = found.jobs
    assert back.finish == pytest.approx(2 * 3 * step)
    assert front.finish == pytest.approx(100 * step + 3 * step)


def test_a_slow_gpu_slows_down_the_job_placed_on_it():
    jobs = foreground("first", gpus=1), foreground("second", gpus=1), background("third", iterations=5)
    found = run(*jobs, conditions=Conditions(speeds=(0.5, 1.0, 0.25)))
    assert [job.gpus for job in found.jobs] == [(0,), (1,), (2,)]
    step = PROFILE.iteration_time(16)
    assert [job.finish for job in found.jobs] == pytest.approx([2 * 10 * step, 10 * step, 4 * 5 * step])


def test_random_stragglers_make_a_job_longer_by_their_mean_and_the_same_seed_the_same():
    conditions = Conditions(straggling=0.1, seed=3)
    found = run(foreground("one"), conditions=conditions)
    made = plan(PROFILE, CLUSTER, 16, 1.5)
    drawn = simulate(made, conditions=conditions, iterations=200)
    assert found.makespan == pytest.approx(10 * drawn.summary.mean)
    assert found == run(foreground("one"), conditions=conditions)
    assert found.makespan != run(foreground("one"), conditions=replace(conditions, seed=4)).makespan


def test_a_gpu_without_gaps_has_none_for_a_background_however_much_its_iterations_differ():
    conditions = Conditions(straggling=0.05, delay=50.0)
    found = run(
        foreground("front", gpus=1), background("back"), cluster=replace(CLUSTER, gpus=1), conditions=conditions
    )
    assert found.jobs[1].samples == pytest.approx(0, abs=1e-9)
    assert found.gpu_seconds.foreground == pytest.approx(found.makespan)


def test_the_simulation_stops_at_the_given_end_and_counts_unfinished_work():
    found = run(foreground("front", iterations=10_000), background("back", gpus=2), until=1.5)
    front, back = found.jobs
    assert found.makespan == 1.5
    assert (front.finish, back.finish) == (None, None)
    assert front.iterations == pytest.approx(1.5 / simulate(plan(PROFILE, CLUSTER, 16, 1.5)).iteration_time)
    assert back.samples > 0
    assert found.steps[-1].end == 1.5


def test_a_job_queued_behind_an_endless_one_never_starts_and_the_simulation_ends():
    endless = background("endless", gpus=4)
    found = run(endless, background("later", arrival=1.0, iterations=5), foreground("front", arrival=0.5, gpus=1))
    assert [job.finish is None for job in found.jobs] == [True, True, False]
    assert found.jobs[1].start is None
    # Then nothing was left to wait for but the job that waits.
    assert found.jobs[2].finish < found.makespan == 1.0


STEPPED = [profile_from_times(make_graph([()]), [lambda b, s=s: s], (16,)) for s in (0.25, 1.0)]
"""Profile whose steps take 0.25 and 1 s at any batch."""


def front_plan(held, period):
    """GPU i is held for held[i] seconds from the start of an iteration of so many seconds."""
    ends = sorted({*held, period})
    layers, before = [], 0.0
    for end in ends:
        gpus = tuple(gpu for gpu, until in enumerate(held) if until >= end) or (held.index(max(held)),)
        layers.append(replace(layer(f"to {end}", len(gpus), forward=end - before), gpus=gpus))
        before = end
    return replace(plan_of(*layers, gpus=len(held)), device_name=PROFILE.device_name)


@st.composite
def small_workloads(draw):
    """Draws workloads with times in multiples of the brute force's tick and whole iterations between events."""
    arrival = st.integers(0, 12)
    fronts = st.lists(st.tuples(arrival, st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=4)
    behinds = st.lists(st.tuples(arrival, st.integers(1, 8), st.integers(1, 3)), max_size=4)
    return draw(fronts), draw(behinds)


@examples(100)
@given(small_workloads(), st.sampled_from(["burst-parallel", "collocated"]), st.sampled_from([3, 4]))
def test_results_equal_those_of_small_time_steps(workload, strategy, size):
    # Beside a foreground without gaps a background stands still, without one it has the GPU: nothing happens in parts.
    fronts, behinds = workload
    sources = {f"plan {gpus}": front_plan([1.0] * gpus, 1.0) for gpus in (1, 2, 3)} | {"back": STEPPED[1]}
    jobs = [
        TraceJob(name=f"f{number}", role="foreground", source=f"plan {gpus}", arrival=float(at), iterations=count)
        for number, (at, count, gpus) in enumerate(fronts)
    ]
    jobs += [
        TraceJob(name=f"b{number}", role="background", source="back", arrival=float(at), iterations=count, gpus=gpus)
        for number, (at, count, gpus) in enumerate(behinds)
    ]
    found = run(*jobs, cluster=replace(CLUSTER, gpus=size), sources=sources, strategy=strategy)
    finish, seconds, end = small_cluster_steps.simulate(
        size,
        [small_cluster_steps.Foreground(at, count, 1.0, (1.0,) * gpus) for at, count, gpus in fronts],
        [small_cluster_steps.Background(at, float(count), gpus) for at, count, gpus in behinds],
        exclusive=strategy == "burst-parallel",
    )
    assert [job.finish for job in found.jobs] == pytest.approx([*finish[0], *finish[1]])
    shares = found.gpu_seconds
    assert (shares.foreground, shares.background, shares.idle) == pytest.approx(tuple(seconds))
    assert found.makespan == pytest.approx(end)


def test_results_equal_those_of_small_time_steps_for_a_foreground_with_gaps():
    fronts = [(0.0, 8, (0.5, 1.0)), (3.0, 4, (1.0, 0.25, 0.5))]
    behinds = [(0.0, 4.0, 2), (1.0, 6.0, 3), (2.0, 2.0, 1)]
    sources = {f"plan {number}": front_plan(list(held), 1.0) for number, (_, _, held) in enumerate(fronts)}
    jobs = [
        TraceJob(name=f"f{number}", role="foreground", source=f"plan {number}", arrival=at, iterations=count)
        for number, (at, count, _) in enumerate(fronts)
    ]
    jobs += [
        TraceJob(name=f"b{n}", role="background", source="back", arrival=at, iterations=int(4 * seconds), gpus=gpus)
        for n, (at, seconds, gpus) in enumerate(behinds)
    ]
    found = run(*jobs, cluster=replace(CLUSTER, gpus=5), sources=sources | {"back": STEPPED[0]})
    finish, seconds, end = small_cluster_steps.simulate(
        5,
        [small_cluster_steps.Foreground(at, count, 1.0, held) for at, count, held in fronts],
        [small_cluster_steps.Background(*job) for job in behinds],
        exclusive=False,
    )
    # Rates are means over an iteration, so an end may be off by the gaps of one.
    assert [job.finish for job in found.jobs] == pytest.approx([*finish[0], *finish[1]], abs=1.0)
    assert found.makespan == pytest.approx(end, abs=1.0)
    assert found.gpu_seconds.foreground == pytest.approx(seconds[0])
    assert found.gpu_seconds.background == pytest.approx(seconds[1])


@st.composite
def workloads(draw):
    count = st.integers(1, 40)
    jobs = [
        foreground(
            f"f{number}",
            draw(st.floats(0, 1)),
            draw(count),
            draw(st.integers(1, 8)),
            draw(st.sampled_from([None, 1.5])),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    jobs += [
        background(
            f"b{number}",
            draw(st.floats(0, 1)),
            draw(st.none() | count),
            draw(st.integers(1, 8)),
            draw(st.sampled_from([None, 4, 16])),
        )
        for number in range(draw(st.integers(0, 5)))
    ]
    return trace(*draw(st.permutations(jobs)))


PAIRS = tuple(Arrangement(name, ((0.7,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
MEASURED = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), PAIRS)


@examples(60)
@given(
    workloads(),
    st.sampled_from(STRATEGIES),
    st.sampled_from([None, MEASURED]),
    st.sampled_from([None, Conditions(jitter=0.2, speeds=(1.0, 0.5))]),
    st.none() | st.floats(0.1, 2.0),
)
def test_gpu_seconds_are_conserved_on_every_gpu_and_in_every_step(workload, strategy, interference, conditions, until):
    cluster = replace(CLUSTER, gpus=8)
    found = simulate_cluster(
        workload,
        cluster,
        strategy=strategy,
        sources=SOURCES,
        foreground_gpus=3 if strategy == "partition" else None,
        interference=interference,
        policy="naive",
        conditions=conditions,
        until=until,
    )
    total = found.gpu_seconds
    assert total.total == pytest.approx(8 * found.makespan)
    assert min(total.foreground, total.background, total.idle) >= -1e-9
    for kind, whole in (("held", total.foreground), ("harvested", total.background), ("idle", total.idle)):
        assert sum((x.end - x.start) * getattr(x, kind) for x in found.steps) == pytest.approx(whole, abs=1e-6)
        stints = [(len(group.gpus), stint) for group in found.groups for stint in group.stints]
        assert sum(n * (x.end - x.start) * getattr(x, kind) for n, x in stints) == pytest.approx(whole, abs=1e-6)
    assert sorted(gpu for group in found.groups for gpu in group.gpus) == list(range(8))
    for stints in (group.stints for group in found.groups):
        assert (stints[0].start, stints[-1].end) == (0.0, found.makespan)
        assert all(before.end == after.start for before, after in pairwise(stints))
        assert all(-1e-9 <= share <= 1 + 1e-9 for x in stints for share in (x.held, x.harvested, x.idle))
    samples = sum((x.end - x.start) * (x.foreground_throughput + x.background_throughput) for x in found.steps)
    assert samples == pytest.approx(sum(job.samples for job in found.jobs))


@examples(60)
@given(workloads(), st.sampled_from(STRATEGIES))
def test_jobs_start_in_arrival_order_and_complete_all_iterations(workload, strategy):
    found = simulate_cluster(
        workload,
        replace(CLUSTER, gpus=8),
        strategy=strategy,
        sources=SOURCES,
        foreground_gpus=3 if strategy == "partition" else None,
    )
    for role in ("foreground", "background"):
        own = [x for x in found.jobs if x.role == role]
        came = sorted(own, key=lambda x: (x.arrival, found.jobs.index(x)))
        starts = [x.start for x in came]
        begun = [x for x in starts if x is not None]
        assert begun == sorted(begun)
        assert starts[: len(begun)] == begun
    for wanted, job in zip(workload.jobs, found.jobs, strict=True):
        assert job.arrival <= (job.start if job.start is not None else job.arrival)
        if job.finish is not None:
            assert job.iterations == wanted.iterations
            assert job.finish >= job.start
            assert job.slowdown >= 1 - 1e-9
        elif job.role == "foreground":
            assert job.start is None


def test_the_same_call_gives_the_same_record_and_it_comes_back_from_a_file(tmp_path):
    drawn = random_trace([foreground("f"), background("b", iterations=30)], jobs=12, interval=0.2, seed=5)
    options = {"sources": SOURCES, "conditions": Conditions(jitter=0.1, seed=2), "interference": MEASURED}
    first, again = (simulate_cluster(drawn, 8, **options) for _ in range(2))
    assert first == again
    assert files.load(files.save(first, tmp_path / "cluster.json")) == first
    assert files.load(files.save(drawn, tmp_path / "trace.json")) == drawn


def test_sources_are_found_next_to_the_trace_and_by_name(tmp_path):
    made = plan(PROFILE, CLUSTER, 16, 1.5)
    files.save(PROFILE, tmp_path / "net.json")
    files.save(made, tmp_path / "plan.json")
    job = TraceJob(name="planned", role="foreground", source="plan.json", iterations=3)
    jobs = trace(job, replace(background("b"), source="net.json"))
    found = load_sources(jobs, tmp_path)
    assert found == {"plan.json": made, "net.json": PROFILE}
    done = simulate_cluster(jobs, CLUSTER, sources=found)
    assert done.makespan == pytest.approx(3 * made.iteration_time)
    files.save(CLUSTER, tmp_path / "cluster.json")
    with pytest.raises(DocumentError, match="expected 'deeppool/profile' or 'deeppool/plan'"):
        load_sources(trace(replace(job, source="cluster.json")), tmp_path)
    with pytest.raises(DocumentError, match="no profile 'nowhere'"):
        load_sources(trace(replace(job, source="nowhere")), tmp_path)


def test_each_strategy_has_the_throughput_of_the_papers_scenario():
    steady = single_foreground_trace("net", 4, 16, iterations=10, amplification_limit=1.5)
    found = {
        name: simulate_cluster(
            steady, CLUSTER, strategy=name, sources=SOURCES, foreground_gpus=2 if name == "partition" else None
        )
        for name in STRATEGIES
    }
    assert found["data-parallel"].background_throughput == 0
    assert found["burst-parallel"].background_throughput == 0
    assert found["collocated"].throughput > found["burst-parallel"].throughput
    assert found["collocated"].mean_speedup == pytest.approx(found["burst-parallel"].mean_speedup)
    per_gpu = 16 / PROFILE.iteration_time(16)
    assert found["partition"].background_throughput == pytest.approx(2 * per_gpu)


@pytest.mark.parametrize(
    ("jobs", "options", "message"),
    [
        ([foreground("f")], {"strategy": "fastest"}, "strategy must be one of data-parallel, partition"),
        ([foreground("f")], {"strategy": "partition"}, "foreground_gpus and the strategy partition need each other"),
        ([foreground("f")], {"foreground_gpus": 2}, "got 2 with strategy collocated"),
        (
            [foreground("f")],
            {"strategy": "partition", "foreground_gpus": 9},
            "must be at most 4, got 9 .the cluster has 4 GPUs",
        ),
        (
            [foreground("f")],
            {"strategy": "partition", "foreground_gpus": 9, "cluster": replace(CLUSTER, gpus=1)},
            r"got 9 \(the cluster has 1 GPU\)",
        ),
        ([foreground("f")], {"harvest_of_idle": 2.0}, "harvest_of_idle must be from 0 to 1, got 2"),
        ([foreground("f")], {"policy": "none"}, "policy 'none' has no background"),
        ([foreground("f")], {"max_slowdown": 0.1}, "max_slowdown 0.1 bounds what backgrounds cost"),
        ([foreground("f")], {"conditions": Conditions(speeds=(1, 1, 1, 1, 0.5))}, "up to GPU 4, the cluster has 4"),
        ([foreground("f")], {"until": 0.0}, "until must be later than 0 s"),
        ([replace(foreground("f"), source="other")], {}, "names the source 'other', known are: net"),
        ([replace(foreground("f"), batch=None)], {}, "'f' of a profile needs gpus and batch"),
        ([foreground("f"), background("b", gpus=9)], {}, "'b' needs 9 GPUs, the cluster has 4"),
        ([foreground("f"), background("b", batch=64)], {}, "'b' must be at most 16, the largest"),
        (
            [background("a", gpus=4), background("b", iterations=9)],
            {},
            "'b' can never start, and neither can any other",
        ),
        ([background("b", iterations=9)], {"strategy": "partition", "foreground_gpus": 4}, "'b' can never start"),
    ],
)
def test_jobs_that_cannot_run_are_refused(jobs, options, message):
    with pytest.raises(InvalidValueError, match=message):
        run(*jobs, **options)


def test_numbers_of_numpy_are_pythons(tmp_path):
    numbers = {"gpus": np.int64(4), "iterations": np.int64(10), "arrival": np.float32(0.5)}
    found = run(replace(foreground("f"), **numbers, batch=np.int64(16)), cluster=replace(CLUSTER, gpus=4))
    assert found == run(foreground("f", arrival=0.5))
    numpys = trace(replace(background("b", iterations=1), **numbers))
    assert files.load(files.save(numpys, tmp_path / "trace.json")) == numpys
    assert simulate_cluster(numpys, np.int64(4), sources=SOURCES).cluster == find_cluster("loopback", 4)


KEEPS = replace(PROFILE, graph=make_graph([(), (0,)], parameter_bytes=[0, 0], activation_bytes=[10**6, 10**6]))
"""Keeps 2 MB a sample: at batch 16 a background needs 32 MB, and a foreground on two GPUs at least 16 MB on each."""


@examples(30)
@given(workloads())
def test_jobs_that_never_fit_together_on_a_gpu_take_turns_and_those_that_do_share_it(workload):
    def outcome(strategy, memory):
        cluster = replace(CLUSTER, gpus=8, memory=memory)
        found = simulate_cluster(workload, cluster, strategy=strategy, sources={"net": KEEPS})
        return [replace(job, gpus=()) for job in found.jobs], found.makespan

    # A GPU holds any of them, and no background of the least batch beside any foreground.
    least = min((2e6 * (job.batch or 16) for job in workload.jobs if job.role == "background"), default=1e6)
    most = max(2e6 * (job.batch or 16) for job in workload.jobs)
    assume(
        most < least + 2e6 * min((job.batch / job.gpus for job in workload.jobs if job.role == "foreground"), default=9)
    )
    assert outcome("collocated", most) == outcome("burst-parallel", most)
    assert outcome("collocated", 200e6) == outcome("collocated", None)


def test_a_background_leaves_a_gpu_on_which_a_foreground_needs_its_memory():
    """Two GPUs: a foreground of 32 MB comes to the first after a second, for ten iterations of 24 ms."""
    cluster = replace(CLUSTER, gpus=2, memory=40e6)
    step = PROFILE.step_time(16)
    jobs = foreground("front", arrival=step, gpus=1), background("back", iterations=3, gpus=2)
    back = run(*jobs, cluster=cluster, sources={"net": KEEPS}).jobs[1]
    alone = 10 * plan(KEEPS, replace(cluster, gpus=1), 16).iteration_time
    # On two GPUs at once or not at all: it waits for the first one.
    assert (back.suspensions, back.finish) == (1, pytest.approx(step + alone + 2 * step))
    # A smaller batch has room beside it, in time that the foreground leaves none of.
    small = run(jobs[0], replace(jobs[1], batch=4), cluster=cluster, sources={"net": KEEPS}).jobs[1]
    assert small.suspensions == 0
    # The default is the largest batch that fits, and one that does not is refused.
    default = run(replace(jobs[1], batch=None), cluster=replace(cluster, memory=20e6), sources={"net": KEEPS})
    assert default.jobs[0].samples == 3 * 2 * 8
    with pytest.raises(
        PlanError, match=r"background drawn does not fit: at batch 16 it needs 30.5 MiB, and a GPU has 19"
    ):
        run(jobs[1], cluster=replace(cluster, memory=20e6), sources={"net": KEEPS})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_jobs_of_different_devices_share_no_cluster(strategy):
    others = replace(PROFILE, device_name="another")
    jobs = [foreground("f"), replace(background("b"), source="other")]
    with pytest.raises(InvalidValueError, match=r"one kind of GPU, got 'f' of drawn \(cpu\), 'b' of another \(cpu\)"):
        run(*jobs, strategy=strategy, sources={"net": PROFILE, "other": others})


def test_a_number_of_gpus_means_those_for_which_the_jobs_are_planned():
    h100 = replace(PROFILE, device="cuda", device_name="NVIDIA H100 80GB HBM3")
    found = simulate_cluster(trace(foreground("f")), 4, sources={"net": h100})
    alone = plan(h100, 4, 16, 1.5)
    assert found.cluster == alone.cluster == find_cluster("dgx-h100", 4)
    assert found.makespan == pytest.approx(10 * alone.iteration_time)
    # A plan says itself what it was made for.
    mine = replace(CLUSTER, name="mine")
    by_plan = simulate_cluster(trace(foreground("f")), 8, sources={"net": plan(PROFILE, mine, 16, 1.5)})
    assert by_plan.cluster == replace(mine, gpus=8)


def test_a_plan_where_a_profile_is_needed_is_refused():
    made = {"net": plan(PROFILE, CLUSTER, 16, 1.5)}
    with pytest.raises(InvalidValueError, match="the strategy data-parallel needs a profile"):
        run(foreground("f"), sources=made, strategy="data-parallel")
    with pytest.raises(InvalidValueError, match="source of background job 'b' is a plan, it needs a profile"):
        run(foreground("f"), background("b"), sources=made)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([background("b")], "has no job that ends"),
        ([foreground("f"), foreground("f")], "two jobs of trace 'by hand' are called 'f'"),
    ],
)
def test_an_invalid_trace_is_refused(jobs, message):
    with pytest.raises(InvalidValueError, match=message):
        trace(*jobs)
    with pytest.raises(InvalidValueError, match="iterations of job 'x' must be at least 1, got 0"):
        foreground("x", iterations=0)
    with pytest.raises(InvalidValueError, match=r"gpus of job 'x' must be a whole number, got 2\.0"):
        background("x", gpus=2.0)
    with pytest.raises(InvalidValueError, match="role of job 'x' must be foreground or background, got 'both'"):
        replace(background("x"), role="both")
    with pytest.raises(InvalidValueError, match="foreground job 'x' needs a number of iterations"):
        foreground("x", iterations=None)


def test_progress_is_reported_and_ends_at_one():
    progress = []
    run(foreground("a"), foreground("b"), on_progress=lambda what, share: progress.append((what, share)))
    assert [share for _, share in progress] == [0.5, 1.0]
    assert progress[-1][0] == "2 of 2 jobs have ended"


def test_times_beyond_the_profiles_batches_are_said_to_be_extrapolated():
    large = replace(foreground("a"), batch=2 * PROFILE.batch_sizes[-1])
    within, beyond = run(foreground("a")), run(large)
    assert within.caveats == ()
    (sentence,) = beyond.caveats
    assert "extrapolat" in sentence
    assert str(beyond).endswith(f"; caution: {sentence}")
    compared = compare_strategies(trace(large), CLUSTER, sources=SOURCES)
    assert compared.caveats == (sentence,)
    assert str(compared).endswith(f"caution: {sentence}")
