"""What the foreground loses and the background gains, of live runs as the records have it."""

from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.sharing import Sharing
from deeppool.simulation.collocated import DeviceModel, Piece, Step, simulate_collocated
from tests.figures.records import run_of, two_layer_plan


def test_a_run_is_a_mark_of_its_policy_with_what_was_measured():
    (mark,) = figures.trade_off([run_of()]).data
    assert mark.name == "priority"
    assert (list(mark.x), list(mark.y)) == ([pytest.approx(11.5)], [pytest.approx(30)])
    # 80 ms against 60 ms at the 99th percentile.
    assert list(mark.customdata[0]) == pytest.approx([100 * (80 / 60 - 1), 66.7])


def test_a_bound_is_a_part_of_the_name():
    bound = replace(run_of(), policy="feedback", sharing=Sharing(feedback=0.1, max_slowdown=0.025))
    assert [mark.name for mark in figures.trade_off([run_of(), bound]).data] == [
        "priority",
        "feedback, at most 2.5 % slower",
    ]


def test_the_idle_time_is_a_line_and_the_figure_says_measured():
    figure = figures.trade_off([run_of()])
    assert figure.layout.shapes[0].y0 == pytest.approx(45)
    assert figure.layout.title.subtitle.text.startswith("<b>measured</b> with 4 ranks on 2 cores of Test CPU")


def test_predicted_and_measured_are_not_mixed():
    step = Step(kind="forward", stage=0, seconds=8e-3, idle=4e-3)
    device = DeviceModel(rates=lambda step, piece: (1.0, 0.0))
    predicted = simulate_collocated((step,), (Piece(seconds=5e-4),), Sharing(), device, iterations=5)
    with pytest.raises(InvalidValueError, match="got 1 simulations and 1 live runs"):
        figures.trade_off([predicted, run_of()])


@pytest.mark.parametrize(
    ("shared", "phrase"),
    [
        ([], "cannot draw nothing"),
        ([two_layer_plan()], "cannot draw a Plan, it accepts CollocatedSimulations or RunRecords"),
        ([run_of(background=False)], "the run of tiny under policy none had no background"),
    ],
)
def test_what_shares_nothing_is_refused(shared, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        figures.trade_off(shared)
