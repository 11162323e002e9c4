"""Times between, at and beyond the measured batch sizes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.errors import InvalidValueError, MissingProfileError
from deeppool.graph.layer import LayerGraph
from deeppool.planning.planner import plan
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.table import Measurement, Profile
from tests.strategies import BATCH_SIZES, make_graph, make_profile, profile_from_times, profiles

SECONDS = st.floats(1e-7, 10)


def one_layer(forward, backward=None, batch_sizes=BATCH_SIZES, spread=None):
    backward = backward or (0.0,) * len(forward)
    spread = spread or (0.0,) * len(forward)
    return make_profile(
        make_graph([()]), [Measurement("signature0", tuple(forward), tuple(backward), tuple(spread))], batch_sizes
    )


@given(st.lists(SECONDS, min_size=5, max_size=5), st.lists(SECONDS, min_size=5, max_size=5))
def test_measured_sizes_give_back_what_was_measured(forward, backward):
    profile = one_layer(forward, backward)
    for batch, there, back in zip(BATCH_SIZES, forward, backward, strict=True):
        time = profile.time(0, batch)
        assert time.forward == pytest.approx(there, rel=1e-12, abs=1e-14)
        assert time.backward == pytest.approx(back, rel=1e-12, abs=1e-14)
        assert time.total == time.forward + time.backward
        assert not time.extrapolated


@given(st.lists(SECONDS, min_size=5, max_size=5), st.integers(1, 16))
def test_between_two_sizes_times_lie_on_a_straight_line(forward, batch):
    profile = one_layer(forward)
    lower = max(size for size in BATCH_SIZES if size <= batch)
    upper = min(size for size in BATCH_SIZES if size >= batch)
    low, high = forward[BATCH_SIZES.index(lower)], forward[BATCH_SIZES.index(upper)]
    expected = low if lower == upper else low + (high - low) * (batch - lower) / (upper - lower)
    assert profile.time(0, batch).forward == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert not profile.time(0, batch).extrapolated


def test_the_spread_at_a_size_is_that_of_its_runs_and_unknown_between_sizes():
    spread = (0.1, 0.2, 0.05, 0.3, 0.4)
    profile = one_layer([1e-3 * batch for batch in BATCH_SIZES], spread=spread)
    assert tuple(profile.spread(0, batch) for batch in BATCH_SIZES) == spread
    assert profile.spread(0, 3) is None
    assert profile.spread(0, 32) is None
    # Between sizes a plan takes the worse of the two.
    assert profile.time(0, 3).spread == 0.2


def test_beyond_the_largest_size_the_last_two_are_continued_and_marked():
    # … 8: 9 ms, 16: 17 ms, so 1 ms a sample.
    profile = one_layer([1e-3 + 1e-3 * batch for batch in BATCH_SIZES])
    time = profile.time(0, 40)
    assert time.forward == pytest.approx(41e-3)
    assert time.extrapolated
    assert not profile.time(0, 16).extrapolated


def test_noise_that_makes_a_larger_batch_faster_is_not_continued():
    profile = one_layer([1e-3, 2e-3, 3e-3, 5e-3, 4e-3])
    # Neither down to nothing nor in a jump: what the largest batch took.
    assert profile.time(0, 17).forward == pytest.approx(4e-3)
    assert profile.time(0, 1000).forward == pytest.approx(4e-3)


def test_single_size_is_scaled_by_samples():
    profile = one_layer([2e-3], batch_sizes=(4,))
    assert profile.time(0, 4).forward == pytest.approx(2e-3)
    assert profile.time(0, 10).forward == pytest.approx(5e-3)
    assert profile.time(0, 10).extrapolated
    assert not profile.time(0, 4).extrapolated


def test_spread_is_the_larger_of_the_adjacent_ones():
    profile = one_layer([1.0] * 5, spread=(0.01, 0.02, 0.05, 0.03, 0.04))
    assert profile.time(0, 3).spread == 0.05
    assert profile.time(0, 12).spread == 0.04


def test_below_the_smallest_size_there_is_no_estimate():
    profile = one_layer([1e-3, 2e-3], batch_sizes=(4, 8))
    next_step = r"\(profile with --batch-sizes 3,…, or use fewer GPUs\)"
    phrase = rf"no time for layer 'layer0' at per-GPU batch 3: .* has 4, 8 {next_step}"
    with pytest.raises(MissingProfileError, match=phrase):
        profile.time(0, 3)


@given(profiles(), st.integers(1, 32))
def test_iteration_is_the_sum_of_its_layers(profile, batch):
    total = sum(
        profile.time(index, batch).forward + profile.time(index, batch).backward
        for index in range(len(profile.graph.layers))
    )
    assert profile.iteration_time(batch) == pytest.approx(total, rel=1e-12)


def test_a_step_adds_the_update_of_every_parameter_once():
    made = make_graph([(), (0,), (1,)], parameter_bytes=[100, 0, 30])
    layers = (*made.layers[:2], replace(made.layers[2], parameters=("layer2.weight", "layer0.weight")))
    layers = (*layers[:2], replace(layers[2], parameter_bytes=130, parameter_sizes=(30, 100)))
    profile = replace(profile_from_times(replace(made, layers=layers), [lambda b: 1e-3 * b] * 3), update_per_byte=1e-5)
    assert profile.update_times() == pytest.approx([1e-3, 0, 0.3e-3])
    assert profile.step_time(4) == pytest.approx(12e-3 + 1.3e-3)


def test_layers_of_one_signature_share_a_measurement():
    first, second = make_graph([(), (0,)]).layers
    twin = replace(second, signature=first.signature)
    graph = LayerGraph("drawn", (3,), (first, twin), 0)
    profile = make_profile(graph, [Measurement("signature0", (1.0,), (2.0,), (0.0,))], (1,))
    assert profile.time(0, 1) == profile.time(1, 1)
    assert profile.iteration_time(1) == 6.0


@given(profiles())
def test_profile_read_back_is_the_profile_written(tmp_path_factory, profile):
    path = serialization.write(profile, tmp_path_factory.mktemp("profile") / "profile.json")
    assert serialization.read(path, Profile) == profile


@pytest.mark.parametrize("sizes", [(), (2, 1), (1, 1), (0, 1)])
def test_batch_sizes_out_of_order_are_refused(sizes):
    with pytest.raises(InvalidValueError, match="batch_sizes must be ascending positive numbers"):
        one_layer([1.0] * len(sizes), batch_sizes=sizes)


def test_layer_without_times_is_named():
    with pytest.raises(
        InvalidValueError, match=r"measurements hold no times for layer 'layer1' \(profile the model again\)"
    ):
        make_profile(make_graph([(), (0,)]), [Measurement("signature0", (1.0,), (0.0,), (0.0,))], (1,))


@pytest.mark.parametrize("times", [(1.0,), (1.0, -1.0)])
def test_missing_or_negative_times_are_refused(times):
    with pytest.raises(InvalidValueError, match="needs 2 times >= 0, got"):
        one_layer(times, (0.0, 0.0), (1, 2))


def test_profile_prints_itself_in_a_line():
    text = str(one_layer([1e-3 * batch for batch in BATCH_SIZES]))
    assert "\n" not in text
    assert "estimated on drawn (cpu, fp32, 1 thread): 1 ms at batch 1, 16 ms at batch 16" in text
    assert str(one_layer([4e-3], batch_sizes=(4,))).endswith("thread): 4 ms at batch 4")


def test_the_linear_fit_is_checked_on_the_largest_size():
    # From 4 ms at 4 and 8 ms at 8 the line gives 16 ms at 16; it took 20 ms. Backward is on the line.
    profile = one_layer([1e-3, 2e-3, 4e-3, 8e-3, 20e-3], [1e-3 * batch for batch in BATCH_SIZES])
    assert profile.extrapolation_error == pytest.approx(4 / 36)
    assert one_layer([1e-3, 2e-3], batch_sizes=(1, 2)).extrapolation_error is None


def test_layers_of_one_signature_count_once_per_occurrence():
    first, second, third = make_graph([(), (0,), (1,)]).layers
    graph = LayerGraph("drawn", (3,), (first, second, replace(third, signature=second.signature)), 0)
    on_the_line, off = (1.0, 2.0, 4.0), (1.0, 2.0, 5.0)
    measurements = [
        Measurement(f"signature{i}", times, (0.0,) * 3, (0.0,) * 3) for i, times in enumerate((on_the_line, off))
    ]
    assert make_profile(graph, measurements, (1, 2, 4)).extrapolation_error == pytest.approx(2 / 14)


def test_extrapolation_error_is_saved_and_never_stale(tmp_path):
    profile = one_layer([1.0, 2.0, 3.0, 5.0, 9.0])
    path = serialization.write(profile, tmp_path / "profile.json")
    assert '"extrapolation_error": 0.0' in path.read_text()
    path.write_text(path.read_text().replace('"extrapolation_error": 0.0', '"extrapolation_error": 7.0'))
    assert serialization.read(path, Profile).extrapolation_error == 0.0
    changed = replace(profile, measurements=(replace(profile.measurements[0], forward=(1.0, 2.0, 3.0, 5.0, 10.0)),))
    assert changed.extrapolation_error == pytest.approx(0.1)


CHECKS = (IterationCheck(1, 1.0, 1.04, 0.01, 5), IterationCheck(16, 1.1, 1.0, 0.01, 5, 2**20))


@pytest.mark.parametrize(
    ("checks", "graphs", "expected"),
    [
        ((), False, None),
        (CHECKS[:1], False, None),
        (CHECKS[:1], True, None),
        (CHECKS, False, "add up to 10.0 % more than the whole iteration at batch 16, beyond the bound of 8 %"),
        ((replace(CHECKS[1], layers=0.94),), False, None),
        ((replace(CHECKS[1], layers=0.94),), True, "add up to 6.0 % less than the whole iteration at batch 16"),
    ],
)
def test_only_a_profile_outside_its_bound_carries_a_warning(checks, graphs, expected):
    profile = replace(one_layer([1.0] * 5), checks=checks, graphs=graphs)
    sentences = profile.caveats()
    assert len(sentences) == (expected is not None)
    assert expected is None or expected in sentences[0]
    assert ("caution" in profile.explain()) == (expected is not None)


def test_profile_prints_the_check_of_each_size():
    text = replace(one_layer([1.0] * 5), checks=CHECKS).explain()
    assert (
        "batch 16: layers add up to 1.1 s, the whole iteration took 1 s (+10.0 %; spread 1.0 %, 5 runs), "
        "peak memory 1.0 MiB" in text
    )
    assert "beyond batch 16: linear extrapolation, which misses batch 16 by 0.0 % when fitted to 4 and 8" in text


def test_plan_carries_what_is_uncertain_about_its_times():
    profile = replace(one_layer([1e-3 * batch for batch in BATCH_SIZES]), checks=CHECKS)
    inside, beyond = plan(profile, 2, 8), plan(profile, 2, 64)
    assert inside.caveats == profile.caveats()
    assert len(inside.caveats) == 1
    assert beyond.caveats[1] == (
        "the times of layer0 are extrapolated beyond batch 16, the largest of the profile: linear extrapolation, which "
        "misses batch 16 by 0.0 % when fitted to 4 and 8"
    )
    assert str(beyond).endswith(f"; caution: {beyond.caveats[0]}; caution: {beyond.caveats[1]}")
    assert plan(one_layer([1.0] * 5), 2, 8).caveats == ()


def test_files_of_older_versions_are_read(tmp_path):
    profile = one_layer([1.0, 2.0, 3.0, 5.0, 9.0])
    document = serialization.to_json(profile)
    for name in ("graphs", "checks", "extrapolation_error"):
        del document[name]
    for measurement in document["measurements"]:
        del measurement["peak_bytes"]
    assert serialization.from_json(document, Profile, "old.json") == profile
