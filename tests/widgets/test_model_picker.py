"""The picker without a browser: what its controls capture, what it shows of it, and how it fails."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool import figures
from deeppool.errors import CaptureError
from deeppool.figures import theme
from deeppool.graph.capture import capture as capturing
from deeppool.graph.capture.capture import capture
from deeppool.widgets import ModelPicker
from deeppool.widgets.model_picker import GIVEN, OWN
from tests.strategies import profile_from_times
from tests.waiting import wait_until
from tests.widgets.waiting import ended


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def captured():
    return capture(small(), (8,))


def texts(picker: ModelPicker) -> list[str]:
    return [text for trace in picker.figure.data for text in trace.text or ()]


def test_an_empty_picker_says_what_to_do_and_has_no_graph():
    picker = ModelPicker()
    assert "Pick a model and press Capture" in picker.status.value
    assert picker.static() is None
    with pytest.raises(CaptureError, match="no model is captured yet"):
        picker.graph  # noqa: B018
    assert {"resnet50", "vgg16"} <= set(picker.name.options)


def test_a_named_model_is_captured_by_the_controls():
    picker = ModelPicker()
    picker.name.value = "alexnet"
    assert picker.shape.placeholder == "3,224,224 (default)"
    picker.shape.value = "3,64,64"
    picker.granularity.value = "operator"
    picker.row.start.click()
    assert ended(picker.row) == "done"
    assert (picker.graph.model, picker.graph.input_shape, picker.graph.granularity) == (
        "alexnet",
        (3, 64, 64),
        "operator",
    )
    assert picker.captured.graph == picker.graph
    assert sorted(filter(None, texts(picker))) == sorted(layer.name for layer in picker.graph.layers)
    assert "chain" in picker.status.value
    assert picker.problem == ""


def test_a_model_that_is_given_is_captured_at_once():
    model = small()
    picker = ModelPicker(model, (8,))
    assert picker.family.value == GIVEN
    assert (picker.name.value, picker.name.disabled) == ("Sequential", True)
    assert picker.captured.source is model
    assert len(picker.graph.layers) == 2


def test_a_model_is_there_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch):
    drawn, show = threading.Event(), ModelPicker._show_captured
    monkeypatch.setattr(ModelPicker, "_show_captured", lambda *given: drawn.wait() and show(*given))
    picker = ModelPicker(small(), (8,))
    try:
        captured = picker.captured
        assert picker.captured is captured
    finally:
        drawn.set()


def test_shapes_are_lists_and_arrays_too():
    for shape in ([8], np.array([8])):
        assert ModelPicker(small(), shape).captured.graph.inputs[0].shape == (8,)


def test_a_captured_model_is_shown_without_capturing_it_again(captured):
    picker = ModelPicker(captured)
    assert picker.captured is captured
    assert picker.row.run is None
    assert texts(picker) == ["0", "2"]


def test_the_users_own_model_comes_by_its_name(in_the_checkout):
    picker = ModelPicker("examples.two_branch:two_branch")
    assert picker.family.value == OWN
    assert ended(picker.row) == "done"
    assert "series-parallel" in picker.status.value
    assert "BatchNorm" in picker.status.value


def test_tokens_are_numbers_of_another_kind():
    picker = ModelPicker(nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 2)), (4,))
    assert ended(picker.row) == "failed"
    assert "Embedding" in picker.problem or "cannot take" in picker.problem
    picker.dtype.value = "int64"
    picker.row.start.click()
    assert ended(picker.row) == "done"
    assert picker.graph.inputs[0].dtype == "int64"
    assert picker.problem == ""


def test_other_families_have_other_names():
    picker = ModelPicker()
    picker.family.value = "language models of published sizes"
    assert "bert_base" in picker.name.options
    assert "resnet50" not in picker.name.options
    picker.family.value = OWN
    assert picker.name.options == ()
    assert picker.name.placeholder == "package.module:callable"


class DependsOnData(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(x if x.sum() > 0 else -x)


def test_what_cannot_be_captured_is_reported_under_the_controls_and_can_be_tried_again():
    picker = ModelPicker(DependsOnData(), (8,))
    assert ended(picker.row) == "failed"
    assert "control flow that depends on data" in picker.problem
    assert "failed" in picker.row.status.value
    with pytest.raises(CaptureError, match="control flow"):
        picker.graph  # noqa: B018
    picker.family.value, picker.name.value, picker.shape.value = OWN, "torch.nn:Identity", "8"
    picker.row.start.click()
    ended(picker.row)
    assert "control flow" not in picker.problem


@pytest.mark.parametrize(
    ("name", "shape", "phrase"),
    [
        ("", "", "no model is chosen"),
        ("alexnet", "wide", "whole numbers with commas, got"),
        ("vgg61", "", "unknown model"),
    ],
)
def test_wrong_input_starts_nothing(name, shape, phrase):
    picker = ModelPicker()
    picker.shape.value = shape
    picker.name.value = name
    picker.row.start.click()
    if picker.row.run is not None:
        assert ended(picker.row) == "failed"
    assert phrase in picker.problem


def test_a_capture_is_cancelled(monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    original = capturing._export_model

    def held(*arguments):
        entered.set()
        leave.wait(300)
        return original(*arguments)

    monkeypatch.setattr(capturing, "_export_model", held)
    picker = ModelPicker(small(), (8,))
    assert entered.wait(300)
    assert (picker.row.start.disabled, picker.row.cancel.disabled) == (True, False)
    picker.row.cancel.click()
    leave.set()
    assert ended(picker.row) == "cancelled"
    assert "cancelled" in picker.row.status.value
    with pytest.raises(CaptureError, match="no model is captured yet"):
        picker.graph  # noqa: B018
    picker.row.start.click()
    assert ended(picker.row) == "done"


def test_the_graph_is_coloured_by_what_is_asked_for(captured):
    picker = ModelPicker(captured)
    offered = [key for _, key in picker.colour.options]
    assert "time" not in offered
    for key in offered:
        picker.colour.value = key
        wanted = figures.graph(captured.graph, colour_by=key)
        assert picker.figure.layout.title.text == wanted.layout.title.text
        assert list(picker.figure.data[1].marker.color) == list(wanted.data[1].marker.color)


def test_times_of_a_profile_colour_its_own_graph_only(captured):
    picker = ModelPicker(captured, profile=(profile := timed(captured.graph)))
    assert "time" in [key for _, key in picker.colour.options]
    assert "forward + backward" in picker.figure.layout.title.text
    picker.profile = timed(capture(nn.Linear(8, 2), (8,)).graph)
    assert "belongs to another graph" in picker.status.value
    assert "parameters" in picker.figure.layout.title.text
    picker.profile = profile
    assert "belongs to another graph" not in picker.status.value
    assert list(picker.figure.data[1].marker.color) == pytest.approx([-3, -3 + torch.log10(torch.tensor(2)).item()])


def timed(graph):
    return profile_from_times(graph, [lambda b, n=n: 1e-3 * (n + 1) * b / 16 for n in range(len(graph.layers))])


def test_a_dark_page_has_the_graph_drawn_dark(captured):
    picker = ModelPicker(captured)
    picker.dark = True
    assert picker.figure.layout.template.layout.paper_bgcolor == theme.paper(dark=True)


def test_where_nobody_can_press_a_button_it_is_the_graph():
    picker = dp.widgets.ModelPicker(small(), (8,))
    assert "2 layers" in picker.static().layout.title.text


def test_two_clicks_are_one_capture(monkeypatch):
    leave = threading.Event()
    original = capturing._export_model
    monkeypatch.setattr(capturing, "_export_model", lambda *a: leave.wait(300) and original(*a))
    picker = ModelPicker(small(), (8,))
    run = picker.row.run
    picker.row.start.click()
    assert picker.row.run is run
    leave.set()
    wait_until(lambda: not picker.row.start.disabled)


def test_models_of_a_similar_name_are_offered_and_captured_by_one_click() -> None:
    picker = ModelPicker()
    picker.name.value = "alexnt"
    assert "unknown model &#x27;alexnt&#x27;" in picker.problem
    text, *buttons = picker.suggestions.children
    assert text.value == "Did you mean"
    (meant,) = [button for button in buttons if button.description == "alexnet"]
    picker.shape.value = "3,64,64"
    meant.click()
    assert (picker.graph.model, picker.problem) == ("alexnet", "")
    assert picker.suggestions.children == ()
