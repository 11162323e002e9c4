"""Goals of a plan, against every assignment of GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.report.diff import diff
from deeppool.planning.search.optimality import optimality_factor
from tests.planning.search.test_efficient_plans import PROBLEMS, every_plan
from tests.planning.search.test_search import ROUNDING
from tests.sampling import examples
from tests.strategies import make_graph, profile_from_times


def one_layer(*seconds):
    """A layer without gradients that takes so many seconds at batch 16, 8, 4, ...; the same for any smaller batch."""
    times = dict(zip((16, 8, 4, 2, 1), (*seconds, *seconds[-1:] * 5), strict=False))
    return profile_from_times(make_graph([()], parameter_bytes=[0]), [lambda b: times[b]])


@examples(40)
@given(PROBLEMS)
def test_no_plan_as_fast_as_data_parallelism_has_fewer_gpu_seconds_than_its_bound(problem):
    made, every = dp.plan(*problem, goal="ddp_speed"), every_plan(problem)
    allowed = max(made.comparison.fastest.seconds, dp.plan(*problem).iteration_time) * (1 + ROUNDING)
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

    allowed = max(made.comparison.fastest.seconds, dp.plan(*problem).iteration_time) * (1 + ROUNDING)
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


def test_a_plan_that_cannot_fit_at_the_speed_of_data_parallelism_is_refused():
    profile = dp.estimate("vgg16", gpu="a100-80", precision="fp16")
    with pytest.raises(PlanError, match=r"as fast as data parallelism was found to fit into 953\.7 MiB"):
        dp.plan(profile, 8, 32, goal="ddp_speed", memory=1e9)


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
