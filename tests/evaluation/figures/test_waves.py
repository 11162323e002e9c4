"""The figures of waves show every run once, and nothing is refused."""

import pytest

from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures
from deeppool.evaluation.experiments.tick_tock import WaveRun

RUNS = [WaveRun(1, 8, 2**30, 0.5), WaveRun(2, 8, 2**30, 0.4), WaveRun(1, 16, 2**31, 0.8), WaveRun(1, 16, 2**31, 0.8)]


def test_throughput_is_drawn_by_memory_for_one_wave_and_for_two() -> None:
    one, two = figures.tick_tock(RUNS, "emulated").data
    assert (list(one.x), list(one.y), list(one.text)) == ([1.0, 2.0], [16.0, 20.0], ["8", "16"])
    assert (list(two.x), list(two.y)) == ([1.0], [20.0])


def test_efficiency_is_drawn_by_ratio() -> None:
    (curve,) = figures.wave_efficiency({"4 ranks": [(0.5, 0.3), (2.0, 0.8)]}, "predicted").data
    assert (curve.name, list(curve.x), list(curve.y)) == ("4 ranks", [0.5, 2.0], [0.3, 0.8])


def test_an_axis_of_ratios_says_that_it_is_logarithmic_and_writes_20_as_20() -> None:
    """Between powers of ten plotly writes the first digit only unless there is a format."""
    axis = figures.wave_efficiency({"4 ranks": [(0.5, 0.3), (20.0, 0.9)]}, "predicted").layout.xaxis
    assert axis.type == "log" and axis.title.text.endswith("(log)")
    assert (axis.dtick, axis.tickformat) == ("D2", ",.4~r")


def test_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="tick_tock cannot draw nothing"):
        figures.tick_tock([], "emulated")
    with pytest.raises(InvalidValueError, match="wave_efficiency cannot draw nothing"):
        figures.wave_efficiency({}, "predicted")
