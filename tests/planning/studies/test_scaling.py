"""Scaling studies against closed forms, brute force and the planner itself."""

import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from benchmarks.planner.a100 import FOLDER_VARIABLE
from benchmarks.planner.a100_profiles import read_profile
from deeppool.base import serialization
from deeppool.costs.amplification import TOLERANCE
from deeppool.errors import InvalidValueError, MissingStepsError
from deeppool.planning.search.optimality import optimality_factor
from deeppool.planning.studies.scaling import BANDWIDTHS, GPU_COUNTS, full_bisection, scaling
from deeppool.planning.studies.scaling_record import PARALLELISMS, STRATEGIES, ScalingStudy
from deeppool.planning.studies.steps_to_accuracy import NAMED, CriticalBatch, FixedSamples, StepsTable
from deeppool.profiling.table import Profile
from deeppool.units import format_bit_rate
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import make_graph, profile_from_times, profiles

SLOW, FAST = 1e9, 1e12
COUNTS = (1, 2, 4, 8)
EXAMPLE = CriticalBatch("example", "made up", least_steps=1000, critical_batch=64)
FLAT = CriticalBatch("flat", "made up", least_steps=1000, critical_batch=0)
PERFECT = FixedSamples("perfect", "made up", samples=2**20, largest_batch=2**20)


def linear_profile(batch_sizes=(1, 2, 4, 8, 16)):
    """One layer of 1 ms a sample, without fixed cost and without parameters: nothing stands against scaling."""
    return profile_from_times(make_graph([()]), [lambda batch: 1e-3 * batch], batch_sizes)


def uneven_profile(batch_sizes=(1, 2, 4, 8, 16)):
    """A convolution that splits well, then a classifier of 64 MiB that hardly does."""
    graph = make_graph([(), (0,)], [(), (4096,)], [2**10, 2**26])
    return profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 2e-3 + 1e-5 * b], batch_sizes)


def small_study(profile, steps=EXAMPLE, **more):
    return scaling(
        profile,
        steps,
        **{"gpu_counts": COUNTS, "bandwidths": (SLOW, FAST), "global_batch": 16, "network_model": "paper", **more},
    )


def times(study, strategy, parallelism="data-parallel", bandwidth=FAST):
    return {point.gpus: point.time_to_accuracy for point in study.line(strategy, parallelism, bandwidth)}


# -- closed forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_what_splits_for_free_scales_strongly_without_loss(parallelism):
    """16 samples of 1 ms on g GPUs take 16 / g ms, whatever the network."""
    found = times(small_study(linear_profile()), "strong", parallelism, SLOW)
    steps = EXAMPLE.steps(16)
    assert found == pytest.approx({g: steps * 0.016 / g for g in COUNTS})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_where_steps_scale_perfectly_too_every_strategy_is_linear(strategy, parallelism):
    """2^20 samples of 1 ms on g GPUs, whatever the batch."""
    study = small_study(linear_profile(), PERFECT)
    assert times(study, strategy, parallelism) == pytest.approx({g: 2**20 * 1e-3 / g for g in COUNTS})
    assert [x.speedup for x in study.line(strategy, parallelism, FAST)] == pytest.approx(COUNTS)


def test_where_a_larger_batch_saves_no_step_weak_scaling_gains_nothing():
    """Steps and per-GPU batch stay the same; strong scaling still gains, and the best batch is a sample a GPU."""
    study = small_study(linear_profile(), FLAT)
    assert times(study, "weak") == pytest.approx(dict.fromkeys(COUNTS, 1000 * 0.016))
    assert times(study, "strong") == pytest.approx({g: 1000 * 0.016 / g for g in COUNTS})
    assert {x.per_gpu_batch for x in study.line("batch-optimal", "data-parallel", FAST)} == {1}


def test_batch_optimal_scaling_takes_the_analytic_square_root():
    """A step of 4 + 1 b ms at per-GPU batch b, and steps of 1000 (1 + 256 / (g b)).

    d/db (1 + 256 / (g b)) (4 + b) = 0 at b = sqrt(4 x 256 / g): 32 on one GPU, 16 on 4, 8 on 16.
    """
    graph = make_graph([()])
    profile = profile_from_times(graph, [lambda b: 4e-3 + 1e-3 * b], (1, 2, 4, 64))
    steps = CriticalBatch("model", "made up", 1000, 256)
    study = scaling(profile, steps, gpu_counts=(1, 4, 16), bandwidths=(FAST,), global_batch=64)
    assert [x.per_gpu_batch for x in study.line("batch-optimal", "data-parallel", FAST)] == [32, 16, 8]
    assert study.single_gpu_batch == 32
    assert study.single_gpu_time == pytest.approx(1000 * (1 + 256 / 32) * 0.036)


def test_speedups_are_over_the_best_that_one_gpu_can_do():
    study = small_study(uneven_profile())
    alone = study.line("batch-optimal", "data-parallel", SLOW)[0]
    assert (alone.gpus, alone.global_batch, alone.speedup) == (1, study.single_gpu_batch, 1.0)
    assert all(x.speedup * x.time_to_accuracy == pytest.approx(study.single_gpu_time) for x in study.points)
    assert max(x.speedup for x in study.points if x.gpus == 1) == 1.0


# -- against the planner ----------------------------------------------------------------------------


@pytest.mark.slow
@examples(25)
@given(profiles(), st.sampled_from([None, 1.0, 2.0]))
def test_every_point_of_the_papers_model_is_the_plan_of_its_batch(profile, limit):
    study = small_study(profile, amplification_limit=limit)
    assert len(study.points) + len(study.missing) == len(STRATEGIES) * len(PARALLELISMS) * 2 * len(COUNTS)
    for point in study.points:
        cluster = full_bisection(point.gpus, point.bandwidth)
        own = plan(profile, cluster, point.global_batch, limit, network_model="paper")
        burst = point.parallelism == "burst-parallel"
        iteration = own.iteration_time if burst else own.data_parallel_iteration_time
        held = own.gpu_seconds if burst else point.gpus * own.data_parallel_iteration_time
        steps = EXAMPLE.steps(point.global_batch)
        assert point.steps == steps
        assert point.iteration_time == pytest.approx(iteration)
        assert point.time_to_accuracy == pytest.approx(steps * iteration)
        assert point.gpu_seconds == pytest.approx(steps * held)
        assert point.per_gpu_batch == -(-point.global_batch // point.gpus)
        assert point.optimality == (own.optimality if burst else "exact")


@pytest.mark.slow
@examples(10)
@given(profiles(), st.sampled_from(["ring", "best"]), st.sampled_from([None, 1.5]))
def test_points_as_they_run_are_between_ddp_and_the_best_plan(profile, network_model, limit):
    """The planner searches with overlap, and says by which factor it may miss the best plan."""
    profile = replace(profile, update_per_byte=1e-11)
    study = small_study(profile, network_model=network_model, amplification_limit=limit, gpu_counts=(1, 3, 4))
    for point in study.points:
        cluster = full_bisection(point.gpus, point.bandwidth)
        own = dp.plan(profile, cluster, point.global_batch, limit, network_model=network_model)
        if point.parallelism == "data-parallel":
            assert point.iteration_time == pytest.approx(own.data_parallel_iteration_time)
            continue
        assert point.optimality == "heuristic"
        ddp = own.comparison.fastest.seconds
        assert point.iteration_time <= ddp * (1 + TOLERANCE) or limit
        least = min(ddp, own.iteration_time / optimality_factor(own.optimality))
        assert point.iteration_time >= least * (1 - 1e-9)


def test_all_reduces_that_the_backward_pass_hides_cost_nothing_as_it_runs():
    """Four layers of 10 ms send 8 MiB each, 4.2 ms on 4 GB/s; in the paper's model everything waits for each."""
    graph = make_graph([(), (0,), (1,), (2,)], parameter_bytes=[2**23] * 4)
    profile = profile_from_times(graph, [lambda batch: 5e-3] * 4)
    profile = replace(profile, measurements=tuple(replace(x, backward=x.forward) for x in profile.measurements))
    for network_model, exposed in (("ring", 2**23 / 4e9), ("paper", 4 * 2**23 / 4e9)):
        made = small_study(profile, network_model=network_model, gpu_counts=(2,), bandwidths=(4e9,), latency=0.0)
        (point,) = made.line("strong", "data-parallel", 4e9)
        assert point.iteration_time == pytest.approx(40e-3 + exposed)
    assert "they overlap the backward pass" in small_study(profile, network_model="ring", gpu_counts=(2,)).table()
    assert "nothing overlaps them" in small_study(profile, gpu_counts=(2,)).table()


@pytest.mark.parametrize("limit", [None, 1.0])
def test_memory_is_no_limit(limit):
    """A layer that keeps a terabyte: more than any GPU of a named cluster has."""
    profile = linear_profile()
    layers = tuple(replace(layer, activation_bytes=10**12) for layer in profile.graph.layers)
    large = replace(profile, graph=replace(profile.graph, layers=layers))
    study = small_study(large, amplification_limit=limit)
    assert not study.missing
    assert [(x.iteration_time, x.optimality) for x in study.points] == [
        (x.iteration_time, x.optimality) for x in small_study(profile, amplification_limit=limit).points
    ]


@pytest.mark.slow
@examples(25)
@given(profiles(), st.sampled_from([3, 4]), st.sampled_from([SLOW, FAST]))
def test_no_global_batch_beats_batch_optimal_data_parallel_scaling(profile, gpus, bandwidth):
    """Brute force over every batch from a sample per GPU to the profile's largest on each."""
    study = small_study(profile, gpu_counts=(gpus,), bandwidths=(bandwidth,))
    (best,) = study.line("batch-optimal", "data-parallel", bandwidth)
    cluster = full_bisection(gpus, bandwidth)
    batches = range(gpus, 16 * gpus + 1)
    every = [
        EXAMPLE.steps(b) * plan(profile, cluster, b, network_model="paper").data_parallel_iteration_time
        for b in batches
    ]
    assert best.time_to_accuracy == pytest.approx(min(every))


def test_batch_optimal_scaling_goes_up_to_the_profiles_largest_batch():
    """With a fixed cost and perfect scaling of the steps, larger batches are always better."""
    profile = profile_from_times(make_graph([()]), [lambda b: 4e-3 + 1e-3 * b])
    study = small_study(profile, PERFECT, global_batch=8, per_gpu_batch=4)
    for parallelism in PARALLELISMS:
        assert {x.per_gpu_batch for x in study.line("batch-optimal", parallelism, FAST)} == {16}


def test_a_study_of_a_million_samples_tries_thousands_of_batches_and_is_within_their_distance():
    """The best batch is known in closed form, and is no power of two."""

    class Counted:
        name, source, tried = "square root", "made up", 0

        def steps(self, batch: int) -> int:
            Counted.tried += 1
            return math.ceil(10**12 / batch) + 10**6

    profile = profile_from_times(make_graph([()]), [lambda b: 0.123e-3 + 1e-9 * b], (1, 2))
    study = small_study(profile, Counted(), gpu_counts=(1,), bandwidths=(FAST,), global_batch=10**6)
    (best,) = study.line("batch-optimal", "data-parallel", FAST)
    optimum = math.sqrt(10**12 / 10**6 * 0.123e-3 / 1e-9)
    assert best.time_to_accuracy == pytest.approx((10**12 / optimum + 10**6) * (0.123e-3 + 1e-9 * optimum), rel=1e-6)
    assert best.global_batch == pytest.approx(optimum, rel=1e-3)
    assert Counted.tried < 100_000


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_batch_optimal_scaling_tries_the_batch_of_strong_scaling_too(parallelism):
    """On 3 GPUs 16 samples are no multiple; a table that ends at 16 with a tenth of the steps makes them the best."""
    table = StepsTable("mine", "trained", ((3, 2000), (15, 1000), (16, 100)))
    study = small_study(linear_profile(), table, gpu_counts=(3,))
    (best,) = study.line("batch-optimal", parallelism, FAST)
    assert (best.global_batch, best.per_gpu_batch) == (16, 6)


@examples(25)
@given(profiles(), st.sampled_from([None, 1.5]))
def test_batch_optimal_is_never_worse_than_weak_or_strong(profile, limit):
    study = small_study(profile, amplification_limit=limit, gpu_counts=(1, 3, 8))
    for parallelism in PARALLELISMS:
        for bandwidth in (SLOW, FAST):
            best = times(study, "batch-optimal", parallelism, bandwidth)
            for strategy in ("weak", "strong"):
                for gpus, seconds in times(study, strategy, parallelism, bandwidth).items():
                    assert best[gpus] <= seconds * (1 + TOLERANCE)


@examples(25)
@given(profiles())
def test_burst_parallelism_is_never_slower_without_a_limit_and_a_faster_network_never_is(profile):
    study = small_study(profile)
    for strategy in STRATEGIES:
        for bandwidth in (SLOW, FAST):
            data = times(study, strategy, "data-parallel", bandwidth)
            burst = times(study, strategy, "burst-parallel", bandwidth)
            assert all(burst[gpus] <= data[gpus] * (1 + TOLERANCE) for gpus in COUNTS)
        for parallelism in PARALLELISMS:
            slow, fast = (times(study, strategy, parallelism, speed) for speed in (SLOW, FAST))
            assert all(fast[gpus] <= slow[gpus] * (1 + TOLERANCE) for gpus in COUNTS)


def test_bursting_what_splits_well_alone_beats_data_parallelism_where_the_network_is_slow():
    """On 1 GB/s the 64 MiB of the classifier take 0.1 s to all-reduce; on one GPU it takes 2 ms."""
    study = small_study(uneven_profile())
    data, burst = (times(study, "strong", parallelism, SLOW)[8] for parallelism in PARALLELISMS)
    assert burst < data / 5


def test_a_limit_on_the_amplification_binds_the_burst_parallel_points_alone():
    free, bound = (small_study(uneven_profile(), amplification_limit=limit) for limit in (None, 1.0))
    for strategy in ("weak", "strong"):
        assert times(free, strategy) == times(bound, strategy)
    assert times(bound, "strong", "burst-parallel")[8] > times(free, "strong", "burst-parallel")[8]
    held, alone = (study.line("strong", "burst-parallel", FAST)[-1].gpu_seconds for study in (bound, free))
    assert held < alone


# -- what is missing, what is extrapolated ----------------------------------------------------------


def test_below_the_profiles_smallest_batch_a_point_is_missing_with_the_reason():
    study = small_study(linear_profile((4, 8)))
    assert set(times(study, "strong")) == {1, 2, 4}
    assert set(times(study, "weak")) == set(times(study, "batch-optimal")) == set(COUNTS)
    reasons = {x.reason for x in study.missing}
    assert {(x.strategy, x.gpus) for x in study.missing} == {("strong", 8)}
    assert len(study.missing) == len(PARALLELISMS) * 2
    assert len(reasons) == 1
    assert "at per-GPU batch 2: the profile of drawn has 4, 8" in reasons.pop()


def test_more_gpus_than_samples_are_a_missing_point():
    study = small_study(linear_profile(), global_batch=4, per_gpu_batch=16)
    assert set(times(study, "strong")) == set(times(study, "strong", "burst-parallel")) == {1, 2, 4}
    assert "8 GPUs cannot share a global batch of 4: each needs a sample" in study.missing[0].reason


def test_a_batch_without_known_steps_is_a_missing_point_and_is_not_chosen():
    """A table up to 32 samples: weak scaling ends at 2 GPUs, and batch-optimal scaling stays within it."""
    table = StepsTable("mine", "trained", ((4, 800), (32, 100)))
    study = small_study(linear_profile(), table)
    assert set(times(study, "weak")) == {1, 2}
    assert max(x.global_batch for x in study.points) == 32
    assert set(times(study, "batch-optimal")) == set(COUNTS)
    assert {"mine has 4 to 32" in x.reason for x in study.missing} == {True}


def test_without_a_known_batch_batch_optimal_scaling_gives_reasons_for_the_smallest_and_largest():
    """On 8 GPUs the profile needs 32 samples at least, and the table ends at 16."""
    study = small_study(linear_profile((4, 8, 16)), StepsTable("mine", "trained", ((8, 800), (16, 100))))
    (why,) = {x.reason for x in study.missing if (x.strategy, x.gpus) == ("batch-optimal", 8)}
    assert why.startswith("no global batch on 8 GPUs has both layer times and steps; the smallest: ")
    assert "mine has 8 to 16" in why


def test_a_study_without_a_batch_for_one_gpu_has_no_speedup():
    table = StepsTable("mine", "trained", ((1000, 800), (2000, 400)))
    with pytest.raises(MissingStepsError, match="no global batch on 1 GPU has both layer times and steps"):
        small_study(linear_profile(), table)


def test_points_above_the_profiles_largest_batch_are_marked():
    """The profile ends at 8: weak scaling at 16 leans on more, strong scaling of 16 does on one GPU only."""
    study = small_study(linear_profile((1, 2, 4, 8)))
    far = {
        strategy: [x.gpus for x in study.line(strategy, "data-parallel", FAST) if x.extrapolated]
        for strategy in STRATEGIES
    }
    assert (far["weak"], far["strong"]) == (list(COUNTS), [1])


def test_a_burst_parallel_point_is_marked_for_a_layer_on_few_gpus_and_for_a_limit():
    """Strong scaling of 16 on 8 GPUs: the classifier stays on one GPU, with 16 samples where the profile ends at 8."""
    profile = uneven_profile((1, 2, 4, 8))
    data, burst = (small_study(profile).line("strong", x, SLOW)[-1].extrapolated for x in PARALLELISMS)
    assert (data, burst) == (False, True)
    every = small_study(linear_profile((1, 2, 4, 8))).line("strong", "burst-parallel", FAST)[-1]
    limited = small_study(linear_profile((1, 2, 4, 8)), amplification_limit=2.0)
    assert (every.extrapolated, limited.line("strong", "burst-parallel", FAST)[-1].extrapolated) == (False, True)


# -- the record -------------------------------------------------------------------------------------


def test_a_study_comes_back_from_its_file(tmp_path):
    study = small_study(linear_profile((4, 8)))
    assert serialization.read(serialization.write(study, tmp_path / "study.json"), ScalingStudy) == study


def test_the_table_shows_the_soonest_point_of_every_line_and_where_numbers_come_from():
    profile = uneven_profile((4, 8))
    study = small_study(profile)
    text = study.table()
    assert text.startswith(str(study).split(":")[0])
    rows = [line.split()[2:7] for line in text.splitlines() if "-parallel " in line and line.startswith(" ")]
    lines = [study.line(x, y, speed) for speed in study.bandwidths for x in STRATEGIES for y in PARALLELISMS]
    soonest = [min(line, key=lambda point: point.time_to_accuracy) for line in lines]
    # Data parallelism on more GPUs is slower.
    assert study.line("strong", "data-parallel", SLOW)[-1] not in soonest
    assert rows == [
        [x.strategy, x.parallelism, str(x.gpus), str(x.global_batch), f"{x.per_gpu_batch}{'*' * x.extrapolated}"]
        for x in soonest
    ]
    assert "Steps: example (made up)." in text
    assert f"one GPU at its best batch, {study.single_gpu_batch}" in text
    assert "* uses layer times above the profile's largest batch, 8." in text
    assert "4 of 48 points are missing, the first one strong data-parallel on 8 GPUs" in text


def test_a_study_prints_its_fastest_point():
    study = small_study(uneven_profile())
    best = min(study.points, key=lambda point: point.time_to_accuracy)
    assert f"on {best.gpus} GPUs at {format_bit_rate(best.bandwidth)}, {best.strategy}" in str(study)
    assert f"({best.speedup:.1f}x one GPU)" in str(study)


def test_a_study_of_one_network_and_one_count_says_each_once():
    study = small_study(linear_profile(), gpu_counts=[1], bandwidths=[FAST])
    assert f", 1 GPU, {format_bit_rate(FAST)}: soonest" in str(study)


def test_progress_reports_every_gpu_count_at_every_speed():
    progress = []
    small_study(linear_profile(), on_progress=lambda what, share: progress.append((what, share)))
    assert [share for _, share in progress] == pytest.approx([i / 8 for i in range(8)])
    assert progress[0][0] == "1 GPU at 8 Gbit/s"


def test_gpu_counts_and_speeds_are_put_in_order_once_each():
    study = small_study(linear_profile(), gpu_counts=[4, 1, 4], bandwidths=[FAST, SLOW])
    assert (study.gpu_counts, study.bandwidths) == ((1, 4), (SLOW, FAST))
    assert list(times(study, "weak")) == [1, 4]


def test_counts_and_bandwidths_may_be_arrays(tmp_path):
    arrays = small_study(uneven_profile(), gpu_counts=np.array([1, 2]), bandwidths=np.array([SLOW, FAST]))
    lists = small_study(uneven_profile(), gpu_counts=[1, 2], bandwidths=[SLOW, FAST])
    assert arrays.points == lists.points
    assert serialization.read(serialization.write(arrays, tmp_path / "study.json"), ScalingStudy) == arrays


@pytest.mark.parametrize(
    ("wrong", "phrase"),
    [
        ({"gpu_counts": ()}, "gpu_counts and bandwidths must each have a value"),
        ({"bandwidths": ()}, "gpu_counts and bandwidths must each have a value"),
        ({"gpu_counts": (0, 1)}, "gpus must be at least 1, got 0"),
        ({"bandwidths": (0.0,)}, "bandwidth must be positive, got 0.0"),
        ({"global_batch": 0}, "global_batch must be at least 1, got 0"),
        ({"global_batch": 10**10}, "global_batch must be at most 1000000000, got 10000000000"),
        ({"per_gpu_batch": 0}, "per_gpu_batch must be at least 1, got 0"),
        ({"amplification_limit": 0.5}, "amplification_limit must be at least 1.0, got 0.5"),
        ({"latency": -1.0}, "latency must not be negative"),
    ],
)
def test_arguments_out_of_their_bounds_are_rejected(wrong, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        small_study(linear_profile(), **wrong)


@pytest.mark.parametrize("steps", [3906.25, 0])
def test_steps_of_ones_own_model_are_a_whole_number(steps):
    """A study of others was saved, and its file could not be read."""
    model = SimpleNamespace(name="mine", source="trained", steps=lambda batch: steps)
    with pytest.raises(InvalidValueError, match=f"steps of 'mine' at batch 1 must be .*, got {steps}"):
        small_study(linear_profile(), model)


# -- the paper's figures ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vgg16() -> Profile:
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        pytest.skip(f"{FOLDER_VARIABLE} names no folder with the profiles of DeepPool's authors")
    return read_profile(Path(folder), "vgg16")


def test_vgg16_on_a100s_scales_as_in_figures_1_to_3(vgg16):
    """DeepPool, section 2, for VGG-11: its text, not its curves, with the example's steps and the paper's network.

    Weak scaling stalls while batch-optimal scaling continues (figure 1); the best per-GPU batch shrinks (figure 2);
    with a slow network weak scaling beats strong scaling on 256 GPUs, with a fast one strong beats weak (figure 3).
    """
    study = scaling(vgg16, NAMED["example"], network_model="paper")
    assert (study.gpu_counts, study.bandwidths) == (GPU_COUNTS, BANDWIDTHS)
    terabit = BANDWIDTHS[2]
    weak, best = (times(study, strategy, bandwidth=terabit) for strategy in ("weak", "batch-optimal"))
    assert weak[128] / weak[1024] < 1.1
    assert best[128] / best[1024] > 1.5
    shares = [x.per_gpu_batch for x in study.line("batch-optimal", "data-parallel", BANDWIDTHS[-1])]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 10 * shares[-1]
    slow, fast = ({x: times(study, x, bandwidth=speed)[256] for x in STRATEGIES} for speed in BANDWIDTHS[::3])
    assert slow["weak"] < slow["strong"]
    assert fast["strong"] < fast["weak"]
