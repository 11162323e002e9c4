"""The panel without a browser: what its button does, what an interruption leaves, what is shown of a profile."""

import threading
from dataclasses import replace

import pytest
from torch import nn

import deeppool as dp
from deeppool import figures
from deeppool.errors import DeviceUnavailableError, InvalidValueError, RunCancelledError
from deeppool.figures import theme
from deeppool.graph.capture.capture import capture
from deeppool.profiling.measure import sampling
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.store import MeasurementLog
from deeppool.profiling.table import Profile
from deeppool.widgets import ProfilePanel
from deeppool.widgets.layer_rows import HEADS, SUM, layer_rows
from tests.widgets.waiting import ended

SIZES = (1, 2)
NAME, SPREAD = 1, 7
"""Columns."""


@pytest.fixture(scope="module")
def model():
    return capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), (8,))


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch):
    """Few iterations, however unsteady."""
    monkeypatch.setattr(sampling, "MAXIMUM_RUNS", 2)


@pytest.fixture
def held(monkeypatch):
    """Lets so many iterations be kept; the thread then waits until it is let go."""
    entered, leave, resume_hint = threading.Event(), threading.Event(), [3]
    original = MeasurementLog.add

    def add(self, *measured):
        original(self, *measured)
        resume_hint[0] -= 1
        if resume_hint[0] == 0:
            entered.set()
            assert leave.wait(300)

    monkeypatch.setattr(MeasurementLog, "add", add)
    return entered, leave


def panel_of(model, **options) -> ProfilePanel:
    return ProfilePanel(model, **{"device": "cpu", "batch_sizes": SIZES, **options})


# -- measuring --------------------------------------------------------------------------------------


def test_nothing_runs_until_the_button_is_pressed_and_then_the_times_are_shown(model):
    panel = panel_of(model)
    assert panel.row.run is None
    assert "No times yet" in panel.badge.value
    assert panel.row.start.description == "Measure"
    panel.row.start.click()
    assert ended(panel.row) == "done"
    assert panel.problem == ""
    profile = panel.profile
    assert isinstance(profile, Profile)
    assert (profile.batch_sizes, profile.provenance) == (SIZES, "measured")
    assert ">measured</b>" in panel.badge.value
    assert [row[NAME][0] for row in panel.table.cells] == [layer.name for layer in model.graph.layers]
    assert panel.figure.layout.title.text == "Sequential: an iteration on one GPU"
    assert panel.batch.options == SIZES


def test_asking_for_the_profile_measures_it_where_nobody_has(model):
    panel = panel_of(model)
    profile = panel.profile
    assert profile.batch_sizes == SIZES
    assert panel.profile is profile


def test_a_model_by_name_is_captured_and_measured():
    panel = ProfilePanel(nn.Sequential(nn.Linear(8, 2)), (8,), device="cpu", batch_sizes=(1,))
    assert panel.profile.graph.input_shape == (8,)


def test_a_cancelled_measurement_is_resumed(model, tmp_path, held):
    entered, leave = held
    file = tmp_path / "small.json"
    panel = panel_of(model, output=file)
    panel.row.start.click()
    assert entered.wait(300)
    panel.row.cancel.click()
    leave.set()
    assert ended(panel.row) == "cancelled"
    with pytest.raises(RunCancelledError):
        panel.profile  # noqa: B018
    assert panel.row.start.description == "Resume"
    assert "Resumes from 3 finished iterations (3 at batch 1)" in panel.resume_hint.value
    # Whoever opens the notebook again finds it, too.
    again = panel_of(model, output=file)
    assert again.row.start.description == "Resume"
    again.row.start.click()
    assert ended(again.row) == "done"
    assert dp.load(file) == again.profile
    assert (again.row.start.description, again.resume_hint.value) == ("Measure", "")


def test_what_was_measured_otherwise_is_not_offered(model, tmp_path, held):
    entered, leave = held
    panel = panel_of(model, output=tmp_path / "small.json")
    panel.row.start.click()
    assert entered.wait(300)
    panel.row.cancel.click()
    leave.set()
    ended(panel.row)
    panel.precision.value = "bf16"
    assert (panel.row.start.description, panel.resume_hint.value) == ("Measure", "")
    panel.precision.value = "fp32"
    assert panel.row.start.description == "Resume"
    other = capture(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), (8,))
    assert panel_of(other, output=tmp_path / "small.json").row.start.description == "Measure"


def test_without_a_file_a_cancelled_measurement_says_that_nothing_is_kept(model, held):
    entered, leave = held
    panel = panel_of(model)
    panel.row.start.click()
    assert entered.wait(300)
    panel.row.cancel.click()
    leave.set()
    assert ended(panel.row) == "cancelled"
    assert "Nothing was saved: name a file" in panel.row.status.value
    assert panel.row.start.description == "Measure"


@pytest.mark.parametrize(
    ("control", "value", "phrase"),
    [
        ("batch_sizes", "many", "whole numbers with commas, got &#x27;many&#x27;"),
        ("batch_sizes", "0,1", "batch_sizes must be positive numbers"),
        ("output", "nowhere/at/all.json", "nowhere"),
        ("precision", "tf32", "tf32"),
    ],
)
def test_wrong_input_is_reported_under_the_controls(model, control, value, phrase):
    panel = panel_of(model)
    getattr(panel, control).value = value
    panel.row.start.click()
    if panel.row.run is not None:
        assert ended(panel.row) == "failed"
    assert phrase in panel.problem


def test_a_gpu_that_is_not_there_is_reported(model):
    if dp.environment().gpus:
        pytest.skip("there is a GPU")
    panel = panel_of(model, device="cuda")
    panel.row.start.click()
    assert ended(panel.row) == "failed"
    with pytest.raises(DeviceUnavailableError):
        panel.profile  # noqa: B018
    assert "cuda" in panel.problem


@pytest.mark.slow
@pytest.mark.parametrize("device", ["emulated", "emulated:h200"])
def test_it_measures_on_an_emulated_device_that_it_was_given(model, device):
    panel = panel_of(model, device=device)
    assert panel.row.start.description == "Measure"
    assert panel.profile.device == device
    assert panel.profile.provenance == dp.profile(model, device=device, batch_sizes=SIZES).provenance


@pytest.mark.parametrize(
    ("device", "phrase"),
    [
        ("h300", "device must be one of auto, a100-40, .* cpu, cuda, emulated, or emulated:GPU .* got 'h300'"),
        ("emulated:h300", "no data sheet of the GPU 'h300' is known"),
    ],
)
def test_an_unknown_device_is_refused(model, device, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        panel_of(model, device=device)


# -- estimating -------------------------------------------------------------------------------------


def test_an_estimate_is_named_as_one_everywhere(model):
    panel = panel_of(model, device="a100-40", precision="tf32")
    assert panel.row.start.description == "Estimate"
    panel.row.start.click()
    assert ended(panel.row) == "done"
    assert panel.profile.provenance == "estimated"
    assert ">estimated</b>" in panel.badge.value
    assert "measured" not in panel.badge.value.split("<br>")[0]
    assert panel.figure.layout.title.subtitle.text.startswith("<b>estimated</b> on NVIDIA A100")
    assert panel.table.caption.startswith("estimated times")
    assert {row[SPREAD][0] for row in panel.table.cells} == {"–"}


# -- what is shown ----------------------------------------------------------------------------------


def test_a_shipped_profile_is_shown_at_once_without_controls_that_measure():
    profile = find_profile("vgg16-cpu")
    panel = ProfilePanel(profile)
    assert panel.profile is profile
    assert panel.row.start not in _all(panel)
    assert len(panel.table.cells) == len(profile.graph.layers)
    assert panel.static().layout.title.text == "vgg16: an iteration on one GPU"


def _all(widget):
    return [widget, *(inner for child in getattr(widget, "children", ()) for inner in _all(child))]


def test_chosen_layers_are_drawn_and_named():
    profile = find_profile("vgg16-cpu")
    panel = ProfilePanel(profile)
    panel.table.selected = [19, 0]
    assert panel.selected == (profile.graph.layers[19].name, profile.graph.layers[0].name)
    wanted = figures.batch_curves(profile, [19, 0])
    assert panel.figure.layout.title.text == wanted.layout.title.text
    assert [list(trace.y) for trace in panel.figure.data] == [list(trace.y) for trace in wanted.data]
    panel.view.value = "graph"
    assert panel.figure.layout.title.text == figures.graph(profile.graph, profile).layout.title.text


def test_another_batch_has_other_times_in_the_table():
    profile = find_profile("vgg16-cpu")
    panel = ProfilePanel(profile)
    before = [row[SUM][1] for row in panel.table.cells]
    panel.batch.value = profile.batch_sizes[0]
    after = [row[SUM][1] for row in panel.table.cells]
    assert after == [profile.time(n, profile.batch_sizes[0]).total for n in range(len(after))]
    assert before == [profile.time(n, profile.batch_sizes[-1]).total for n in range(len(after))]


def test_rows_state_each_layers_numbers_and_how_they_sort():
    profile = find_profile("vgg16-cpu")
    batch = profile.batch_sizes[1]
    rows = layer_rows(profile, batch)
    assert {len(row) for row in rows} == {len(HEADS)}
    for index, row in enumerate(rows):
        shown = dict(zip([head.title for head in HEADS], row, strict=True))
        time = profile.time(index, batch)
        assert shown["forward"][1] + shown["backward"][1] == pytest.approx(shown["sum"][1]) == time.total
        assert shown["spread (%)"][1] == profile.spread(index, batch)
        assert shown["parameters"][1] == profile.graph.layers[index].parameter_bytes
    assert sum(row[6][1] for row in rows) == pytest.approx(1)
    # Nobody reads the last layer: its result is the loss.
    assert rows[-1][9] == ("–", -1.0)


def test_caveats_of_a_profile_are_reported():
    profile = find_profile("vgg16-cpu")
    off = tuple(replace(check, iteration=check.iteration / 2) for check in profile.checks)
    assert "caution:" in ProfilePanel(replace(profile, checks=off)).badge.value
    assert "caution:" not in ProfilePanel(profile).badge.value


def test_a_dark_page_has_the_curves_drawn_dark():
    panel = ProfilePanel(find_profile("vgg16-cpu"))
    panel.dark = True
    assert panel.figure.layout.template.layout.paper_bgcolor == theme.paper(dark=True)


def test_a_profile_measured_here_can_be_measured_again(model):
    shown = dp.profile(model, device="cpu", batch_sizes=SIZES)
    panel = panel_of(shown)
    assert panel.profile is shown
    panel.row.start.click()
    assert ended(panel.row) == "done"
    assert panel.profile is not shown
