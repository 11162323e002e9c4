"""What all widgets share: errors that are seen, a theme that is followed, a figure where nobody is there."""

import re
from pathlib import Path

import ipywidgets
import plotly.graph_objects as go
import pytest
from IPython.core.formatters import DisplayFormatter

from deeppool.errors import InvalidValueError
from deeppool.evaluation.execution import KERNEL_ENVIRONMENT
from deeppool.widgets import panel as panel_module
from deeppool.widgets.panel import STATIC, Panel


class TwoKnobs(Panel):
    def __init__(self) -> None:
        self.knob = ipywidgets.IntSlider(3, 0, 10)
        super().__init__([self.knob])
        self.knob.observe(self.guarded(self.turn), "value")
        self.drawn = []
        self.on_theme(lambda: self.drawn.append(self.dark))

    def _fit(self) -> None:
        if self._page.width == 1:
            raise InvalidValueError("too narrow")

    def turn(self, change: dict) -> None:
        if change["new"] == 5:
            raise InvalidValueError("5 is <too> much")
        if change["new"] == 6:
            raise KeyError("six")

    def static(self) -> go.Figure:
        return go.Figure(go.Bar(x=[1], y=[self.knob.value]))


def test_a_callbacks_error_is_shown_until_one_succeeds() -> None:
    panel = TwoKnobs()
    assert panel.problem == ""
    panel.knob.value = 5
    assert "5 is &lt;too&gt; much" in panel.problem
    assert "InvalidValueError" not in panel.problem
    assert 'role="alert"' in panel.problem
    panel.knob.value = 6
    assert "KeyError: &#x27;six&#x27;" in panel.problem
    panel.knob.value = 4
    assert panel.problem == ""


def test_what_the_page_reports_clears_no_error_and_shows_its_own() -> None:
    panel = TwoKnobs()
    panel.knob.value = 5
    panel._page.width = 900
    panel._page.dark = True
    assert "5 is &lt;too&gt; much" in panel.problem
    panel._page.width = 1
    assert "too narrow" in panel.problem
    panel.knob.value = 4
    assert panel.problem == ""


def test_an_error_that_a_started_run_reports_at_once_is_not_wiped_by_the_click_that_started_it() -> None:
    panel = TwoKnobs()
    for _ in range(2):
        panel.guarded(lambda: panel.show_error(InvalidValueError("it ended at once")))()
        assert "it ended at once" in panel.problem
    panel.knob.value = 4
    assert panel.problem == ""


def test_a_click_is_acknowledged_before_its_callback_which_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    panel, button, told = TwoKnobs(), ipywidgets.Button(), []
    monkeypatch.setattr(panel._page, "send", lambda message: told.append("acknowledged"))
    panel.on_click(button, lambda: told.append("called"))
    assert "dp-click" in button._dom_classes
    button.click()
    assert told == ["acknowledged", "called"]


def test_every_button_of_every_widget_is_acknowledged() -> None:
    """One that is registered otherwise would be dead without a word."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path(panel_module.__file__).parent.glob("*.py")}
    found = {name: re.findall(r"(\S+)\.on_click\(", text) for name, text in sources.items()}
    assert {name for name, owners in found.items() if set(owners) - {"self", "panel"}} == {"panel.py"}


def test_a_panel_is_found_in_the_page_by_its_name_and_keeps_the_place_for_errors() -> None:
    panel = TwoKnobs()
    assert {"dp-panel", "dp-two-knobs"} <= set(panel._dom_classes)
    label = ipywidgets.Label()
    panel.show(label, panel.knob)
    assert panel.children[:2] == (label, panel.knob)
    panel.knob.value = 5
    assert "much" in panel.children[2].value


def test_a_page_that_turns_dark_has_the_figures_drawn_again() -> None:
    panel = TwoKnobs()
    assert not panel.dark
    panel._page.dark = True
    panel._page.dark = False
    assert panel.drawn == [True, False]


def test_notebooks_that_are_evaluated_know_that_nobody_is_there() -> None:
    assert STATIC in KERNEL_ENVIRONMENT


def test_where_nobody_can_turn_a_knob_the_panel_is_its_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    # What IPython makes of the last value of a cell.
    format_value = DisplayFormatter().format
    assert "application/vnd.jupyter.widget-view+json" in format_value(TwoKnobs())[0]
    monkeypatch.setenv(STATIC, "1")
    monkeypatch.setattr(go.Figure, "_ipython_display_", lambda figure: shown.append(figure))  # noqa: PLW0108  bound
    assert format_value(TwoKnobs()) == ({}, {})
    assert shown == [go.Figure(go.Bar(x=[1], y=[3]))]
    monkeypatch.setattr(TwoKnobs, "static", Panel.static)
    assert format_value(TwoKnobs())[0] == {"text/plain": "(TwoKnobs: open the notebook to use it)"}
