"""``dp.check``: what holds is confirmed, and every kind of edit of a plan is found."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.cli.app import run_command
from deeppool.errors import PlanError
from deeppool.planning.evaluate.baselines import DataParallelTime
from deeppool.profiling.table import Measurement
from tests.planning.test_planner import small_plan, small_profile
from tests.sampling import examples
from tests.strategies import (
    BATCH_SIZES,
    make_graph,
    make_profile,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
)

CHAINS = st.integers(1, 8).map(lambda size: make_graph([(i - 1,) if i else () for i in range(size)]))
GRAPHS = st.one_of(series_parallel_graphs(max_layers=9), tangled_graphs(max_layers=7))


@given(problems(CHAINS), st.sampled_from([None, 1.0, 1.5, 3.0]))
@examples(100)
def test_plans_of_chains_in_the_papers_model_are_decided(problem, limit):
    found = dp.check(dp.plan(*problem, limit, network_model="paper"), problem[0])
    assert found.decided
    assert found.proved_factor == pytest.approx(1.0)


@given(problems(GRAPHS), st.sampled_from([None, 1.0, 1.5, 3.0]), st.sampled_from(["layer", "iteration"]))
@examples(150)
def test_every_plan_of_the_search_passes(problem, limit, scope):
    for model in ("paper", None):
        found = dp.check(dp.plan(*problem, limit, limit_scope=scope, network_model=model), problem[0])
        assert found.lower_bound <= found.iteration_time * (1 + 1e-9)


@given(problems(GRAPHS), st.sampled_from([1.0, 1.5, 3.0]))
@examples(50)
def test_plans_of_the_published_search_pass_with_the_layers_that_they_say_are_over_the_limit(problem, limit):
    plan = dp.plan(*problem, limit, search="published", network_model="paper")
    assert dp.check(plan, problem[0]).over_limit == plan.over_limit
    if plan.over_limit:
        with pytest.raises(PlanError, match="over the limit"):
            dp.check(replace(plan, over_limit=()), problem[0])


def slower(plan):
    """Every layer on one GPU, timed rightly, with the claim of the fastest plan."""
    one = dp.plan(small_profile(), plan.cluster, plan.global_batch, 1.0, network_model="paper")
    return replace(one, amplification_limit=None, optimality="exact")


def first_layer(plan, **edits):
    """The plan with edits of its first layer."""
    return replace(plan, layers=(replace(plan.layers[0], **edits), *plan.layers[1:]))


def paper_plan(limit=None):
    return dp.plan(small_profile(), dp.Cluster(4), 16, limit, network_model="paper")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda plan: replace(plan, iteration_time=plan.iteration_time * 0.9), "iteration_time is"),
        (lambda plan: replace(plan, gpu_seconds=plan.gpu_seconds * 0.9), "gpu_seconds is"),
        (lambda plan: replace(plan, profile_fingerprint="0" * 64), "another profile"),
        (lambda plan: replace(plan, graph_fingerprint="0" * 16), "the profile is of"),
        (lambda plan: replace(plan, precision="bf16"), r"in fp32, the plan of .* in bf16"),
        (lambda plan: replace(plan, device_name="another"), "on drawn in fp32, the plan of .* on another"),
        (lambda plan: replace(plan, provenance="measured"), "provenance is 'measured' in the plan, and 'estimated' by"),
        (lambda plan: replace(plan, optimality="certain"), "optimality is 'certain'"),
        (lambda plan: replace(plan, optimality="bound x"), "optimality is 'bound x'"),
        (lambda plan: replace(plan, amplification_limit=1.0), "over the limit of 1"),
        (
            lambda plan: replace(plan, amplification_limit=1.0, limit_scope="iteration"),
            "the iteration has amplification",
        ),
        (lambda plan: replace(plan, amplification_limit=1.0, over_limit=("layer0", "layer1")), "over the limit of 1"),
        (lambda plan: replace(plan, over_limit=("layer0",)), "over_limit names layer0"),
        (slower, "but the optimum is"),
        (lambda plan: replace(plan, data_parallel_iteration_time=1.0), "data_parallel_iteration_time is 1 in the plan"),
        (
            lambda plan: replace(plan, data_parallel_on_fewer=(DataParallelTime(3, 1.0),)),
            "gpus of data_parallel_on_fewer is 3 in the plan",
        ),
        (
            lambda plan: replace(plan, data_parallel_on_fewer=plan.data_parallel_on_fewer[:1]),
            "length of data_parallel_on_fewer is 1 in the plan, and 2",
        ),
        (
            lambda plan: replace(plan, data_parallel_memory=1),
            "data parallelism on 4 GPUs needs 1 bytes of each by the plan, and None by its profile",
        ),
        (lambda plan: replace(plan, amplification=1.0), "amplification is 1 in the plan"),
        (lambda plan: replace(plan, sync_computing=0.5), "sync_computing is 0.5 in the plan"),
        (lambda plan: first_layer(plan, amplification=9.0), "amplification of layer 'layer0' is 9 in the plan"),
        (lambda plan: first_layer(plan, all_reduce=9.0), "all_reduce of layer 'layer0' is 9 in the plan"),
        (lambda plan: first_layer(plan, name="conv"), "layer 'conv' reads layers .* and is 'layer0' by its profile"),
        (lambda plan: replace(plan, layers=plan.layers[:1]), "the plan has 1 layer, its profile 2"),
    ],
)
def test_what_does_not_hold_is_named(edit, message):
    plan = paper_plan()
    assert max(layer.gpu_count for layer in plan.layers) > 1
    dp.check(plan, small_profile())
    with pytest.raises(PlanError, match=message):
        dp.check(edit(plan), small_profile())


def test_a_layer_on_other_gpus_than_its_times_say_is_named():
    plan = paper_plan()
    first = plan.layers[0]
    moved = replace(first, gpu_count=1, gpus=(0,))
    with pytest.raises(PlanError, match="by its profile"):
        dp.check(replace(plan, layers=(moved, *plan.layers[1:])), small_profile())


def test_layers_that_read_others_than_in_the_profile_are_named():
    profile = profile_from_times(make_graph([(), (0,), (1,)]), [lambda b: 1e-3 * b] * 3)
    plan = dp.plan(profile, 2, 16)
    edited = replace(plan, layers=(*plan.layers[:2], replace(plan.layers[2], predecessors=(0,))))
    with pytest.raises(PlanError, match=r"'layer2' reads layers \[0\] in the plan, and .* reads \[1\]"):
        dp.check(edited, profile)


def test_whether_all_reduces_overlap_is_compared_with_the_iteration():
    graph = make_graph([(), (0,)], [(), (4096,)], [2**26, 2**26])
    times = tuple(1e-3 * batch for batch in BATCH_SIZES)
    measured = [Measurement(f"signature{index}", times, times, (0.0,) * len(times)) for index in (0, 1)]
    profile = make_profile(graph, measured)
    plan = dp.plan(profile, 4, 16)
    dp.check(plan, profile)
    with pytest.raises(PlanError, match="iteration_time is"):
        dp.check(replace(plan, overlap_sync=False), profile)


def test_what_gpus_hold_is_compared_with_the_profile_and_with_their_memory():
    graph = make_graph([(), (0,)], parameter_bytes=[2**10, 2**26], activation_bytes=[10**6, 0])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 2)
    plan = dp.plan(profile, 4, 16)
    dp.check(plan, profile)
    emptier = replace(plan.memory[0], total=plan.memory[0].total - 1)
    for edited, message in (
        (replace(plan, memory=(emptier, *plan.memory[1:])), "memory is not what"),
        (replace(plan, optimizer="adam"), r"data parallelism on 1 GPU needs \d+ bytes of each by the plan, and \d+ by"),
        (replace(plan, cluster=replace(plan.cluster, memory=1e6)), r"GPU 0 has 976\.6 KiB, and would hold more"),
    ):
        with pytest.raises(PlanError, match=message):
            dp.check(edited, profile)


def test_a_model_that_holds_nothing_is_checked_against_the_memory_of_a_gpu():
    graph = make_graph([()], activation_bytes=[0])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b])
    dp.check(dp.plan(profile, 2, 16, memory=1e6), profile)


def test_the_command_line_prints_the_check_and_exits_with_1(capsys, monkeypatch, tmp_path):
    plan, profile = tmp_path / "plan.json", tmp_path / "profile.json"
    dp.save(small_plan(), plan)
    dp.save(small_profile(), profile)

    def command(*options):
        monkeypatch.setattr("sys.argv", ["deeppool", "check", str(plan), str(profile), *options])
        with pytest.raises(SystemExit) as end:
            run_command()
        return end.value.code, capsys.readouterr()

    code, printed = command()
    assert code == 0
    assert "no plan is faster than" in printed.out
    assert json.loads(command("--json")[1].out)["proved_factor"] >= 1
    dp.save(replace(small_plan(), amplification_limit=1.0), plan)
    code, printed = command()
    assert code == 1
    assert "over the limit of 1" in printed.err
