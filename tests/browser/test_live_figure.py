"""Figures of a page share one library, and miss nothing while it loads."""

import pytest

from tests.browser.lab import Lab

HELD = """
import plotly.graph_objects as go
import deeppool as dp
loaded, go.FigureWidget._esm = go.FigureWidget._esm, "await globalThis.opened;" + str(go.FigureWidget._esm)
"""
TWO = """
figures = [dp.widgets.LiveFigure(go.Figure(go.Scatter(x=[0, 1], y=[0, 1]))) for _ in range(2)]
dp.widgets.Panel(figures)
"""
GATE = """() => {
    // As in a page that has shown no figure.
    globalThis.deeppoolPlotly = {};
    globalThis.opened = new Promise(open => globalThis.open = open);
    // What anywidget does to a widget that takes two seconds to start, at a moment of the test's.
    const giveUp = new AbortController();
    const timeout = AbortSignal.timeout;
    AbortSignal.timeout = () => giveUp.signal;
    globalThis.giveUp = () => { giveUp.abort(); AbortSignal.timeout = timeout; };
}"""


SHOWN = "() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => plot.clientHeight)"


def test_a_view_that_is_gone_does_not_keep_the_others_from_what_is_drawn(lab: Lab) -> None:
    figure = "import plotly.graph_objects as go\nimport deeppool as dp\nfigure = dp.widgets.LiveFigure()"
    notebook = lab.open_shared([figure, "dp.widgets.Panel([figure])", "panel = dp.widgets.Panel([figure])\npanel"])
    first, second = (notebook.page.locator(".dp-panel").nth(index) for index in range(2))
    notebook.figure(first)
    # Plotly has an element of its own: what JupyterLab puts into the widget's changes no height.
    assert first.locator(".js-plotly-plot:not(.lm-Widget)").count() == 1
    notebook.value("panel.show()")
    notebook.until(lambda: second.locator(".js-plotly-plot").count() == 0)
    notebook.value("figure.draw(go.Figure(go.Scatter(x=[0, 1], y=[5, 6])))")
    notebook.value("panel.show(figure)")
    notebook.value("figure.draw(go.Figure(go.Scatter(x=[0, 1], y=[7, 8])))")
    for panel in (first, second):
        notebook.until(lambda panel=panel: [trace["y"] for trace in notebook.figure(panel).traces] == [[7, 8]])


def test_a_view_that_is_opened_after_an_update_of_some_properties_of_some_traces_draws_it(lab: Lab) -> None:
    figure = (
        "import plotly.graph_objects as go\nimport deeppool as dp\n"
        "both = lambda grey: go.Figure([go.Scatter(y=[1, 2], line_color=grey), go.Bar(y=[3], marker_color=grey)])\n"
        "figure = dp.widgets.LiveFigure(both('#111111'))"
    )
    notebook = lab.open_shared([figure, "dp.widgets.Panel([figure])", "panel = dp.widgets.Panel([])\npanel"])
    first, second = (notebook.page.locator(".dp-panel").nth(index) for index in range(2))
    notebook.figure(first)
    # An update has a value for each trace, also for one that the property does not concern.
    notebook.value("figure.draw(both('#222222'))")
    notebook.value("panel.show(figure)")
    notebook.until(lambda: [trace["y"] for trace in notebook.figure(second).traces] == [[1, 2], [3]])


@pytest.mark.stress
def test_a_figure_of_a_notebook_that_is_opened_without_a_kernel_has_its_height(lab: Lab) -> None:
    notebook = lab.open(["import deeppool as dp", "dp.widgets.Panel([dp.widgets.LiveFigure()])"])
    notebook.figure(notebook.panel(".dp-panel"))
    (before,) = notebook.page.evaluate(SHOWN)
    notebook.save_widgets()
    notebook.hide()
    lab.server.end_kernels(notebook.path)
    notebook.show()
    notebook.until(lambda: notebook.page.evaluate(SHOWN) == [before])


def test_what_the_kernel_draws_while_the_library_loads_is_drawn_when_it_has(lab: Lab) -> None:
    notebook = lab.open_shared(["first = 1"])
    notebook.page.evaluate(GATE)
    notebook.replace_cells([HELD, TWO])
    notebook.run_all()
    notebook.value("setattr(go.FigureWidget, '_esm', loaded)")
    # The figures have started, and their library has not.
    notebook.until(lambda: notebook.page.evaluate("Object.keys(globalThis.deeppoolPlotly).length") == 1)
    notebook.page.evaluate("giveUp()")
    notebook.value("figures[0].draw(go.Figure(go.Scatter(x=[0, 1], y=[5, 6])))")
    notebook.value("figures[1].draw(go.Figure([go.Bar(x=[0, 1], y=[7, 8]), go.Bar(x=[0, 1], y=[1, 2])]))")
    panel = notebook.panel(".dp-panel")
    assert panel.locator(".js-plotly-plot").count() == 0
    notebook.page.evaluate("open()")
    lines, bars = (notebook.figure(panel, index) for index in range(2))
    assert [trace["y"] for trace in lines.traces] == [[5, 6]]
    assert [trace["y"] for trace in bars.traces] == [[7, 8], [1, 2]]
    notebook.value("figures[1].draw(go.Figure(go.Bar(x=[0, 1], y=[3, 4])))")
    notebook.until(lambda: [trace["y"] for trace in notebook.figure(panel, 1).traces] == [[3, 4]])
