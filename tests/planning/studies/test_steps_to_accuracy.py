"""Steps to a target accuracy: the regimes of Shallue et al., tables of one's own, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.errors import DocumentError, InvalidValueError, MissingStepsError
from deeppool.planning.studies.steps_to_accuracy import NAMED, CriticalBatch, FixedSamples, StepsTable, find_steps

BATCHES = st.integers(1, 2**20)
MODEL = CriticalBatch("model", "made up", least_steps=10_000, critical_batch=2048)
TABLE = StepsTable("mine", "trained", ((64, 40_000), (256, 10_000), (4096, 5_000)))
FIXED = FixedSamples("epochs", "trained", samples=1_000_000, largest_batch=8192)


def test_far_below_the_critical_batch_twice_the_batch_needs_half_the_steps():
    assert MODEL.steps(1) / MODEL.steps(2) == pytest.approx(2, rel=1e-3)
    assert MODEL.steps(8) / MODEL.steps(16) == pytest.approx(2, rel=1e-2)


def test_whole_numbers_of_steps_are_not_rounded_up():
    # 10,000 x (1 + 0.128), which floating point puts above 11,280.
    assert MODEL.steps(16_000) == 11_280


def test_far_above_the_critical_batch_the_steps_stop_falling():
    assert MODEL.steps(2**40) == MODEL.steps(2**50) == 10_001  # rounded up
    assert CriticalBatch("flat", "made up", 10_000, 0).steps(1) == 10_000


def test_the_critical_batch_costs_twice_the_fewest_steps_and_twice_the_fewest_samples():
    assert MODEL.steps(2048) == 2 * 10_000
    assert MODEL.steps(2048) * 2048 == 2 * (MODEL.steps(1) - 10_000)


@given(least=st.integers(10**5, 10**7), critical=st.integers(1, 10**5), batch=BATCHES)
def test_steps_and_samples_lie_on_the_hyperbola_of_mccandlish(least, critical, batch):
    """(S / S_min - 1) (E / E_min - 1) = 1, which one step more or less moves by the factor below."""
    steps = CriticalBatch("model", "made up", least, critical).steps(batch)
    bounds = [(s / least - 1) * (s * batch / (least * critical) - 1) for s in (steps - 1, steps)]
    assert bounds[0] < 1 + 1e-6
    assert bounds[1] > 1 - 1e-6


@given(BATCHES)
def test_fixed_samples_are_enough_and_not_a_step_too_many(batch):
    if batch > 8192:
        with pytest.raises(MissingStepsError, match=f"global batch of {batch}: epochs is known up to 8192"):
            FIXED.steps(batch)
    else:
        assert (FIXED.steps(batch) - 1) * batch < 1_000_000 <= FIXED.steps(batch) * batch


def tables():
    batches = st.lists(BATCHES, min_size=2, max_size=6, unique=True).map(sorted)
    return batches.flatmap(
        lambda batches: st.lists(st.integers(1, 10**9), min_size=len(batches), max_size=len(batches)).map(
            lambda steps: StepsTable("drawn", "drawn", tuple(zip(batches, steps, strict=True)))
        )
    )


@given(tables())
def test_a_table_answers_its_own_batches_with_its_own_steps(table):
    assert [(batch, table.steps(batch)) for batch, _ in table.pairs] == list(table.pairs)


@given(tables(), st.data())
def test_between_two_batches_a_table_stays_between_their_steps(table, data):
    low, high = data.draw(st.sampled_from(list(zip(table.pairs, table.pairs[1:], strict=False))))
    steps = table.steps(data.draw(st.integers(low[0], high[0])))
    assert min(low[1], high[1]) <= steps <= max(low[1], high[1])


def test_between_two_batches_a_table_is_a_straight_line_in_log_log():
    """64 to 256 is perfect scaling, so 128 needs half of 64; 256 to 4096 halves over 4 doublings."""
    assert TABLE.steps(128) == 20_000
    assert TABLE.steps(100) == 25_600
    assert TABLE.steps(512) == math.ceil(10_000 * 2**-0.25)
    assert TABLE.steps(1024) == math.ceil(10_000 * 2**-0.5)


@pytest.mark.parametrize("batch", [63, 4097])
def test_a_table_does_not_guess_outside_its_batches(batch):
    with pytest.raises(MissingStepsError, match=f"global batch of {batch}: mine has 64 to 4096"):
        TABLE.steps(batch)


@pytest.mark.parametrize("model", [MODEL, FIXED, TABLE])
def test_no_batch_has_no_steps(model):
    with pytest.raises(InvalidValueError, match="must be at least 1, got 0"):
        model.steps(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CriticalBatch("a", "b", 0, 1),
        lambda: CriticalBatch("a", "b", 1, -1),
        lambda: CriticalBatch("a", "b", math.nan, 1),
        lambda: CriticalBatch("a", "b", math.inf, 1),
        lambda: CriticalBatch("a", "b", 1, math.inf),
        lambda: CriticalBatch("a", "b", "10", 1),
        lambda: FixedSamples("a", "b", 1.5e6, 1),
        lambda: FixedSamples("a", "b", 1, "8192"),
        lambda: FixedSamples("a", "b", 0, 1),
        lambda: FixedSamples("a", "b", 1, 0),
        lambda: StepsTable("a", "b", ((1, 1),)),
        lambda: StepsTable("a", "b", ((2, 1), (1, 2))),
        lambda: StepsTable("a", "b", ((1, 1), (1, 2))),
        lambda: StepsTable("a", "b", ((1, 1), (2, 0))),
        lambda: StepsTable("a", "b", ((0, 1), (2, 1))),
    ],
)
def test_invalid_numbers_are_rejected(make):
    with pytest.raises(InvalidValueError, match="must be"):
        make()


# -- by name and from files -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_a_model_is_found_by_its_name_and_states_its_source(name):
    found = find_steps(name)
    assert found is NAMED[name]
    assert found.source in str(found)
    assert found.name in str(found)


def test_the_example_states_that_it_comes_from_no_paper():
    assert "from no paper and no training" in NAMED["example"].source


def test_ninety_epochs_of_imagenet_at_batch_256_are_450_thousand_steps():
    """Goyal et al. train 90 epochs of ImageNet-1k's 1,281,167 images: 5004.6 steps an epoch."""
    assert NAMED["imagenet-90-epochs"].steps(256) == math.ceil(90 * 1_281_167 / 256) == 450_411


VGG11 = NAMED["vgg11-shallue2019"]
READING = 0.03
"""The share by which any steps of VGG-11, read from a figure, may be off."""


@pytest.mark.parametrize(("low", "high"), [(32, 64), (64, 256), (256, 512)])
def test_vgg11_scales_perfectly_at_small_batches_as_well_as_its_figure_can_be_read(low, high):
    assert VGG11.steps(low) / VGG11.steps(high) == pytest.approx(high / low, rel=2 * READING)


def test_vgg11_gains_less_and_less_above_a_thousand_samples_and_nothing_readable_at_the_end():
    assert VGG11.steps(1024) / VGG11.steps(32_768) < 32 / 4
    assert 1 <= VGG11.steps(32_768) / VGG11.steps(65_536) < 1 + 2 * READING


def test_vgg11_never_needs_more_steps_at_a_larger_batch():
    steps = [VGG11.steps(2**exponent) for exponent in range(5, 17)]
    assert steps == sorted(steps, reverse=True)


def test_vgg11_states_that_it_was_read_from_a_figure_and_is_not_extrapolated():
    assert "Shallue et al., JMLR 20(112), 2019: read to about 3 % from the figure" in VGG11.source
    for batch in (31, 65_537):
        with pytest.raises(MissingStepsError, match=r"VGG-11 on ImageNet to validation error 0\.35 has 32 to 65536"):
            VGG11.steps(batch)


@pytest.mark.parametrize("model", [MODEL, FIXED, TABLE])
def test_a_model_comes_back_from_its_file(model, tmp_path):
    assert find_steps(str(serialization.write(model, tmp_path / "steps.json"))) == model


def test_what_is_neither_a_name_nor_a_file_raises_with_both():
    with pytest.raises(InvalidValueError, match=r"no steps to accuracy 'shallue': neither a file nor one of example"):
        find_steps("shallue")


def test_another_kind_of_file_is_rejected(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"format": "deeppool/plan", "version": 1}')
    with pytest.raises(DocumentError, match="field 'format' is 'deeppool/plan', expected deeppool/ and one of"):
        find_steps(str(path))


def test_a_wrong_pair_in_a_file_raises_with_the_file(tmp_path):
    path = tmp_path / "steps.json"
    path.write_text(
        '{"format": "deeppool/steps-table", "version": 1, "name": "a", "source": "b", "pairs": [[64, "many"], [2, 3]]}'
    )
    with pytest.raises(DocumentError, match=r"steps.json: field 'pairs.0.1' is 'many'"):
        find_steps(str(path))


def test_pairs_of_any_sequence_are_those_of_the_file(tmp_path):
    table = StepsTable("a", "b", np.array([[1, 10], [4, 5]]))
    assert table == StepsTable("a", "b", [[1, 10], [4, 5]]) == StepsTable("a", "b", ((1, 10), (4, 5)))
    assert find_steps(str(serialization.write(table, tmp_path / "steps.json"))) == table


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1.5, 10), (4, 5)], r"batch must be a whole number, got 1\.5"),
        ([(1, 10), (4, True)], "steps must be a whole number, got True"),
        ([(1, 10, 3), (4, 5, 3)], "pairs must be two or more of"),
        ([(1, 10), (4,)], "pairs must be two or more of"),
        ([(0, 10), (4, 5)], "pairs must be two or more of"),
    ],
)
def test_pairs_that_no_file_can_hold_are_refused(pairs, message):
    with pytest.raises(InvalidValueError, match=message):
        StepsTable("a", "b", pairs)
