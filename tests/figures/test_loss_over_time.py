"""Each training is a line through its points: loss, and accuracy where it is known."""

import math

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.runs.mode_comparison.record import ModePoint, ModeTraining

DONE = ModeTraining("solo", 3, 12, (ModePoint(0.5, 2, 2.0, 1.9, 0.25), ModePoint(1.0, 4, 1.5, 1.4, 0.5)))
RUNNING = ModeTraining("full", 3, 0, (ModePoint(0.7, 2, 2.1),))


def test_a_finished_training_shows_what_was_measured_after_it() -> None:
    loss, accuracy = figures.loss_over_time([DONE]).data
    assert (loss.x, loss.y) == ((0.5, 1.0), (1.9, 1.4))
    assert accuracy.y == (25.0, 50.0)
    assert [trace.showlegend for trace in (loss, accuracy)] == [True, False]


def test_a_running_one_shows_the_loss_of_its_batches() -> None:
    assert math.isnan(RUNNING.final.loss)
    (loss,) = figures.loss_over_time([RUNNING]).data
    assert (loss.name, loss.x, loss.y) == ("full", (0.7,), (2.1,))


def test_modes_have_one_legend_each_and_nothing_yet_is_an_empty_figure() -> None:
    shown = [trace.name for trace in figures.loss_over_time([DONE, DONE, RUNNING]).data if trace.showlegend]
    assert shown == ["solo", "full"]
    assert not figures.loss_over_time([]).data


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"trainings\[0\] must be a ModeTraining, got 'solo'"):
        figures.loss_over_time(["solo"])
