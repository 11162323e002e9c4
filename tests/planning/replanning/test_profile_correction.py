"""A profile corrected by live times, against what the run measured."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError, PlanError
from deeppool.execution.stages import stages_of
from deeppool.planning.replanning.profile_correction import correct_profile
from deeppool.records.run_record import StageTimes
from tests.figures.records import run_of
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import (
    BATCH_SIZES,
    make_graph,
    make_profile,
    measured_network,
    problems,
    profile_from_times,
    repeating_profiles,
)

FREE = Link(1e15, 0.0, "made by hand")


def run_with(made, factor=lambda stage: (1.0, 1.0), **fields):
    """A run of a plan: per stage its planned forward and backward times, each times a factor."""
    stages = []
    for index, stage in enumerate(stages_of(made)):
        layers = [made.layers[layer] for layer in stage.layers]
        forward, backward = (
            ratio * sum(getattr(layer, way) for layer in layers)
            for ratio, way in zip(factor(index), ("forward", "backward"), strict=True)
        )
        stages.append(StageTimes(stage.name, stage.layout.gpus, len(layers), forward, backward, 0.1, 0.2, 0.3))
    measured = {"model": made.model, "global_batch": made.global_batch, "ranks": made.gpus, "cores": made.gpus}
    return dataclasses.replace(run_of(), **(measured | {"stages": tuple(stages)} | fields))


def two_stages():
    """A profile and a plan of it: layers 0 and 1 on four GPUs, layer 2, which repeats layer 0, on one.

    A layer computes 1 ms forward and 2 ms backward per sample, and 16 samples are split.
    """
    graph = make_graph([(), (0,), (1,)])
    layers = (*graph.layers[:2], dataclasses.replace(graph.layers[2], signature="signature0"))
    times = profile_from_times(graph, [lambda b: 1e-3 * b] * 2 + [lambda b: 1.0]).measurements[:2]
    measurements = [dataclasses.replace(x, backward=tuple(2 * t for t in x.forward)) for x in times]
    profile = make_profile(dataclasses.replace(graph, layers=layers), measurements)
    made = plan(profile, Cluster(4, "free", 4, FREE, FREE), 16)
    last = dataclasses.replace(made.layers[2], gpus=(0,), gpu_count=1, forward=16e-3, backward=32e-3, time=48e-3)
    return profile, dataclasses.replace(made, layers=(*made.layers[:2], last))


def times_of(profile, signature):
    (found,) = [x for x in profile.measurements if x.signature == signature]
    return found.forward, found.backward


@examples(60)
@given(problems(made_of=repeating_profiles))
def test_a_run_as_planned_leaves_the_profile_unchanged(problem):
    made = plan(*problem)
    corrected = correct_profile(problem[0], made, run_with(made))
    assert corrected.profile is problem[0]
    assert (corrected.corrections, corrected.layers) == ((), ())


def test_what_all_reduces_add_to_a_backward_is_not_computing():
    """Layer 1 has a 12 ms all-reduce, of which a core computes half, beside the 8 ms backward of layer 0: 14 ms."""
    profile, made = two_stages()
    first, second, _ = made.layers
    layers = (first, dataclasses.replace(second, all_reduce=12e-3, time=second.time), made.layers[2])
    made = dataclasses.replace(made, layers=layers, overlap_sync=True, sync_computing=0.5)
    # Both layers of the first stage: 16 ms by themselves.
    corrected = correct_profile(
        profile, made, run_with(made, lambda stage: (1.0, (16 + 6) / 16 if stage == 0 else 1.0))
    )
    assert corrected.profile is profile


def test_copies_of_gradients_into_buckets_are_not_computing():
    """20 samples on two GPUs, 10 ms forward and 20 ms backward a layer; 1 MB is copied in 5 ms, 100 MB in no bucket."""
    graph = make_graph([(), (0,), (1,)], None, [10**6, 10**8, 10**6])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 3)
    doubled = tuple(dataclasses.replace(x, backward=tuple(2 * t for t in x.forward)) for x in profile.measurements)
    profile = dataclasses.replace(profile, measurements=doubled)
    network = measured_network({2: (1e-6, 2e-6, 3e-6)})
    network = dataclasses.replace(network, copy_seconds_per_byte=5e-9)
    made = plan(profile, Cluster(2, "copies", 2, FREE, FREE, measured=network), 20, overlap_sync=True)
    assert [layer.gpu_count for layer in made.layers] == [2, 2, 2]
    assert [layer.backward for layer in made.layers] == pytest.approx([25e-3, 20e-3, 25e-3])
    assert correct_profile(profile, made, run_with(made)).profile is profile
    slower = correct_profile(profile, made, run_with(made, lambda stage: (1.0, 1.1)))
    assert [one.backward_ratio for one in slower.corrections] == pytest.approx([1.1])


@examples(100)
@given(st.data(), problems(), st.integers(1, 64))
def test_a_stage_that_took_twice_as_long_doubles_the_times_of_its_layers_and_of_no_others(data, problem, batch):
    profile = problem[0]
    made = plan(*problem, data.draw(st.sampled_from([None, 1.5, 2.0])))
    stages = stages_of(made)
    slow = data.draw(st.integers(0, len(stages) - 1))
    corrected = correct_profile(
        profile, made, run_with(made, lambda index: (2.0, 2.0) if index == slow else (1.0, 1.0))
    )
    assert corrected.layers == tuple(sorted(stages[slow].layers))
    for index in range(len(made.layers)):
        old, new = profile.time(index, batch), corrected.profile.time(index, batch)
        factor = 2 if index in stages[slow].layers else 1
        assert new.forward == pytest.approx(factor * old.forward, rel=1e-12)
        assert new.backward == pytest.approx(factor * old.backward, rel=1e-12)
        assert factor == 2 or new == old
    (correction,) = corrected.corrections
    assert correction.measured == pytest.approx(2 * correction.profiled)
    assert correction.layers == tuple(made.layers[index].name for index in stages[slow].layers)


@examples(100)
@given(st.data(), problems())
def test_a_layer_with_a_live_time_gets_it_at_the_batch_that_ran(data, problem):
    profile, _, batch = problem
    made = plan(*problem)
    seconds = st.floats(1e-6, 1)
    live = data.draw(st.dictionaries(st.sampled_from([x.name for x in made.layers]), st.tuples(seconds, seconds)))
    corrected = correct_profile(profile, made, live, noise=0)
    for index, layer in enumerate(made.layers):
        ran = math.ceil(batch / layer.gpu_count)
        found = corrected.profile.time(index, ran)
        if layer.name not in live:
            assert found == profile.time(index, ran)
        elif layer.backward:
            assert (found.forward, found.backward) == pytest.approx(live[layer.name], rel=1e-9)
        else:
            # Nothing to scale in backward: the layer's time is right as a whole.
            assert found.total == pytest.approx(sum(live[layer.name]), rel=1e-9)


def test_forward_and_backward_are_corrected_apart():
    profile, made = two_stages()
    corrected = correct_profile(profile, made, run_with(made, lambda index: (3.0, 0.5) if index == 0 else (1.0, 1.0)))
    forward, backward = times_of(corrected.profile, "signature1")
    assert forward == pytest.approx([3e-3 * b for b in BATCH_SIZES])
    assert backward == pytest.approx([1e-3 * b for b in BATCH_SIZES])
    (correction,) = corrected.corrections
    assert (correction.name, correction.batch) == ("layer0 … layer1", 4)
    assert (correction.forward_ratio, correction.backward_ratio) == pytest.approx((3.0, 0.5))
    # Two layers of 4 samples: 2 x 4 x (1 + 2) ms by the profile, 2 x 4 x (3 + 1) ms live.
    assert (correction.profiled, correction.measured) == pytest.approx((24e-3, 32e-3))


def test_between_two_batches_that_ran_the_ratio_is_interpolated_and_beyond_them_kept():
    profile, made = two_stages()
    # Layers 0 and 2 are equal: twice as long at batch 16, as planned at batch 4.
    corrected = correct_profile(profile, made, run_with(made, lambda index: (1.0, 1.0) if index == 0 else (2.0, 2.0)))
    forward, backward = times_of(corrected.profile, "signature0")
    ratios = [1, 1, 1, 1 + 4 / 12, 2]
    assert forward == pytest.approx([r * 1e-3 * b for r, b in zip(ratios, BATCH_SIZES, strict=True)])
    assert backward == pytest.approx([r * 2e-3 * b for r, b in zip(ratios, BATCH_SIZES, strict=True)])
    assert corrected.profile.time(0, 4) == profile.time(0, 4)
    assert corrected.layers == (0, 2)
    assert times_of(corrected.profile, "signature1") == times_of(profile, "signature1")


def test_equal_layers_at_one_batch_get_the_mean_of_their_ratios():
    graph = make_graph([(), (0,), (1,)])
    same = tuple(dataclasses.replace(layer, signature="signature0") for layer in graph.layers)
    times = profile_from_times(graph, [lambda b: 1e-3 * b] * 3).measurements[:1]
    profile = make_profile(dataclasses.replace(graph, layers=same), times)
    made = plan(profile, Cluster(1), 4)
    corrected = correct_profile(profile, made, {"layer0": (8e-3, 0.0), "layer1": (4e-3, 0.0)})
    # 2 and 1; the third layer was not measured, and follows those it is equal to.
    assert corrected.profile.time(2, 4).forward == pytest.approx(1.5 * 4e-3)
    assert corrected.layers == (0, 1, 2)
    assert [x.layers for x in corrected.corrections] == [("layer0",)]


@pytest.mark.parametrize(("noise", "corrections"), [(0.03, 0), (0.019, 1), (0.0, 1)])
def test_a_difference_within_the_noise_is_not_a_correction(noise, corrections):
    profile, made = two_stages()
    run = run_with(made, lambda index: (1.02, 1.02) if index == 0 else (1.0, 1.0))
    corrected = correct_profile(profile, made, run, noise=noise)
    assert len(corrected.corrections) == corrections
    assert (corrected.profile is profile) == (corrections == 0)


def test_the_corrected_profile_records_the_run_and_the_size_of_its_corrections():
    profile, made = two_stages()
    corrected = correct_profile(
        profile, made, run_with(made, lambda index: (3.0, 0.5) if index == 0 else (1.0, 1.0))
    ).profile
    assert corrected.method == (
        f"{profile.method}; corrected by a run of 2026-11-21T05:00:00 on 4 ranks of Test CPU, beside mobilenet_v2 at "
        "SCHED_IDLE: layer0 … layer1 at batch 4 forward x3, backward x0.5"
    )
    assert corrected.provenance == profile.provenance == "estimated"
    assert corrected.fingerprint != profile.fingerprint
    assert (
        "corrected by measured times of 1 layer: layer2 at batch 16"
        in correct_profile(profile, made, {"layer2": (1.0, 1.0)}).profile.method
    )


def test_stages_are_found_among_branches_that_run_side_by_side():
    """Layers 1 and 3 on GPU 1 and layer 2 on GPU 2 take turns in the graph's order; a run reports two stages."""
    profile = profile_from_times(make_graph([(), (0,), (0,), (1,), (2, 3)]), [lambda b: 1e-3 * b] * 5)
    made = plan(profile, Cluster(1), 4)
    sets = [(0, 1, 2), (1,), (2,), (1,), (0, 1, 2)]
    layers = [
        dataclasses.replace(layer, gpus=gpus, gpu_count=len(gpus))
        for layer, gpus in zip(made.layers, sets, strict=True)
    ]
    made = dataclasses.replace(made, gpus=3, layers=tuple(layers))
    stages = [
        StageTimes(name, gpus, count, seconds, 0.0, 0.0, 0.0, 0.0)
        for name, gpus, count, seconds in [
            ("layer0", (0, 1, 2), 1, 2e-3),
            ("layer1 … layer3", (1,), 2, 16e-3),
            ("layer2", (2,), 1, 4e-3),
            ("layer4", (0, 1, 2), 1, 2e-3),
        ]
    ]
    corrected = correct_profile(profile, made, run_with(made, stages=tuple(stages)))
    assert corrected.layers == (1, 3)
    assert [x.name for x in corrected.corrections] == ["layer1 … layer3"]


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "phrase"),
    [
        ({"model": "other"}, "the run is of other, batch 16 on 4 ranks, the plan of drawn, batch 16 on 4 GPUs"),
        ({"global_batch": 8}, r"the run is of drawn, batch 8 on 4 ranks, .* \(give the plan that was run\)"),
        ({"ranks": 2}, "batch 16 on 2 ranks"),
        ({"cores": 2}, r"the run's 4 ranks shared 2 cores, so its times are not those of 4 GPUs"),
        ({"stages": ()}, "the run measured 0 of the plan's 3 layers, not 'layer0'"),
    ],
)
def test_a_run_of_another_plan_is_rejected(fields, phrase):
    profile, made = two_stages()
    with pytest.raises(PlanError, match=phrase):
        correct_profile(profile, made, run_with(made, **fields))


@pytest.mark.parametrize("fields", [{"gpus": (0, 1)}, {"layers": 1}, {"layers": 3}, {"name": "layer1 … layer2"}])
def test_a_stage_missing_from_the_plan_is_named(fields):
    profile, made = two_stages()
    first, second = run_with(made).stages
    wrong = dataclasses.replace(first, **fields)
    with pytest.raises(
        PlanError, match=r"the run has a stage 'layer\d … layer\d' of \d layers on GPUs \[0, 1.*has not"
    ):
        correct_profile(profile, made, run_with(made, stages=(wrong, second)))


@pytest.mark.parametrize("fields", [{"graph_fingerprint": "x"}, {"device_name": "Other"}, {"precision": "bf16"}])
def test_a_profile_of_another_plan_is_rejected(fields):
    profile, made = two_stages()
    with pytest.raises(PlanError, match=r"the profile is of drawn .* \(give the profile that the plan was made of\)"):
        correct_profile(profile, dataclasses.replace(made, **fields), {})


@pytest.mark.parametrize("times", [(-1.0, 2.0), (0.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
def test_an_invalid_time_is_rejected(times):
    profile, made = two_stages()
    with pytest.raises(InvalidValueError, match="layer 'layer1' has measured times of"):
        correct_profile(profile, made, {"layer1": times})


@pytest.mark.parametrize("times", [(1e-3,), (1e-3, 1e-3, 0.0)])
def test_times_other_than_of_two_passes_are_refused(times):
    profile, made = two_stages()
    with pytest.raises(
        InvalidValueError, match=f"layer 'layer1' has {len(times)} measured times, expected forward and"
    ):
        correct_profile(profile, made, {"layer1": times})


def test_an_unknown_layer_is_rejected():
    profile, made = two_stages()
    with pytest.raises(InvalidValueError, match="no layer 'conv' in the plan of drawn: it has 3, the first is 'la"):
        correct_profile(profile, made, {"conv": (1.0, 1.0)})


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_noise_is_a_share(noise):
    profile, made = two_stages()
    with pytest.raises(InvalidValueError, match="noise must be at least 0"):
        correct_profile(profile, made, {}, noise=noise)


def test_a_corrected_profile_can_be_corrected_again():
    """Ratios are against the profile at hand: what ran as corrected changes nothing the second time."""
    profile, made = two_stages()
    live = {"layer1": (12e-3, 8e-3)}
    once = correct_profile(profile, made, live).profile
    assert correct_profile(once, made, live).profile is once
    assert np.allclose(times_of(once, "signature1")[0], [3e-3 * b for b in BATCH_SIZES])
