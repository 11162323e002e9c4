"""A training's losses and times, as its record has them."""

from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.records.training_record import Attempt
from tests.figures.records import training_of, two_layer_plan


def by_name(figure):
    return {trace.name: trace for trace in figure.data}


def test_every_update_is_there_with_its_loss_and_its_time():
    traces = by_name(figures.training(training_of(losses=(2.5, 2.0, 1.5), seconds=(0.30, 0.20, 0.25))))
    assert list(traces["loss"].x) == list(traces["time of an update"].x) == [5, 6, 7]
    assert list(traces["loss"].y) == [2.5, 2.0, 1.5]
    assert list(traces["time of an update"].y) == pytest.approx([300, 200, 250])


def test_what_was_planned_counts_every_global_batch_of_an_update():
    traces = by_name(figures.training(training_of(planned=0.040, accumulation=3)))
    planned = traces["planned, without the optimizer (predicted)"]
    assert list(planned.x) == [5, 7]
    assert list(planned.y) == pytest.approx([120, 120])


def test_the_optimizer_counts_once_for_all_global_batches_of_an_update():
    record = replace(training_of(planned=0.040, accumulation=3), plan_update_time=0.010)
    assert list(by_name(figures.training(record))["planned (predicted)"].y) == pytest.approx([100, 100])
    assert "; planned 100 ms\n" in str(record)


def test_an_update_that_was_left_out_is_a_gap_in_the_losses():
    traces = by_name(figures.training(training_of(losses=(2.5, None, 1.5))))
    assert list(traces["loss"].y) == [2.5, None, 1.5]
    assert len(traces["time of an update"].y) == 3


def test_it_says_measured_and_every_axis_what_it_shows():
    figure = figures.training(training_of())
    assert figure.layout.title.subtitle.text == "<b>measured</b> with 2 ranks on 2 cores of Test CPU, 2026-11-21"
    assert [axis.title.text for axis in figure.select_yaxes()] == [
        "loss (mean of the samples)",
        "time of an update (ms)",
    ]


def test_only_a_training_can_be_drawn():
    with pytest.raises(InvalidValueError, match="record must be a TrainingRecord, got a Plan"):
        figures.training(two_layer_plan())


def test_a_change_of_the_number_of_ranks_is_drawn_where_it_was():
    attempts = [
        Attempt((0, 1, 2), 0.1, ((3, 1),), 0, 5, None, "rank 1 was killed"),
        Attempt((0, 1, 2), 0.1, ((3, 1),), 4, 5, 2.0, "rank 1 was killed"),
        Attempt((0, 2), 0.2, ((2, 1),), 5, 6, 2.0, "more GPUs can be used"),
        Attempt((0, 1, 2), 0.1, ((3, 1),), 6, 7, 2.0, ""),
    ]
    figure = figures.training(replace(training_of(), attempts=tuple(attempts)))
    assert [(note.x, note.text) for note in figure.layout.annotations] == [(6, "2 ranks"), (7, "3 ranks")]
    assert {(shape.x0, shape.x1) for shape in figure.layout.shapes} == {(5.5, 5.5), (6.5, 6.5)}
    assert list(by_name(figure)["planned, without the optimizer (predicted)"].x) == [7, 7]
    assert "with 2 ranks at the end on" in figure.layout.title.subtitle.text
