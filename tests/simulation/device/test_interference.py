"""Measured pairs: what is refused, what lies between them, and how they come back from a file."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppool import figures
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.records import files
from deeppool.simulation.device.collocated import SimulatedPiece, SimulatedStep
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.device.interference import Arrangement, Interference

INTENSITIES, DURATIONS = (0.1, 10.0), (1e-4, 1e-2)
CLASSES = [(intensity, seconds) for intensity in INTENSITIES for seconds in DURATIONS]


def slope(intensity, seconds, other_intensity, other_seconds):
    """A rate that is linear in each logarithm."""
    return 0.5 + 0.02 * (
        math.log10(intensity) + 2 * math.log10(seconds) - 3 * math.log10(other_intensity) - math.log10(other_seconds)
    )


def pairs(rate):
    return tuple(tuple(rate(*row, *column) for column in CLASSES) for row in CLASSES)


def measured(**changes):
    beside = Arrangement("lowest", pairs(slope), pairs(lambda *_: 0.25))
    fields = {
        "device_name": "a device <made> by hand",
        "date": "2026-11-21",
        "method": "made up",
        "intensities": INTENSITIES,
        "durations": DURATIONS,
        "arrangements": (beside,),
    }
    return Interference(**{**fields, **changes})


INSIDE = st.tuples(st.floats(*INTENSITIES), st.floats(*DURATIONS))


@settings(deadline=None)
@given(INSIDE, INSIDE)
def test_between_the_measured_classes_rates_are_linear_in_the_logarithms(one, other):
    rates = measured().rates("lowest")
    step = SimulatedStep(kind="forward", stage=0, seconds=one[1], intensity=one[0])
    found = rates(step, SimulatedPiece(seconds=other[1], intensity=other[0]))
    assert found == pytest.approx((slope(*one, *other), 0.25))


@pytest.mark.parametrize(("intensity", "seconds", "edge"), [(1e-9, 1e-9, CLASSES[0]), (math.inf, 10.0, CLASSES[-1])])
def test_outside_the_measured_classes_rates_are_those_of_the_edge(intensity, seconds, edge):
    rates = measured().rates("lowest")
    step = SimulatedStep(kind="forward", stage=0, seconds=seconds, intensity=intensity)
    assert rates(step, SimulatedPiece(seconds=seconds, intensity=intensity))[0] == pytest.approx(slope(*edge, *edge))


def test_an_unknown_intensity_takes_the_mean():
    rates = measured().rates("lowest")
    known = [
        rates(
            SimulatedStep(kind="forward", stage=0, seconds=1e-3, intensity=intensity),
            SimulatedPiece(seconds=1e-3, intensity=1.0),
        )[0]
        for intensity in INTENSITIES
    ]
    found = rates(SimulatedStep(kind="forward", stage=0, seconds=1e-3), SimulatedPiece(seconds=1e-3, intensity=1.0))
    assert found[0] == pytest.approx(sum(known) / 2)


def test_measured_pairs_come_back_from_a_file(tmp_path):
    found = measured()
    assert files.load(files.save(found, tmp_path / "pairs.json")) == found


def test_lowest_priority_harvests_the_measured_part_of_a_wait_and_others_all_of_it(tmp_path):
    found = measured(waits=IdleHarvest((1e-3, 1e-2), (0.5, 0.9), in_transfers=0.8))
    waits = found.idle_harvest("lowest")
    assert [waits.at(wait) for wait in (1e-5, 1e-3, 10**-2.5, 1e-2, 1.0)] == pytest.approx([0.5, 0.5, 0.7, 0.9, 0.9])
    for of_all in (found.idle_harvest("normal"), measured().idle_harvest("lowest")):
        assert of_all.at(1e-5) == of_all.in_transfers == 1
    assert "the lowest priority gets 50, 90 % of waits of 1, 10 ms, 80 % inside transfers" in str(found)
    assert files.load(files.save(found, tmp_path / "pairs.json")) == found


def test_more_than_all_of_the_waits_inside_transfers_is_refused():
    with pytest.raises(InvalidValueError, match=r"in_transfers must be a part, from 0 to 1, got 1\.5"):
        IdleHarvest((1e-3,), (0.5,), in_transfers=1.5)


@pytest.mark.parametrize(
    ("seconds", "harvest", "message"),
    [
        ((), (), r"must be positive and ascend, got \(\)"),
        ((1e-3, 1e-3), (0.5, 0.5), "must be positive and ascend"),
        ((1e-3, 1e-2), (0.5,), "for each of 2 waits, got"),
        ((1e-3,), (1.5,), "a part, from 0 to 1"),
    ],
)
def test_invalid_waits_are_refused(seconds, harvest, message):
    with pytest.raises(InvalidValueError, match=message):
        IdleHarvest(seconds, harvest)


def test_a_file_with_a_pair_too_few_names_the_arrangement(tmp_path):
    path = files.save(measured(), tmp_path / "pairs.json")
    path.write_text(path.read_text().replace('"intensities": [\n  0.1,', '"intensities": ['))
    with pytest.raises(DocumentError, match=r"pairs.json: .*arrangement lowest must have 2 x 2 rates"):
        files.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"durations": (1e-2, 1e-4)}, "durations must be positive and ascend"),
        ({"intensities": (0.0, 1.0)}, "intensities must be positive"),
        ({"arrangements": (Arrangement("nice", ((1.0,),), ((1.0,),)),)}, "nice must have 4 x 4 rates"),
        ({"arrangements": (Arrangement("nice", pairs(lambda *_: 0.0), pairs(slope)),)}, "a foreground speed of 0"),
    ],
)
def test_invalid_measurements_are_refused(changes, message):
    with pytest.raises(InvalidValueError, match=message):
        measured(**changes)


def test_an_unmeasured_arrangement_raises_with_the_measured_ones():
    with pytest.raises(InvalidValueError, match=r"measured for other core \(choose one of: lowest\)"):
        measured().rates("other core")


def test_the_figure_shows_every_pair_in_percent():
    figure = figures.interference(measured())
    assert figure.data[0].z[1][2] == pytest.approx(100 * slope(*CLASSES[1], *CLASSES[2]))
    assert figure.data[0].x[0] == "0.1 FLOP/B, 100 us"
    assert "&lt;made&gt;" in figure.layout.title.subtitle.text
    assert "wait" not in figure.layout.title.subtitle.text
    waited = figures.interference(measured(waits=IdleHarvest((1e-3,), (0.5,)))).layout.title.subtitle.text
    assert waited.endswith("<br>the lowest priority gets 50 % of waits of 1 ms")
    with pytest.raises(InvalidValueError, match="found must be an Interference, got 'pairs'"):
        figures.interference("pairs")
