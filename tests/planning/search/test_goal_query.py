"""Goals of a plan, against every assignment of GPUs."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import data_parallel
from deeppool.planning.report.diff import diff
from deeppool.planning.request import cost_table
from deeppool.planning.search.optimality import optimality_factor
from tests.planning.search.test_efficient_plans import PROBLEMS, every_plan
from tests.planning.search.test_search import ROUNDING
from tests.sampling import examples
from tests.strategies import make_graph, profile_from_times


def one_layer(*seconds):
    """A layer without gradients that takes so many seconds at batch 16, 8, 4, ...; the same for any smaller batch."""
    times = dict(zip((16, 8, 4, 2, 1), (*seconds, *seconds[-1:] * 5), strict=False))
    return profile_from_times(make_graph([()], parameter_bytes=[0]), [lambda b: times[b]])


@pytest.mark.slow
@examples(40)
@given(PROBLEMS)
def test_no_plan_as_fast_as_data_parallelism_has_fewer_gpu_seconds_than_its_bound(problem):
    made, every = dp.plan(*problem, goal="ddp_speed"), every_plan(problem)
    allowed = max(made.comparison.fastest.seconds, dp.frontier(*problem).points[0].iteration_time) * (1 + ROUNDING)
    assert made.iteration_time <= allowed
    least = every[every[:, 0] <= allowed, 1].min()
    assert least * (1 - ROUNDING) <= made.gpu_seconds <= least * optimality_factor(made.optimality) * (1 + ROUNDING)


@examples(40)
@given(PROBLEMS, st.sampled_from([1e-5, 1e-3, 0.1]))
def test_no_plan_as_fast_as_data_parallelism_has_more_cluster_throughput_than_its_bound(problem, seconds):
    _, cluster, batch = problem
    job = profile_from_times(make_graph([()]), [lambda b: seconds * b])
    made, every = dp.plan(*problem, goal="cluster_throughput", background=job), every_plan(problem)
    assert made.background.sample_time == pytest.approx(seconds)

    def throughput(time, work):
        return batch / time + (cluster.gpus - work / time) / seconds

    allowed = max(made.comparison.fastest.seconds, dp.frontier(*problem).points[0].iteration_time) * (1 + ROUNDING)
    assert made.iteration_time <= allowed
    best = throughput(*every[every[:, 0] <= allowed].T).max()
    ours = throughput(made.iteration_time, made.gpu_seconds)
    assert ours <= best * (1 + 1e-6)
    assert best <= ours * optimality_factor(made.optimality) * (1 + 1e-6)


def test_a_layer_that_gains_nothing_from_more_gpus_gets_one():
    """10 ms on any number of GPUs: data parallelism on 4 is no faster, and spends four times as much."""
    made = dp.plan(one_layer(10e-3), 4, 16, goal="ddp_speed")
    assert (made.layers[0].gpu_count, made.iteration_time, made.optimality) == (1, pytest.approx(10e-3), "exact")
    assert "goal ddp_speed" in str(made)


def test_a_background_worth_more_than_the_foreground_slows_it_to_the_speed_of_data_parallelism():
    """10 ms on 1 GPU, 6 on 2, 6 on 4. Data parallelism takes 6 ms on 4 GPUs: two of them are free."""
    job = profile_from_times(make_graph([()]), [lambda b: 1e-5 * b])
    made = dp.plan(one_layer(10e-3, 6e-3, 6e-3), 4, 16, goal="cluster_throughput", background=job)
    assert made.layers[0].gpu_count == 2
    assert dp.plan(one_layer(10e-3, 6e-3, 6e-3), 4, 16).iteration_time == made.iteration_time


def test_of_equal_gpu_seconds_a_background_gains_by_the_slower_plan():
    """Four layers of 1 ms, two side by side: 3 ms on two GPUs, or 4 ms on one, which leaves the other one alone."""
    graph = make_graph([(), (0,), (0,), (1, 2)], parameter_bytes=[0] * 4)
    cluster = Cluster(2, "by hand", 2, Link(1e15, 0.0, "by hand"))
    job = profile_from_times(make_graph([()]), [lambda b: 1e-4 * b])
    profile = profile_from_times(graph, [lambda b: 1e-3] * 4)
    assert dp.plan(profile, cluster, 8).iteration_time == pytest.approx(3e-3)
    made = dp.plan(profile, cluster, 8, goal="cluster_throughput", background=job)
    assert (made.iteration_time, made.gpu_seconds) == (pytest.approx(4e-3), pytest.approx(4e-3))


def test_the_bound_is_that_of_the_speed_of_data_parallelism_whatever_is_known_of_slower_plans():
    """VGG-16's frontier as it runs is worst bounded far from data parallelism."""
    profile = dp.find_profile("vgg16-cpu")
    made, whole = dp.plan(profile, 8, 32, goal="ddp_speed"), dp.frontier(profile, 8, 32)
    assert optimality_factor(made.optimality) < optimality_factor(whole.optimality)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": "cheapest"}, "goal must be one of fastest, ddp_speed, cluster_throughput, got 'cheapest'"),
        ({"goal": "cluster_throughput"}, "needs the profile of a background job"),
        ({"goal": "ddp_speed", "amplification_limit": 2.0}, "goal 'ddp_speed' takes no amplification limit"),
        ({"goal": "ddp_speed", "search": "published"}, "goal 'ddp_speed' needs search='exact'"),
        ({"background": one_layer(1e-3)}, "only goal 'cluster_throughput' counts a background, got goal 'fastest'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(InvalidValueError, match=message):
        dp.plan(one_layer(10e-3), 4, 16, **options)


@pytest.mark.parametrize(("memory", "gpus"), [(16e6, 1), (15e6, 2), (4e6, 4)])
def test_where_the_best_plan_does_not_fit_the_best_one_that_does_is_found(memory, gpus):
    """10 ms on any number of GPUs, of which one holds 16 MB, two hold 8 MB each, and four 4 MB."""
    graph = make_graph([()], parameter_bytes=[0], activation_bytes=[10**6])
    profile = profile_from_times(graph, [lambda b: 10e-3])
    served = [dp.plan(profile, 4, 16, goal="ddp_speed", memory=memory)]
    served.append(dp.plan(profile, 4, 16, goal="cluster_throughput", background=profile, memory=memory))
    assert [(made.layers[0].gpu_count, made.iteration_time) for made in served] == [(gpus, 10e-3)] * 2
    assert served[0].optimality == ("exact" if gpus == 1 else f"bound {gpus}.000")


def test_where_data_parallelism_fits_on_slower_counts_alone_the_fastest_of_these_is_as_fast_as_needed():
    """8 ms on one GPU, which cannot hold it, 10 on two and 12 on four."""
    times = {16: 8e-3, 8: 10e-3, 4: 12e-3, 2: 12e-3, 1: 12e-3}
    profile = profile_from_times(make_graph([()], parameter_bytes=[0], activation_bytes=[10**6]), [times.__getitem__])
    made = dp.plan(profile, 4, 16, goal="ddp_speed", memory=15e6)
    assert (made.layers[0].gpu_count, made.iteration_time) == (2, 10e-3)
    with pytest.raises(PlanError, match=r"found to fit into 2\.9 MiB, nor does that: each GPU would hold 3\.8 MiB"):
        dp.plan(profile, 4, 16, goal="ddp_speed", memory=3e6)


def test_a_goal_is_as_fast_as_data_parallelism_in_micro_steps_where_that_is_fastest_of_what_fits():
    """One GPU lacks memory for the first layer at once, and takes 10 ms in two micro-steps; two GPUs take over 1 s.

    The second layer takes 16 ms on one GPU and 3 on two. A background gains most by 18 ms, which is too slow.
    """
    graph = make_graph([(), (0,), (1,)], None, [0, 0, 10**5], [10**6, 0, 0])
    profile = profile_from_times(graph, [lambda b: 1e-3, lambda b: 16e-3 if b == 16 else 3e-3, lambda b: 1e-3])
    cluster = Cluster(2, "by hand", 2, Link(1e5, 0.0, "by hand"), memory=12e6)
    job = profile_from_times(make_graph([()]), [lambda b: 1e-6 * b])
    made = dp.plan(profile, cluster, 16, goal="cluster_throughput", background=job)
    assert (made.comparison.fastest.gpus, made.comparison.fastest.micro_steps) == (1, 2)
    assert made.comparison.fastest.seconds == pytest.approx(10e-3)
    assert ([layer.gpu_count for layer in made.layers], made.iteration_time) == ([2, 2, 1], pytest.approx(5e-3))


@pytest.mark.slow
def test_a_plan_that_cannot_fit_at_the_speed_of_data_parallelism_is_refused():
    profile = dp.estimate("vgg16", gpu="a100-80", precision="fp16")
    with pytest.raises(PlanError, match=r"as fast as data parallelism was found to fit into 953\.7 MiB"):
        dp.plan(profile, 8, 32, goal="ddp_speed", memory=1e9)


MB = 10**6


def beside(bytes_per_sample, batches=(1, 2, 4, 8, 16)):
    """A background job that takes 1 ms a step and 0.1 ms a sample."""
    graph = make_graph([()], parameter_bytes=[0], activation_bytes=[bytes_per_sample])
    return profile_from_times(graph, [lambda b: 1e-3 + 1e-4 * b], batches)


@pytest.mark.parametrize(("memory", "batch", "full"), [(200 * MB, 16, ()), (60 * MB, 16, (0,)), (33 * MB, 8, (0,))])
def test_a_background_trains_where_it_has_room_at_the_batch_with_which_it_trains_most(memory, batch, full):
    """Layer 0 takes 4 ms / GPUs and keeps 1 MB a sample; so does layer 1, which takes 4 ms on any number of GPUs.

    At the speed of data parallelism on two GPUs, 6 ms, GPU 0 holds 8 + 16 MB and is never idle. GPU 1 holds 8 MB and is
    idle for 4 ms, in which a background of 3 MB a sample trains.
    """
    graph = make_graph([(), (0,)], parameter_bytes=[0, 0], activation_bytes=[MB, MB])
    profile = profile_from_times(graph, [lambda b: 0.25e-3 * b, lambda b: 4e-3])
    cluster = Cluster(2, "by hand", 2, Link(1e15, 0.0, "by hand"), Link(1e15, 0.0, "by hand"), memory)
    job = beside(3 * MB)
    made = dp.plan(profile, cluster, 16, goal="cluster_throughput", background=job)
    assert [layer.gpu_count for layer in made.layers] == [2, 1]
    assert (made.background.batch, made.background.memory) == (batch, 3 * MB * batch)
    assert made.background.sample_time == pytest.approx(1e-3 / batch + 1e-4)
    assert made.without_room(made.background.memory) == full
    assert any(f"GPU 0 has no room for drawn at batch {batch}" in caveat for caveat in made.caveats) == bool(full)
    replayed = dp.simulate(
        made, background_sample_time=made.background.sample_time, background_memory=made.background.memory
    )
    assert replayed.background_samples == pytest.approx(4e-3 / (1e-3 / batch + 1e-4))


def test_a_background_with_no_room_beside_the_plan_gets_whole_gpus():
    """Layer 0 takes 8 ms on one GPU and 4 on more, and keeps 16 MB in all; layer 1 takes 4 ms and keeps nothing.

    A background of 10 MB has no room beside a share of 4 MB or 8. Two GPUs are as fast as four, and leave it two.
    """
    times = {16: 8e-3, 8: 4e-3, 4: 4e-3, 2: 4e-3, 1: 4e-3}
    graph = make_graph([(), (0,)], parameter_bytes=[0, 0], activation_bytes=[MB, 0])
    profile = profile_from_times(graph, [times.__getitem__, lambda b: 4e-3])
    made = dp.plan(profile, 4, 16, goal="cluster_throughput", background=beside(10 * MB, (1,)), memory=12 * MB)
    assert (made.layers[0].gpu_count, made.iteration_time) == (2, pytest.approx(8e-3))
    assert made.without_room(made.background.memory) == (0, 1)
    replayed = dp.simulate(made, background_sample_time=1.1e-3, background_memory=10 * MB)
    assert replayed.background_samples == pytest.approx(2 * 8e-3 / 1.1e-3)
    assert "samples in it (no interference modelled), none on GPUs 0-1, without room for it" in str(replayed)
    shared = dp.share(profile, 4, 16, beside(10 * MB, (1,)), memory=12 * MB)
    assert shared.points[0].background_throughput == pytest.approx(2 / 1.1e-3)
    assert shared.optimality == "heuristic"


def test_a_background_that_fits_on_no_gpu_by_itself_is_refused():
    graph = make_graph([()], parameter_bytes=[0], activation_bytes=[MB])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b])
    message = (
        r"background drawn does not fit: at batch 4 it needs 38\.1 MiB, and a GPU has 28\.6 MiB \(profile it at sma"
    )
    for call in (
        lambda: dp.plan(profile, 2, 16, goal="cluster_throughput", background=beside(10 * MB, (4, 8)), memory=30 * MB),
        lambda: dp.share(profile, 2, 16, beside(10 * MB, (4, 8)), memory=30 * MB),
    ):
        with pytest.raises(PlanError, match=message):
            call()


@examples(40)
@given(PROBLEMS, st.data())
def test_no_data_parallelism_that_leaves_whole_gpus_trains_more_than_a_plan_beside_a_background(problem, data):
    profile, cluster, batch = problem
    kept = st.integers(0, 100)
    layers = tuple(replace(each, activation_bytes=data.draw(kept)) for each in profile.graph.layers)
    profile = replace(profile, graph=replace(profile.graph, layers=layers))
    held = memory_model(profile, batch)
    memory = float(data.draw(st.integers(held.replica(cluster.gpus), 2 * held.replica(1))))
    job = beside(data.draw(st.integers(1, 200)))
    assume(job.graph.layers[0].activation_bytes <= memory)
    made = dp.plan(profile, cluster, batch, goal="cluster_throughput", background=job, memory=memory)
    counted = made.background
    replayed = dp.simulate(made, background_sample_time=counted.sample_time, background_memory=counted.memory)
    full = {span.gpu for span in replayed.timeline.spans if span.kind == "idle"}
    assert full <= set(made.without_room(counted.memory))
    gpus = {gpu: use.total for use in made.memory for gpu in use.gpus}
    assert all(gpus[gpu] + counted.memory > memory for gpu in full)
    assert all(gpus[x.gpu] + counted.memory <= memory for x in replayed.timeline.spans if x.kind == "background")
    ours = (batch + replayed.background_samples) / made.iteration_time
    alone = min((1e-3 + 1e-4 * b) / b for b in job.batch_sizes if b * job.graph.layers[0].activation_bytes <= memory)
    for one in made.comparison.fitting:
        # In the plan's buckets; it may be faster in others.
        costs = cost_table(profile, replace(cluster, gpus=one.gpus), batch)
        everywhere = data_parallel(replace(costs, buckets=made.buckets), len(costs.gpu_counts) - 1)
        seconds = everywhere.iteration_time
        if one.micro_steps == 1 and seconds <= made.comparison.fastest.seconds:
            assert batch / seconds + (cluster.gpus - one.gpus) / alone <= ours * (1 + 1e-6)


def test_goal_and_background_are_kept_by_files_and_told_apart(tmp_path):
    job = one_layer(1e-3)
    made = dp.plan(one_layer(10e-3), 4, 16, goal="cluster_throughput", background=job)
    assert dp.load(dp.save(made, tmp_path / "plan.json")) == made
    changed = diff(dp.plan(one_layer(10e-3), 4, 16), made).request
    assert [item.name for item in changed] == ["goal", "background"]


def test_the_command_line_takes_a_goal(deeppool, tmp_path):
    file = dp.save(one_layer(10e-3), tmp_path / "profile.json")
    arguments = ["--gpus", "4", "--global-batch", "16", "--goal", "cluster_throughput", "--background", str(file)]
    code, out, _ = deeppool("plan", file, *arguments)
    assert code == 0
    assert "goal cluster_throughput" in out
