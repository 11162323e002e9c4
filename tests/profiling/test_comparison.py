"""Layers that changed between two profiles by more than their noise."""

from dataclasses import replace

import pytest

from deeppool.base import serialization
from deeppool.errors import InvalidValueError
from deeppool.graph.layer import LayerGraph
from deeppool.profiling.comparison import ProfileComparison, compare_profiles
from deeppool.profiling.table import Measurement
from tests.strategies import make_graph, make_profile

SPREAD = 0.04


def profile_of(times, sizes=(1, 2), spreads=(SPREAD, SPREAD)):
    """Three layers of which the last two are alike; ``times`` of both kinds, a third forward, at each size."""
    first, second, third = make_graph([(), (0,), (1,)]).layers
    graph = LayerGraph("drawn", (3,), (first, second, replace(third, signature=second.signature)), 0)
    measurements = [
        Measurement(
            f"signature{index}",
            tuple(time / 3 for time in row),
            tuple(2 * time / 3 for time in row),
            spreads[: len(sizes)],
        )
        for index, row in enumerate(times)
    ]
    return make_profile(graph, measurements, sizes)


BEFORE = profile_of([(1.0, 2.0), (3.0, 6.0)])


def test_a_profile_has_not_changed_from_itself():
    found = compare_profiles(BEFORE, BEFORE)
    assert found.changes == ()
    assert found.compared == 4
    assert found.iteration_before == found.iteration_after == (7.0, 14.0)
    assert str(found).startswith("drawn: 0 of 4 layer times changed beyond noise")


def test_layers_that_changed_beyond_both_spreads_are_listed_heaviest_first():
    # Noise of both: 4 % of each, 8 % and a little. 7 % slower is noise; 20 % faster, 50 % slower are not.
    after = profile_of([(0.8, 2.14), (4.5, 6.0)])
    found = compare_profiles(BEFORE, after)
    assert [(change.layers, change.batch) for change in found.changes] == [(("layer1", "layer2"), 1), (("layer0",), 1)]
    slower, faster = found.changes
    assert (slower.before, slower.after) == (pytest.approx(3.0), pytest.approx(4.5))
    assert slower.change == pytest.approx(0.5)
    assert slower.weight == pytest.approx(3.0)
    assert slower.noise == pytest.approx(SPREAD + SPREAD * 1.5)
    assert faster.weight == pytest.approx(-0.2)
    assert found.iteration_after == (pytest.approx(9.8), pytest.approx(14.14))


@pytest.mark.parametrize(("after", "changed"), [(1.079, False), (1.09, True), (0.93, False), (0.92, True)])
def test_noise_is_the_spread_of_both(after, changed):
    found = compare_profiles(BEFORE, profile_of([(after, 2.0), (3.0, 6.0)]))
    assert bool(found.changes) == changed


def test_the_spread_of_another_size_hides_no_change():
    noisy, slower = (profile_of([(1.0, time), (3.0, 6.0)], spreads=(0.5, 0.01)) for time in (2.0, 2.6))
    (change,) = compare_profiles(noisy, slower).changes
    assert (change.batch, change.noise) == (2, pytest.approx(0.01 + 0.01 * 1.3))


def test_a_time_without_spread_that_stays_the_same_has_not_changed_beside_one_that_has():
    # Interpolated from the smaller size, 0.3 would come out differently beside 0.1 and 0.2.
    before, after = (profile_of([(time, 0.3), (3.0, 6.0)], spreads=(0.0, 0.0)) for time in (0.1, 0.2))
    assert [change.batch for change in compare_profiles(before, after).changes] == [1]


def test_only_sizes_that_both_measured_are_compared():
    found = compare_profiles(BEFORE, profile_of([(9.0, 2.0), (9.0, 6.0)], sizes=(4, 2)[::-1]))
    assert found.batch_sizes == (2,)
    assert {change.batch for change in found.changes} == {2}


def test_profiles_of_different_models_are_not_compared():
    other = make_profile(make_graph([()]), [Measurement("signature0", (1.0,), (1.0,), (0.0,))], (1,))
    phrase = (
        r"different models: drawn on 3 \(3 layers, \w+\) and drawn on 3x8x8 \(1 layers, \w+\) \(compare profiles of"
    )
    with pytest.raises(InvalidValueError, match=phrase):
        compare_profiles(BEFORE, other)


def test_profiles_without_a_common_size_are_not_compared():
    with pytest.raises(InvalidValueError, match=r"share no batch size: \[1, 2\] and \[4, 8\] \(profile again"):
        compare_profiles(BEFORE, profile_of([(1.0, 2.0), (3.0, 6.0)], sizes=(4, 8)))


def test_comparison_prints_and_is_saved(tmp_path):
    found = compare_profiles(BEFORE, profile_of([(1.0, 2.0), (4.5, 6.0)]))
    text = found.explain()
    assert "batch 1: 7 s → 10 s (+42.9 %)" in text
    (row,) = [line.strip() for line in text.splitlines() if "layer1" in line]
    assert row.split("  ")[0] == "layer1 and 1 like it"
    assert "+50.0 %" in row
    assert row.endswith("+3 s")
    assert serialization.read(serialization.write(found, tmp_path / "comparison.json"), ProfileComparison) == found


def test_times_of_another_device_are_factors():
    text = compare_profiles(BEFORE, profile_of([(2000.0, 4000.0), (6000.0, 12000.0)])).explain()
    assert "batch 1: 7 s → 14000 s (2,000 times)" in text
    assert "%" not in text
    assert text.count(" 2,000 times   ±80 times ") == 4


def test_long_tables_are_truncated_with_a_note():
    found = compare_profiles(BEFORE, profile_of([(2.0, 4.0), (6.0, 12.0)]))
    assert len(found.changes) == 4
    assert found.explain(rows=1).endswith("… and 3 more (--json has all)")
