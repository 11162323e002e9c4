"""The view's controls and what it draws, without a browser: windows, kinds, which timeline, and the export."""

import json
from collections import Counter

import pytest
import traitlets

import deeppool as dp
from deeppool import figures
from deeppool.base.timeline import Span, Timeline
from deeppool.errors import InvalidValueError
from deeppool.widgets import AmplificationExplorer, CollocationPanel, TimelineView
from tests.figures.records import layer, plan_of, run_of, two_layer_plan
from tests.widgets.interleaved_threads import TIMEOUT, InterleavedCall, WatchedLock


def drawn(view):
    return view.figure.to_dict()["data"]


def window(view):
    """Of the axis, in the slider's unit."""
    return pytest.approx(list(view.figure.layout.xaxis.range))


def events(path):
    """Whatever their order."""
    return Counter(map(json.dumps, json.loads(path.read_text())["traceEvents"]))


def events_of(*timelines):
    return Counter(map(json.dumps, figures.chrome_trace(*timelines)["traceEvents"]))


def names(view):
    return {text for trace in view.figure.data for text, *_ in trace.customdata}


def test_a_plan_opens_as_its_timeline() -> None:
    view = TimelineView(two_layer_plan())
    assert [trace.name for trace in view.figure.data] == [bar.name for bar in figures.timeline(two_layer_plan()).data]
    assert view.window.value == (0.0, pytest.approx(46.0))
    assert view.window.description == "window (ms)"
    assert view.window.readout_format == ".4"  # 0 – 46, not 0.000 – 46.00
    assert view.problem == ""


def test_a_run_shows_its_prediction_above_what_was_measured_and_each_alone() -> None:
    view = TimelineView(run_of())
    assert [text for text, _ in view.panel.options] == [
        "all, one below the other",
        "predicted: tiny, planned",
        "measured: tiny, one iteration",
    ]
    upper, lower = view.figure.layout.yaxis.domain, view.figure.layout.yaxis2.domain
    assert upper[0] > lower[1]
    view.panel.value = 1
    assert "measured" in view.figure.layout.annotations[0].text
    assert len(view.figure.layout.annotations) == 1
    assert {trace.yaxis for trace in view.figure.data} == {"y"}


def test_each_iteration_has_its_own_axis_where_percent_is_chosen() -> None:
    short, long = (Timeline(f"{x} s", "measured", 1, (Span(0, "forward", "conv", 0.0, x),)) for x in (0.007, 0.26))
    view = TimelineView(short, long)
    view.panel.value = 1
    view.axis.value = True
    assert view.panel.value == 1
    assert view.window.description == "window (%)"
    assert view.window.value == (0.0, pytest.approx(100.0))
    view.buttons["Narrower"].click()
    assert view.window.value == pytest.approx((25.0, 75.0))
    assert window(view) == (25.0, 75.0)
    view.axis.value = False
    assert view.window.value == (0.0, pytest.approx(260.0))
    assert view.problem == ""


def test_buttons_zoom_and_move_the_window_within_the_iteration() -> None:
    view = TimelineView(two_layer_plan())
    for button, start, end in (
        ("Narrower", 11.5, 34.5),
        ("Later", 23.0, 46.0),
        ("Later", 23.0, 46.0),
        ("Earlier", 11.5, 34.5),
        ("Earlier", 0.0, 23.0),
        ("Earlier", 0.0, 23.0),
        ("Narrower", 5.75, 17.25),
        ("Wider", 0.0, 23.0),
        ("Whole", 0.0, 46.0),
        ("Wider", 0.0, 46.0),
    ):
        view.buttons[button].click()
        assert view.problem == ""
        assert view.window.value == (pytest.approx(start, abs=0.05), pytest.approx(end, abs=0.05)), button
        assert list(view.figure.layout.xaxis.range) == [
            pytest.approx(start, abs=0.3),
            pytest.approx(end, abs=0.3),
        ], button


def test_the_window_is_never_narrower_than_a_step() -> None:
    view = TimelineView(two_layer_plan())
    for _ in range(30):
        view.buttons["Narrower"].click()
    start, end = view.window.value
    assert end - start >= view.window.step * 0.99
    assert view.problem == ""


def test_the_slider_and_the_mouse_move_the_same_window() -> None:
    view = TimelineView(two_layer_plan())
    view.window.value = (10.0, 20.0)
    assert window(view) == [10.0, 20.0]
    # As a drag in the page does.
    view.figure.layout.xaxis.range = [20.0, 30.0]
    assert view.window.value == (pytest.approx(20.0, abs=0.05), pytest.approx(30.0, abs=0.05))
    view.panel.value = -1
    view.buttons["Whole"].click()
    view.figure.layout.xaxis.range = [5.0, 6.0]
    assert view.window.value == (pytest.approx(5.0, abs=0.05), pytest.approx(6.0, abs=0.05))


def test_a_narrow_window_shows_what_lies_in_it() -> None:
    spans = tuple(Span(0, "forward", f"l{index}", float(index), index + 1.0) for index in range(100))
    view = TimelineView(Timeline("t", "measured", 1, spans))
    assert len(names(view)) == 100
    view.window.value = (40.0, 45.0)
    assert names(view) == {f"l{index}" for index in range(34, 51)}


def test_kinds_are_switched_off_and_on() -> None:
    view = TimelineView(run_of())
    assert list(view.kinds) == ["forward", "backward", "reshard", "sync", "idle", "background"]
    view.kinds["background"].value = False
    view.kinds["idle"].value = False
    assert {trace.name for trace in view.figure.data} == {"forward", "backward", "reshard", "sync"}
    view.kinds["idle"].value = True
    assert "idle" in {trace.name for trace in view.figure.data}


def test_a_control_that_turns_while_another_thread_draws_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    view, turn = TimelineView(run_of()), WatchedLock()
    monkeypatch.setitem(view.figure.__dict__, "_turn", turn)

    def switch_off() -> None:
        view.kinds["idle"].value = False

    monkeypatch.setattr(view, "static", interrupted := InterleavedCall(view.static, switch_off, turn))
    view.buttons["Narrower"].click()
    interrupted.thread.join(TIMEOUT)
    assert "idle" not in {trace.name for trace in view.figure.data}


def test_a_thousand_gpus_share_rows() -> None:
    plan = plan_of(layer("conv", 1024, forward=1.0), layer("fc", 1, forward=1.0), gpus=1024)
    view = TimelineView(plan)
    assert list(view.figure.layout.yaxis.ticktext) == ["GPU 0", "GPU 1–1023"]
    assert sum(len(trace.x) for trace in view.figure.data) == 4


def test_it_is_written_for_perfetto_gpu_by_gpu(tmp_path) -> None:
    view = TimelineView(run_of())
    view.file.value = str(tmp_path / "trace.json")
    view.save.click()
    assert view.problem == ""
    assert str(tmp_path / "trace.json") in view.save_status.value
    assert "ui.perfetto.dev" in view.save_status.value
    run = run_of()
    assert events(tmp_path / "trace.json") == events_of(run.plan_timeline, run.timeline)
    view.panel.value = 1
    assert events(view.export(tmp_path / "one.json")) == events_of(run.timeline)


def test_a_file_that_cannot_be_written_is_reported(tmp_path) -> None:
    view = TimelineView(two_layer_plan())
    view.file.value = str(tmp_path / "no" / "trace.json")
    view.save.click()
    assert "no/trace.json" in view.problem


def test_another_record_takes_the_place_of_the_first() -> None:
    view = TimelineView(two_layer_plan())
    view.window.value = (10.0, 20.0)
    seconds = Timeline("t", "measured", 1, (Span(0, "sync", "x", 0.0, 7.0),))
    for source, end, unit in ((run_of(), 50.0, "ms"), (seconds, 7.0, "s")):
        view.set_sources(source)
        assert view.window.value == (0.0, pytest.approx(end))
        assert view.window.description == f"window ({unit})"
        assert view.panel.value == -1
    assert list(view.kinds) == ["sync"]
    with pytest.raises(InvalidValueError, match="no GPU to draw"):
        view.set_sources()
    assert names(view) == {"x"}


def test_it_shows_the_plan_of_an_explorer_that_it_is_linked_to() -> None:
    explorer = AmplificationExplorer(dp.find_profile("vgg16-cpu"), amplification_limit=2.0)
    view = TimelineView(explorer.plan)
    run_panel = CollocationPanel(explorer.plan)
    traitlets.dlink((explorer, "plan"), (view, "record"))
    traitlets.dlink((explorer, "plan"), (run_panel, "plan"))
    explorer.global_batch.value = 256
    # The heading has the time of the iteration.
    drawn_heading = view.figure.layout.annotations[0].text
    assert drawn_heading == figures.timeline(explorer.plan).layout.annotations[0].text
    assert run_panel.plan is explorer.plan
    assert run_panel.plan.global_batch == 256
    assert view.problem == ""


def test_nothing_to_look_at_is_an_error() -> None:
    with pytest.raises(InvalidValueError, match="no GPU to draw"):
        TimelineView()
    with pytest.raises(InvalidValueError, match=r"sources\[0\] must be a Plan, .* got 'plan.json' \(dp.load"):
        TimelineView("plan.json")


def test_every_control_has_a_visible_label() -> None:
    view = TimelineView(run_of())
    controls = [view.panel, view.window, view.file, view.save, *view.buttons.values(), *view.kinds.values()]
    assert all(control.description for control in controls)


def test_it_follows_the_pages_theme_and_is_its_figure_where_nobody_is_there() -> None:
    view = TimelineView(two_layer_plan())
    view.dark = True
    dark = figures.timeline(two_layer_plan(), dark=True)
    assert view.figure.layout.template == dark.layout.template
    view.buttons["Narrower"].click()
    assert list(view.static().layout.xaxis.range) == [pytest.approx(11.5, abs=0.05), pytest.approx(34.5, abs=0.05)]
