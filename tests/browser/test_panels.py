"""What all widgets have in common, in a real page: the theme, the keyboard, the place for errors."""

import pytest

from tests.browser.lab import Lab

IMPORT = "import deeppool as dp"
TELEMETRY = "sampler = dp.Sampler(interval=0.1)\npanel = dp.widgets.TelemetryPanel(sampler)\npanel"
# The page reports its theme to a subshell of the kernel, which the messages of a button that it changes then go to.
TOOLTIP = "panel.on_theme(lambda: setattr(panel.stop, 'tooltip', 'dark' if panel.dark else 'light'))"


@pytest.mark.stress
def test_a_figure_follows_its_data_and_the_theme_of_the_page_until_a_key_stops_it(lab: Lab) -> None:
    notebook = lab.open([IMPORT, TELEMETRY, TOOLTIP])
    panel = notebook.panel(".dp-telemetry-panel")
    light = notebook.figure(panel)
    notebook.changed(panel, light)
    notebook.set_theme("JupyterLab Dark")
    notebook.until(lambda: notebook.figure(panel).paper != light.paper)
    dark = notebook.figure(panel)
    assert dark.filled != light.filled
    assert dark.font != light.font
    assert notebook.value("panel.dark") is True

    tools = notebook.tools()
    assert "Zoom" in tools and "Share chart..." not in tools

    # ipykernel drops the messages of a subshell that JupyterLab has deleted, and answers nothing.
    stop, unanswered = notebook.button(panel, "Stop sampling"), panel.get_by_text("No answer to a click")
    assert not unanswered.is_visible()
    notebook.until(lambda: notebook.value("panel.stop.tooltip") == "dark")
    notebook.delete_subshells()
    notebook.press(stop, "Enter")
    unanswered.wait_for(state="visible")
    assert "deeppool running --stop NAME" in unanswered.inner_text()
    assert stop.is_enabled()
    # A message of the kernel's main thread leads the button's messages there.
    notebook.value("setattr(panel.stop, 'tooltip', 'ends the panel')")
    notebook.press(stop, "Enter")
    notebook.until(stop.is_disabled)
    unanswered.wait_for(state="hidden")
    assert notebook.problem(panel) == ""


CONTROLS = """
import ipywidgets
import plotly.graph_objects as go
from deeppool.widgets import LiveFigure, Panel

class Controls(Panel):
    def __init__(self):
        self.kind = ipywidgets.Dropdown(description="kind", options=["add", "double", "mix"])
        self.limit = ipywidgets.FloatSlider(description="limit", value=2.0, min=1.0, max=4.0, step=0.5)
        self.figure = LiveFigure(go.Figure(go.Scatter(x=[0, 1], y=[0, 2.0], name="limit")))
        super().__init__([self.kind, ipywidgets.HBox([self.limit]), self.figure])
        self.limit.observe(self.guarded(self.draw), "value")

    def draw(self, change):
        if change["new"] == 4.0:
            raise ValueError("4 is <too> much")
        self.figure.data[0].y = [0, change["new"]]

controls = Controls()
controls"""


@pytest.mark.stress
def test_every_key_reaches_the_control_that_has_the_focus_and_a_figure_is_as_wide_as_its_panel(lab: Lab) -> None:
    """JupyterLab takes "d d" for a command that deletes the cell, and ArrowDown for one that goes to the next."""
    notebook = lab.open(["first = 1", CONTROLS, "last = 3"])
    panel = notebook.panel(".dp-controls")
    before = notebook.figure(panel)
    assert before.trace("limit")["y"] == [0, 2.0]
    notebook.choose(panel, "kind", "double")
    notebook.press(notebook.slider(panel, "limit"), "ArrowUp", "ArrowRight")
    after = notebook.changed(panel, before)
    notebook.until(lambda: notebook.figure(panel).trace("limit")["y"] == [0, 3.0])
    assert after.drawn != before.drawn
    assert notebook.value("(controls.kind.value, controls.limit.value, first)") == ("double", 3.0, 1)
    assert len(notebook.outputs(1)) == 1

    notebook.press(notebook.slider(panel, "limit"), "ArrowRight", "ArrowRight")
    notebook.until(lambda: notebook.problem(panel) == "ValueError: 4 is <too> much")
    notebook.press(notebook.slider(panel, "limit"), "ArrowLeft")
    notebook.until(lambda: notebook.problem(panel) == "")

    for width in (1366, 1000):
        notebook.page.set_viewport_size({"width": width, "height": 900})
        room = 0.0

        def fits() -> bool:
            nonlocal room
            room = panel.evaluate("panel => panel.getBoundingClientRect().width")
            return bool(abs(notebook.figure(panel).width - room) < 20)

        notebook.until(fits)
        assert room > 500
    notebook.page.set_viewport_size({"width": 1366, "height": 900})


NESTED = """
import ipywidgets
from deeppool.widgets import Panel

inner = ipywidgets.Button(description="Inner")
nested = Panel([inner])
nested.on_click(inner, lambda: setattr(inner, "disabled", True))
outer = Panel([nested])
outer"""
WATCHED = """
() => {
  const real = window.setTimeout;
  window.warnings = 0;
  window.setTimeout = (call, after, ...given) => {
    if (String(given[0]).startsWith("No answer to a click")) window.warnings++;
    return real(call, after, ...given);
  };
}"""


@pytest.mark.stress
def test_a_panel_inside_another_answers_for_its_own_buttons_and_leaves_the_rest_to_it(lab: Lab) -> None:
    notebook = lab.open(["import deeppool as dp", NESTED])
    panel = notebook.panel(".dp-panel >> nth=0")
    button = notebook.button(panel, "Inner")
    notebook.page.evaluate(WATCHED)
    notebook.press(button, "Enter")
    notebook.until(button.is_disabled)
    assert notebook.page.evaluate("window.warnings") == 1
    notebook.restart_kernel()
    restarted = panel.get_by_text("The kernel was restarted")
    restarted.first.wait_for()
    assert restarted.count() == 1
