"""What collocation cost and brought, as the run's record has it."""

from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from tests.figures.records import run_of, two_layer_plan


def by_name(figure):
    return {trace.name: trace for trace in figure.data}


def test_iteration_times_alone_and_collocated_are_the_records():
    traces = by_name(figures.collocation(run_of()))
    p50, p99 = traces["p50 of iterations"], traces["p99 of iterations"]
    assert list(p50.x) == ["alone", "collocated"]
    assert list(p50.y) == pytest.approx([50, 55])
    assert list(p99.y) == pytest.approx([60, 80])
    assert list(p99.text) == ["60 ms", "80 ms"]


def test_harvest_stands_beside_the_mean_idle_share_and_that_of_each_rank():
    traces = by_name(figures.collocation(run_of()))
    assert list(traces["idle"].y) == pytest.approx([45])
    assert list(traces["idle, each rank"].y) == pytest.approx([20, 40, 60, 60])
    assert list(traces["background"].y) == pytest.approx([30])
    assert "67 % of the idle time" in traces["background"].customdata[0]


@pytest.mark.parametrize(("harvest", "top"), [(0.3, 104), (1.0, 104), (1.5, 156)])
def test_a_background_that_was_faster_than_alone_stays_in_the_picture(harvest, top):
    run = run_of()
    figure = figures.collocation(replace(run, background=replace(run.background, harvest=harvest)))
    assert figure.layout.yaxis2.range == pytest.approx((0, top))


def test_headings_say_how_sure_they_are_where_it_is_known():
    run = run_of()
    front = replace(run.foreground, slowdown_margin=0.021)
    sure = replace(run, foreground=front, background=replace(run.background, harvest_margin=0.013))
    assert headings(figures.collocation(run)) == ["Foreground iteration: mean +11.5 %", "Background: 30 % of alone"]
    assert headings(figures.collocation(sure)) == [
        "Foreground iteration: mean +11.5 % ± 2.1",
        "Background: 30 % ± 1.3 of alone",
    ]


def headings(figure):
    return [note.text for note in figure.layout.annotations]


def test_it_says_measured_where_and_how():
    subtitle = figures.collocation(run_of()).layout.title.subtitle.text
    assert subtitle.replace("<br>", " ") == (
        "<b>measured</b> with 4 ranks on 2 cores of Test CPU (gloo), policy priority (SCHED_IDLE), 2026-11-21"
    )


def test_every_axis_has_a_unit():
    axes = figures.collocation(run_of()).select_yaxes()
    assert [axis.title.text for axis in axes] == ["time of an iteration (ms)", "share (%)"]


def test_a_run_without_a_background_shows_idle_time_alone():
    figure = figures.collocation(run_of(background=False))
    assert list(by_name(figure)["p50 of iterations"].x) == ["alone"]
    assert "background" not in by_name(figure)
    assert figure.layout.title.text == "tiny without a background job"


def test_only_a_run_has_a_collocation():
    with pytest.raises(InvalidValueError, match="run must be a RunRecord, got a Plan"):
        figures.collocation(two_layer_plan())
