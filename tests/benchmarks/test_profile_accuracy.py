"""The benchmark's tables, on a small model and a clock that tells which way was measured."""

import importlib

import pytest
from torch import nn

from benchmarks.held_out import held_out, without
from deeppool.graph.capture.capture import capture
from deeppool.profiling.measure import sampling
from tests.strategies import make_graph, profile_from_times

main = importlib.import_module("benchmarks.profile-accuracy.main")


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(sampling, "MAXIMUM_RUNS", 2)
    return capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), (8,))


def test_accuracy_has_a_row_a_size_and_the_other_ways_at_one(model, monkeypatch):
    monkeypatch.setattr(main, "alone", lambda *_: 1e9)
    rows = [row.split(" | ") for row in main.accuracy("small", model)]
    assert [row[1] for row in rows] == ["1", "2", "4"]
    assert [row[6] == "–" for row in rows] == [True, True, False]
    # A billion seconds in layers alone are many times the iteration; the module as written is not.
    alone, written = (float(cell.strip(" |").rstrip("%")) for cell in rows[2][6:])
    assert alone > 1e9
    assert -100 < written < 1e9


def test_layers_alone_take_time_and_leave_the_model_as_it_was(model):
    before = [parameter.clone() for parameter in model.source.parameters()]
    assert main.alone(model, 2) > 0
    assert main.as_written(model, 2) > 0
    for old, new in zip(before, model.source.parameters(), strict=True):
        assert new.grad is None
        assert old.equal(new)


def test_interpolation_has_a_row_a_held_out_size(model):
    rows = [row.split(" | ") for row in main.interpolation("small", model)]
    assert [row[1] for row in rows] == ["3", "6"]


def test_held_out_sizes_are_predicted_from_the_others_alone():
    # On the line but at 4, where one layer takes 10 s instead of 4 s: held out, it is predicted 60 % too short.
    off = {1: 1.0, 2: 2.0, 4: 10.0, 8: 8.0}
    profile = profile_from_times(make_graph([(), (0,)]), [off.__getitem__, lambda batch: 2.0 * batch], (1, 2, 4, 8))
    (size,) = held_out(profile, (4,))
    assert size.errors == (pytest.approx(0.6), pytest.approx(0.0))
    assert size.median == pytest.approx(0.3)
    assert size.iteration == pytest.approx(12 / 18 - 1)
    assert without(profile, (4,)).batch_sizes == (1, 2, 8)
