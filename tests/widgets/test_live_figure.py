"""A shown figure becomes another: equal to it, in one message, with only what differs."""

import numpy as np
import plotly.graph_objects as go
import pytest
from torch import nn

from deeppool import figures
from deeppool.figures.graph_canvas import MARGINS, PAGE
from deeppool.graph.capture.capture import capture
from deeppool.profiling.shipped import find_profile
from deeppool.widgets import AmplificationExplorer, ModelPicker, ProfilePanel
from deeppool.widgets.live_figure import LiveFigure
from tests.figures.records import two_layer_plan
from tests.widgets.interleaved_threads import TIMEOUT, InterleavedCall, WatchedLock

BARS = go.Figure(go.Bar(x=[1, 2], y=[3, 4], marker={"color": ["red", "blue"]}), {"title": {"text": "bars"}})
LATER = go.Figure(go.Bar(x=[1, 2], y=[5, 6], name="later"), {"xaxis": {"range": [0, 9]}})
LINES = go.Figure([go.Scatter(x=[1], y=[2]), go.Bar(x=[1], y=[2])])


def properties(figure: go.Figure) -> dict:
    """Those that are set; a page adds an id to each trace."""
    return without_empty(figure.to_plotly_json())


def without_empty(found: dict) -> dict:
    pruned = {name: without_empty(value) if isinstance(value, dict) else value for name, value in found.items()}
    pruned |= {"data": [without_empty(trace) for trace in found["data"]]} if isinstance(found.get("data"), list) else {}
    return {name: value for name, value in pruned.items() if value != {} and name != "uid"}


@pytest.mark.parametrize(("before", "after"), [(BARS, LATER), (LATER, BARS), (BARS, LINES), (LINES, BARS)])
def test_a_shown_figure_becomes_another_one(before: go.Figure, after: go.Figure) -> None:
    shown = LiveFigure(before)
    shown.draw(after)
    assert properties(shown) == properties(after)


def test_only_what_differs_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, sent = LiveFigure(BARS), []
    monkeypatch.setattr(shown, "_send_update_msg", lambda **message: sent.append(message))
    shown.draw(go.Figure(go.Bar(x=[1, 2], y=[3, 7], marker={"color": ["red", "blue"]}), {"title": {"text": "bars"}}))
    (message,) = sent
    assert (list(message["restyle_data"]), message["relayout_data"]) == (["y"], {})


def test_a_figure_of_ours_becomes_its_dark_self() -> None:
    shown = LiveFigure(figures.layers(two_layer_plan()))
    dark = figures.layers(two_layer_plan(), dark=True)
    shown.draw(dark)
    assert properties(shown)["layout"]["template"] == properties(dark)["layout"]["template"]
    assert properties(shown)["data"][0]["marker"] == properties(dark)["data"][0]["marker"]


def test_a_page_that_is_opened_again_gets_the_figure_as_it_is_now() -> None:
    shown = LiveFigure(BARS)
    assert shown._config["showSendToCloud"] is False
    shown.draw(LINES)
    shown.data[0].y = [7]
    state = shown.get_state()
    assert [trace["type"] for trace in state["_widget_data"]] == ["scatter", "bar"]
    assert [list(trace["y"]) for trace in state["_widget_data"]] == [[7], [2]]
    assert "title" not in state["_widget_layout"] or not state["_widget_layout"]["title"]


@pytest.mark.parametrize("stale", [[3.0, 9.0, 4.0], {"1": 9.0}], ids=["list", "typed array"])
def test_what_a_page_still_held_of_a_trace_replaces_nothing(stale: object) -> None:
    """A page that draws several steps of a slider at once reports the values of an earlier one as its own."""
    shown = LiveFigure(go.Figure(go.Scatter(x=np.array([1.0, 2.0]), y=np.array([3.0, 4.0]))))
    shown.set_state(
        {"_js2py_traceDeltas": {"trace_deltas": [{"uid": shown.data[0].uid, "y": stale}], "trace_edit_id": 0}}
    )
    assert list(shown.data[0].y) == [3.0, 4.0]
    # Its own properties, which a page that is opened again is given.
    assert list(shown._data[0]["y"]) == [3.0, 4.0]


def test_a_figure_that_is_drawn_while_another_thread_hears_the_page_reports_the_page_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else traitlets would keep only that the order is over."""
    shown, turn, ordered = LiveFigure(BARS), WatchedLock(), []
    monkeypatch.setitem(shown.__dict__, "_turn", turn)
    shown.observe(lambda change: ordered.append(change.new), "_py2js_addTraces")
    interrupted = InterleavedCall(shown.set_trait, lambda: shown.draw(LINES), turn)
    monkeypatch.setattr(shown, "set_trait", interrupted)
    shown.set_state({"_js2py_layoutDelta": {"layout_delta": {}, "layout_edit_id": 0}})
    interrupted.thread.join(TIMEOUT)
    assert [order and len(order["trace_data"]) for order in ordered] == [2, None]


def test_an_update_is_fitted_to_the_width_that_the_page_reported_and_else_left_as_it_is() -> None:
    wide = figures.timeline(two_layer_plan())
    shown = LiveFigure()
    shown.draw(figures.timeline(two_layer_plan()))
    assert shown.layout.annotations[0].text == wide.layout.annotations[0].text
    shown.fit(360)
    narrow = shown.layout.annotations[0].text
    assert narrow.count("<br>") > wide.layout.annotations[0].text.count("<br>")
    shown.draw(figures.timeline(two_layer_plan()))
    assert shown.layout.annotations[0].text == narrow
    shown.fit(3000)
    assert shown.layout.annotations[0].text == wide.layout.annotations[0].text
    assert shown.layout.height == wide.layout.height


def test_figures_share_plotlys_library_and_send_little_of_their_own() -> None:
    first, second = LiveFigure(BARS), LiveFigure(LINES)
    states = [figure.get_state() for figure in (first, second)]
    assert states[0]["_library"] == states[1]["_library"]
    assert all(len(state["_esm"]) < 10_000 for state in states)
    assert bytes(first._library.source).decode() == str(go.FigureWidget._esm)


def test_a_figure_after_all_widgets_were_closed_has_a_library() -> None:
    before = LiveFigure(BARS)._library
    before.close()
    after = LiveFigure(BARS)._library
    assert after is not before
    assert after.comm is not None


def test_graphs_of_layers_are_laid_out_for_the_width_that_the_page_reported() -> None:
    panel = ProfilePanel(find_profile("resnet50-cpu"))
    panel.view.value = "graph"
    explorer = AmplificationExplorer(find_profile("vgg16-cpu"), gpus=2)
    explorer.layer_figure.view.value = "gpus"
    picker = ModelPicker(capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (4,)))
    for shown, figure in ((panel, panel.figure), (explorer, explorer.layers), (picker, picker.figure)):
        assert figure.layout.xaxis.range[1] == PAGE
        shown._page.width = 400
        assert figure.layout.xaxis.range[1] == 400 - MARGINS["l"] - MARGINS["r"]
        assert not shown.problem
        shown.close()
