"""What a live run's figure shows of its samples, which are written out here."""

import pytest

from deeppool import figures
from deeppool.base.live_sample import BackgroundSample, LiveSample
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.live import mean_alone, throughput


def iteration(time, condition, seconds, *, bound=None, share=None, background=()):
    return LiveSample(time, condition, round(10 * time), seconds, bound, share, tuple(background))


def job(time, samples, *, rank=0, state="training", reason=None):
    return BackgroundSample(rank, state, reason, time, samples // 4, samples)


RUN = [
    iteration(0.1, "asleep", 0.09, background=[job(0.0, 0, state="resting")]),
    iteration(0.2, "awake", 0.10, background=[job(0.0, 0, state="resting")]),
    iteration(0.3, "awake", 0.12, background=[job(0.0, 0, state="resting")]),
    iteration(0.5, "collocated", 0.15, bound=0.5, share=1.0, background=[job(0.45, 4)]),
    iteration(1.0, "collocated", 0.14, bound=0.5, share=1.0, background=[job(0.95, 24)]),
    iteration(1.2, "collocated", 0.11, bound=0.1, share=0.2, background=[job(0.95, 24)]),
    LiveSample(1.5, "background alone", None, None, None, None, (job(1.45, 64),)),
]


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_iterations_stand_over_the_time_by_condition() -> None:
    drawn = traces(figures.live(RUN))
    assert list(drawn["alone"].y) == pytest.approx([100, 120])
    assert list(drawn["alone, idle cores"].y) == pytest.approx([90])
    assert list(drawn["collocated"].x) == [0.5, 1.0, 1.2]
    assert list(drawn["collocated"].y) == pytest.approx([150, 140, 110])
    assert "bound 50 %" in drawn["collocated"].customdata[0]
    assert "allowed to the background: 20 % of the time" in drawn["collocated"].customdata[2]


def test_iterations_of_the_warm_up_are_not_among_those_alone_which_the_mean_is_of() -> None:
    drawn = traces(figures.live([iteration(0.0, "warming up", 0.5), *RUN]))
    assert list(drawn["warming up"].y) == pytest.approx([500])
    assert list(drawn["alone"].y) == pytest.approx([100, 120])
    # The legend shows the first symbol of a trace for all of them.
    for name in ("warming up", "alone", "alone, idle cores", "collocated"):
        assert len(set(drawn[name].marker.symbol)) == 1
    assert drawn["warming up"].marker.symbol[0] != drawn["alone, idle cores"].marker.symbol[0]


def test_the_level_alone_is_the_mean_of_iterations_on_cores_that_are_awake() -> None:
    assert mean_alone(RUN) == pytest.approx(0.11)
    assert list(traces(figures.live(RUN))["mean alone"].y) == pytest.approx([110, 110])
    assert mean_alone(RUN[:1]) is None


def test_the_bound_is_a_step_above_the_level_alone_where_it_was_changed() -> None:
    bound = traces(figures.live(RUN))["bound"]
    assert list(bound.x) == [0.1, 0.2, 0.3, 0.5, 1.0, 1.2]
    assert list(bound.y[:3]) == [None] * 3
    assert list(bound.y[3:]) == pytest.approx([165, 165, 121])
    assert bound.line.shape == "hv"


def test_the_legend_has_a_bound_where_there_is_one() -> None:
    assert traces(figures.live(RUN))["bound"].showlegend
    assert not traces(figures.live(RUN[:3]))["bound"].showlegend


def test_throughput_is_what_a_job_did_between_two_of_its_tellings() -> None:
    assert throughput(RUN) == [
        (0.1, None),
        (0.2, None),
        (0.3, None),
        (0.5, pytest.approx((24 - 4) / 0.5)),
        (1.0, pytest.approx((64 - 24) / 0.5)),
        (1.2, pytest.approx((64 - 24) / 0.5)),
        (1.5, pytest.approx((64 - 24) / 0.5)),
    ]


def test_throughput_is_of_all_ranks_or_of_none() -> None:
    def at(time, *jobs):
        return iteration(time, "collocated", 0.1, background=jobs)

    samples = [
        at(1.0, job(0.9, 0), job(0.9, 0, rank=1)),
        at(2.0, job(1.5, 10), job(1.6, 8, rank=1)),
        at(3.0, job(2.5, 30), job(1.6, 8, rank=1)),
        at(4.0, job(3.5, 60), job(2.6, 18, rank=1)),
        at(5.0, job(3.5, 60), job(4.0, 18, rank=1, state="ended", reason="killed")),
    ]
    assert [rate for _, rate in throughput(samples)] == pytest.approx([10 / 0.6 + 8 / 0.7, 30, 40, 40, 30])


def test_what_a_job_did_before_it_rested_is_not_counted_when_it_goes_on() -> None:
    def at(time, job):
        return iteration(time, "awake" if job.state == "resting" else "collocated", 0.1, background=[job])

    samples = [
        at(1.0, job(0.9, 0)),
        at(1.5, job(1.4, 50)),
        at(2.0, job(1.9, 100)),
        at(3.0, job(1.9, 100, state="resting")),
        at(9.0, job(1.9, 100)),
        at(9.5, job(9.1, 105)),
        at(9.9, job(9.6, 155)),
    ]
    rates = [rate for _, rate in throughput(samples)]
    assert rates[3] is None
    # It went on before the iteration that ended at 9 s, and was at 105 samples at 9.1 s.
    assert [*rates[:3], *rates[4:]] == pytest.approx([100, 100, 100, (105 - 100) / 0.2, 100, 100])


def test_a_rest_ends_with_a_report_and_until_the_first_one_after_it_nothing_is_known() -> None:
    """A job that goes on has reported before the iteration ends, or has not: the throughput is that of both."""

    def at(time, state, *jobs):
        return iteration(time, "collocated", 0.1, background=[job(*each, state=state) for each in jobs])

    samples = [
        at(1.0, "training", (0.9, 0)),
        at(1.2, "resting", (1.1, 30)),
        at(2.0, "training", (1.95, 34)),
        at(2.1, "training", (1.95, 34)),
        at(2.2, "resting", (2.15, 54)),
        at(3.0, "training", (2.15, 54)),
    ]
    rates = [rate for _, rate in throughput(samples)]
    assert rates[:1] + rates[2:4] == pytest.approx([30 / 0.2, 20 / 0.2, 20 / 0.2])
    assert (rates[1], rates[4], rates[5]) == (None, None, None)


def test_a_rest_shorter_than_an_iteration_is_no_time_without_progress() -> None:
    def at(time, state, *report):
        return iteration(time, "collocated", 1.0, background=[job(*report, state=state)])

    samples = [
        at(1.0, "training", 0.0, 0),
        at(2.0, "resting", 1.9, 19),
        at(2.5, "training", 1.9, 19),
        at(3.5, "training", 2.9, 39),
    ]
    assert [rate for _, rate in throughput(samples[:3])] == [pytest.approx(10), None, None]
    assert [rate for _, rate in throughput(samples)] == [pytest.approx(10), None, pytest.approx(20), pytest.approx(20)]


def test_headings_say_how_it_stands_under_the_present_bound() -> None:
    above, below = (note.text for note in figures.live(RUN).layout.annotations)
    assert above == "Foreground: alone 110 ms, collocated +0.0 % by a bound of 10 %"
    assert below == "Background: 80 samples/s now"
    dead = [*RUN, iteration(1.6, "awake", 0.1, background=[job(1.5, 64, state="ended", reason="killed")])]
    assert figures.live(dead).layout.annotations[1].text == "Background: rests or begins, rank 0 has ended"


def test_nothing_of_a_run_that_has_ended_goes_on_now() -> None:
    dead = [*RUN, iteration(1.6, "awake", 0.1, background=[job(1.5, 64, state="ended", reason="killed")])]
    figure = figures.live(dead, ended=True)
    assert figure.layout.title.text == "Foreground and background"
    assert figure.layout.annotations[1].text == "Background: last 80 samples/s, rank 0 has ended"
    above, below = (note.text for note in figures.live([], ended=True).layout.annotations)
    assert (above, below) == ("Foreground: no iteration alone", "Background: no throughput measured")


def test_without_a_sample_it_is_empty_with_the_same_traces() -> None:
    empty, full = figures.live([]), figures.live(RUN)
    assert [trace.name for trace in empty.data] == [trace.name for trace in full.data]
    assert not any(len(trace.x) for trace in empty.data)
    assert empty.layout.annotations[0].text == "Foreground: no iteration alone yet"


def test_only_the_newest_samples_are_drawn_against_the_level_of_all() -> None:
    figure = figures.live(RUN, newest=2)
    assert list(traces(figure)["collocated"].x) == [1.2]
    assert list(traces(figure)["mean alone"].y) == pytest.approx([110, 110])
    assert list(figure.layout.xaxis.range) == [1.2, 2.2]


def test_the_slowdown_is_of_all_iterations_under_the_present_bound_also_of_those_that_are_not_drawn() -> None:
    alone = [iteration(n / 10, "awake", 0.1) for n in range(5)]
    beside = [iteration(1 + n / 10, "collocated", seconds) for n, seconds in enumerate((0.1, 0.1, 0.1, 0.14))]
    above = figures.live([*alone, *beside], newest=1, ended=True).layout.annotations[0].text
    assert above == "Foreground: alone 100 ms, collocated +10.0 %"


def test_units_stand_on_the_axes_and_a_start_does_not_stretch_them() -> None:
    slow = iteration(0.0, "warming up", 30.0)
    figure = figures.live([slow, *(iteration(n / 10, "awake", 0.1) for n in range(1, 60))])
    assert figure.layout.yaxis.title.text == "iteration (ms)"
    assert figure.layout.yaxis.range[1] == pytest.approx(150)
    assert figure.layout.xaxis2.title.text.endswith("(s)")
    assert figure.layout.yaxis2.title.text == "samples/s"


def test_a_dark_page_has_the_dark_template() -> None:
    assert figures.live(RUN, dark=True).layout.template == theme.template(dark=True)


def test_something_else_than_samples_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"samples\[0\] must be a LiveSample, got 'sample'"):
        figures.live(["sample"])
