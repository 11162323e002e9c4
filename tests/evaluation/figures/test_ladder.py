"""A mechanism more on each row: medians of the runs, the lowest rung at the bottom."""

import dataclasses

import pytest

from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures
from deeppool.evaluation.experiments.stream_ladder import LadderResult, RungResult
from deeppool.evaluation.figures.ladder import kept_throughput
from deeppool.records.run_record import summarise
from tests.figures.records import run_of, two_layer_plan


def measured(slowdown: float, harvest: float, **more):
    run = run_of()
    front = dataclasses.replace(run.foreground, slowdown=slowdown)
    back = dataclasses.replace(run.background, harvest=harvest)
    return dataclasses.replace(run, foreground=front, background=back, **more)


def test_a_bar_is_the_median_of_its_runs_and_its_line_reaches_to_the_others():
    figure = figures.ladder({"naive": [measured(1.0, 0.6)], "+ priority": [measured(x, x) for x in (0.25, 0.0, 1.0)]})
    front, back = figure.data
    assert list(front.y) == list(back.y) == ["foreground alone", "naive", "+ priority"]
    assert list(front.x) == pytest.approx([100, 50, 80])
    assert list(back.x) == pytest.approx([0, 60, 25])
    assert (front.error_x.array[2], front.error_x.arrayminus[2]) == (pytest.approx(20), pytest.approx(30))
    assert (front.error_x.array[1], front.error_x.arrayminus[1]) == (0, 0)
    assert front.error_x.visible


def test_one_run_of_each_has_no_lines():
    assert [bars.error_x.visible for bars in figures.ladder({"naive": [measured(1.0, 0.6)]}).data] == [False, False]


def test_a_foreground_that_takes_half_as_long_again_keeps_two_thirds():
    assert kept_throughput(measured(0.5, 0.0)) == pytest.approx(200 / 3)


def test_a_background_beyond_what_it_reaches_alone_stays_in_the_picture():
    figure = figures.ladder({"naive": [measured(0.0, 1.4)]})
    assert figure.layout.xaxis2.range[1] > 140 > 115 == pytest.approx(figure.layout.xaxis.range[1])


def test_it_says_what_was_measured_and_what_emulated():
    measured_here = figures.ladder({"naive": [measured(0.1, 0.5)] * 2}).layout.title.subtitle.text
    assert measured_here.startswith("<b>measured</b> with 4 ranks on 2 cores of Test CPU")
    assert "median of 2 rounds" in measured_here
    emulated = figures.ladder({"naive": [measured(0.1, 0.5, emulated_rank=0)]}).layout.title.subtitle.text
    assert emulated.startswith("<b>emulated</b> with emulated: rank 0 of 4")
    assert "rounds" not in emulated


@pytest.mark.parametrize(
    ("runs", "phrase"),
    [
        ({}, "ladder cannot draw nothing"),
        ({"naive": []}, "ladder cannot draw nothing"),
        ({"naive": [two_layer_plan()]}, r"runs\['naive'\]\[0\] must be a RunRecord, got a Plan"),
        ({"none": [run_of(background=False)]}, "a run without a background: tiny, policy none"),
    ],
)
def test_what_has_no_ladder_is_refused(runs, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        figures.ladder(runs)


def in_streams(*shares: tuple[float, float]) -> LadderResult:
    rungs = tuple(
        RungResult(
            f"rung {number}", "stream priority low", None, summarise([1.0]), slowdown, 8, 9.0, 3.0, harvest, 5, None
        )
        for number, (slowdown, harvest) in enumerate(shares)
    )
    return LadderResult(0.0, summarise([1.0]), 0.5, None, rungs, ())


def test_in_streams_each_foreground_has_bars_of_its_own_and_the_ranking_is_by_the_sum():
    idle, busy = in_streams((1.0, 0.9), (0.25, 0.7)), in_streams((0.25, 0.3), (0.0, 0.05))
    assert (idle.ranking, busy.ranking) == (("rung 1", "rung 0"), ("rung 0", "rung 1"))
    figure = figures.stream_ladder({"idle": idle, "busy": busy}, "emulated on h200 <made up>")
    assert [(trace.name, list(trace.x)) for trace in figure.data] == [
        ("idle foreground", pytest.approx([50, 80])),
        ("idle foreground", pytest.approx([90, 70])),
        ("busy foreground", pytest.approx([80, 100])),
        ("busy foreground", pytest.approx([30, 5])),
    ]
    assert [trace.showlegend for trace in figure.data] == [True, False] * 2
    assert figure.layout.barmode == "group"
    assert figure.layout.title.subtitle.text == "emulated on h200 &lt;made up&gt;"
    with pytest.raises(InvalidValueError, match="stream_ladder cannot draw nothing"):
        figures.stream_ladder({}, "emulated")
