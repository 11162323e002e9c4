"""Ways of sharing a device, as they were measured: a mark is the median, its bars are all rounds."""

import dataclasses

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from tests.figures.records import run_of, two_layer_plan


def measured(slowdown: float, harvest: float):
    run = run_of()
    front = dataclasses.replace(run.foreground, slowdown=slowdown)
    return dataclasses.replace(run, foreground=front, background=dataclasses.replace(run.background, harvest=harvest))


def test_a_mark_is_the_median_of_its_rounds_and_its_bars_reach_to_the_others():
    rounds = [measured(0.01, 0.5), measured(-0.02, 0.25), measured(0.05, 0.75)]
    figure = figures.trade_off({"bound 1 %": rounds, "naive": [measured(1.0, 0.9)]})
    bound, naive = figure.data
    assert [trace.name for trace in figure.data] == ["bound 1 %", "naive"]
    assert (bound.x[0], bound.y[0]) == (pytest.approx(1.0), pytest.approx(50))
    assert (bound.error_x.array[0], bound.error_x.arrayminus[0]) == (pytest.approx(4.0), pytest.approx(3.0))
    assert (bound.error_y.array[0], bound.error_y.arrayminus[0]) == (pytest.approx(25), pytest.approx(25))
    assert (naive.x[0], naive.y[0]) == (pytest.approx(100), pytest.approx(90))
    assert naive.error_x.array is None


def test_every_mark_is_in_the_picture_and_its_name_is_text():
    figure = figures.trade_off({"a <b>": [measured(0.1, 1.5), measured(0.1, 0.5)], "naive": [measured(1.0, 0.9)]})
    assert figure.layout.yaxis.range == pytest.approx((0, 157.5))
    assert figure.data[0].name == "a &lt;b&gt;"


def test_what_was_measured_says_so_and_where():
    subtitle = figures.trade_off({"naive": [measured(1.0, 0.9)] * 2}).layout.title.subtitle.text
    assert subtitle == "<b>measured</b>: tiny on Test CPU, median of 2 rounds each (bars: smallest to largest)"


def test_the_line_is_the_idle_time_of_the_foreground_alone():
    figure = figures.trade_off({"naive": [measured(1.0, 0.9)]})
    assert figure.layout.shapes[0].y0 == pytest.approx(45)


@pytest.mark.parametrize(
    ("runs", "phrase"),
    [
        ({}, "cannot draw nothing"),
        ({"naive": []}, "cannot draw nothing"),
        ({"naive": [two_layer_plan()]}, r"found\['naive'\]\[0\] must be a RunRecord, got a Plan"),
        ({"none": [run_of(background=False)]}, "a run without a background: tiny, policy none"),
    ],
)
def test_what_has_no_trade_off_is_refused(runs, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        figures.trade_off(runs)
