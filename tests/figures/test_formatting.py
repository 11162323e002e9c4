"""The words that figures share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.figures.formatting import escape, gpu_ranges, plan_provenance, shorten, time_unit, wrap_lines
from tests.figures.records import layer, plan_of, two_layer_plan


@pytest.mark.parametrize(
    ("gpus", "text"),
    [([0], "GPU 0"), ([4, 5, 6, 7], "GPU 4–7"), ([7, 0, 1, 12], "GPU 0–1, 7, 12"), (range(256), "GPU 0–255")],
)
def test_gpus_are_named_by_ranges(gpus, text):
    assert gpu_ranges(gpus) == text


@pytest.mark.parametrize(
    ("longest", "unit", "value"), [(1.5, "s", 1.5), (1.0, "s", 1.0), (0.02, "ms", 20), (3e-6, "us", 3), (0.0, "us", 0)]
)
def test_the_unit_of_an_axis_suits_its_longest_time(longest, unit, value):
    chosen = time_unit(longest)
    assert chosen.name == unit
    assert chosen.of(longest) == pytest.approx(value)


@pytest.mark.slow
@given(st.text(min_size=1, max_size=80), st.integers(5, 40))
def test_a_short_name_keeps_both_ends(name, limit):
    short = shorten(name, limit)
    assert len(short) == min(len(name), limit)
    assert short == name or (name.startswith(short.split("…")[0]) and "…" in short and short[-1] == name[-1])


def test_a_private_character_of_a_name_stays_what_it_is_beside_tags():
    """Fonts of terminals draw icons as such characters."""
    assert wrap_lines("<b>\ue000</b> \uf8ff &lt;a", 4) == "<b>\ue000</b><br>\uf8ff &lt;a"


def test_an_angle_bracket_is_text_not_a_tag():
    assert escape("task:<lambda>") == "task:&lt;lambda&gt;"


@pytest.mark.parametrize("kind", ["measured", "estimated"])
def test_provenance_says_what_predicted_times_lean_on(kind):
    text = plan_provenance(plan_of(layer("conv", 4, forward=1.0), provenance=kind))
    assert f"from {kind} layer times (Test CPU)" in text
    assert "transfers computed from the links of dgx-a100" in text


def test_provenance_counts_extrapolated_layers():
    plan = plan_of(layer("conv", 4, forward=1.0), layer("fc", 1, forward=1.0), extrapolated=("fc",))
    assert "1 of 2 extrapolated" in plan_provenance(plan)


def test_provenance_says_whether_all_reduces_overlap():
    assert "; all-reduces overlap the backward pass" in plan_provenance(replace(two_layer_plan(), overlap_sync=True))
    assert "; nothing overlaps the all-reduces" in plan_provenance(two_layer_plan())
