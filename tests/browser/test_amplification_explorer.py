"""The explorer in a page: keys on its sliders change the plan, what its figures hold and what is drawn."""

import time
from collections.abc import Callable

from playwright.sync_api import FloatRect, Locator

from deeppool.widgets.live_figure import FADED
from tests.browser.figure import Drawn
from tests.browser.lab import Lab
from tests.browser.notebook import Notebook

CELLS = [
    "import deeppool as dp",
    'explorer = dp.widgets.AmplificationExplorer(dp.find_profile("vgg16-cpu"))\nexplorer',
]
LEAST_TRACK = 90
"""Pixels of a slider's track that a hand finds."""
CUT_READOUTS = """panel => {
    const right = panel.getBoundingClientRect().right;
    const cut = text => text.scrollWidth > text.clientWidth || text.getBoundingClientRect().right > right;
    return [...panel.querySelectorAll('.widget-readout')].filter(cut).map(text => text.textContent);
}"""
"""Values beside sliders that are wider than their boxes, or reach beyond the panel."""
COMPARISON, LAYERS, WHY = 0, 1, 2
CLICK_SECONDS = 10.0
"""Seconds after which a click counts as lost."""
COUNTS = "[layer.gpu_count for layer in explorer.plan.layers]"


def test_the_sliders_change_the_plan_and_its_figures_by_keyboard(lab: Lab) -> None:
    notebook = lab.open_shared(CELLS)
    panel = notebook.panel(".dp-amplification-explorer")

    frontier, layers = (notebook.figure(panel, index) for index in (COMPARISON, LAYERS))
    assert layers.trace("GPUs")["y"] == notebook.value(COUNTS)
    notebook.press(notebook.slider(panel, "amplification limit (×)"), *["ArrowLeft"] * 4)
    layers = notebook.changed(panel, layers, LAYERS)
    frontier = notebook.changed(panel, frontier, COMPARISON)
    notebook.until(lambda: notebook.value("explorer.plan.amplification_limit") == 1.3)
    notebook.until(lambda: notebook.figure(panel, LAYERS).trace("GPUs")["y"] == notebook.value(COUNTS))
    assert "1.3×" in panel.inner_text()

    notebook.press(notebook.slider(panel, "GPUs"), "ArrowRight")
    layers = notebook.changed(panel, layers, LAYERS)
    notebook.until(lambda: "on 16 GPUs" in notebook.figure(panel, COMPARISON).title)
    frontier = notebook.changed(panel, frontier, COMPARISON)
    assert notebook.value("explorer.plan.gpus") == 16
    # What a screen reader says: ipywidgets' own is the number of the option, of a slider without a name.
    assert panel.get_by_role("slider", name="GPUs", exact=True).get_attribute("aria-valuetext") == "16"
    assert len(frontier.trace("data parallel")["x"]) == 5

    notebook.press(notebook.button(panel, "static partitions"), "Enter")
    notebook.until(lambda: "static partition, data parallel" in names(notebook.figure(panel, COMPARISON)))
    point = notebook.changed(panel, frontier, COMPARISON).trace("this plan")
    assert abs(point["x"][0] - notebook.value("explorer.plan.speedup")) < 1e-6

    notebook.press(notebook.slider(panel, "GPUs"), "ArrowRight", "ArrowRight")
    notebook.until(lambda: "64 GPUs cannot share a global batch of 32" in notebook.problem(panel))
    # What belongs to the controls before is faded, and the message stands between it and the controls.
    notebook.until(lambda: notebook.figure(panel, LAYERS).trace("GPUs").get("opacity") == FADED)
    slider, figure = notebook.slider(panel, "GPUs"), panel.locator(".js-plotly-plot")
    assert bottom(slider) < bottom(panel.get_by_role("alert")) < bottom(figure)
    # The button is below two figures, where the message is out of sight.
    notebook.press(notebook.button(panel, "Run this here"), "Enter")
    notebook.until(lambda: bottom(panel.get_by_role("alert")) > 0)
    notebook.press(notebook.button(panel, "use 32 GPUs"), "Enter")
    notebook.until(lambda: notebook.problem(panel) == "")
    notebook.press(notebook.button(panel, "Save plan"), "Enter")
    notebook.until(lambda: "saved:" in panel.inner_text())
    assert notebook.value("dp.load(explorer.file.value).gpus") == 32
    check_layers(notebook, panel)
    check_columns(notebook, panel)


def check_layers(notebook: Notebook, panel: Locator) -> None:
    """A click on a layer, of the bars or of the graph, shows why it has its GPUs."""
    plot = panel.locator(".js-plotly-plot").nth(LAYERS)
    # A figure that is drawn again between the press and the release of the mouse sees no click.
    assert notebook.value("explorer.wait(300)")
    second = notebook.value("explorer.plan.layers[1].name")
    bar = plot.locator(".x2y2 .barlayer .point path").nth(1)
    click(notebook, plot, bar, lambda: notebook.value("explorer.selected") == second)
    notebook.until(lambda: "why" in notebook.figure(panel, WHY).title)
    notebook.press(notebook.button(panel, "graph, by GPUs"), "Enter")
    notebook.until(lambda: "GPUs of 22 layers" in notebook.figure(panel, LAYERS).title)
    nodes = plot.locator(".scatterlayer path.point")
    notebook.until(lambda: nodes.count() == 22)
    assert notebook.value("explorer.wait(300)")
    last = notebook.value("explorer.plan.layers[-1].name")
    click(notebook, plot, nodes.last, lambda: notebook.figure(panel, WHY).title.startswith(f"{last}: why"))
    assert last in panel.get_by_label("why this many GPUs", exact=True).input_value()


def click(notebook: Notebook, plot: Locator, mark: Locator, done: Callable[[], bool]) -> None:
    """Clicks a mark of a figure as a hand does: plotly counts no click before it has seen the mouse on the mark.

    Nor does it count one between whose press and release the figure is drawn again, which takes long on a busy machine:
    the hand clicks again after some seconds in which nothing was done.
    """
    assert not done()
    again_at = 0.0

    def hovers() -> bool:
        box = mark.bounding_box()
        assert box is not None
        notebook.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
        return plot.locator(".hovertext").count() > 0

    def clicked() -> bool:
        nonlocal again_at
        if time.monotonic() >= again_at and not done():
            mark.evaluate("mark => mark.scrollIntoView({block: 'center'})")
            notebook.until(hovers)
            notebook.page.mouse.down()
            notebook.page.mouse.up()
            again_at = time.monotonic() + CLICK_SECONDS
        return done()

    notebook.until(clicked)


def check_columns(notebook: Notebook, panel: Locator) -> None:
    """Controls stand in two columns on a wide page and in one on a narrow page, and sliders keep their length."""
    tracks = panel.locator(".widget-slider .noUi-base")
    for width, columns in ((1280, 2), (800, 1)):
        notebook.page.set_viewport_size({"width": width, "height": 900})
        notebook.until(lambda: notebook.page.evaluate("innerWidth") == width)  # noqa: B023
        # Lab lays the page out some time after it has the size.
        notebook.until(lambda: min(box["width"] for box in boxes_of(tracks)) > LEAST_TRACK)
        notebook.until(lambda: len({box["x"] for box in boxes_of(tracks)}) == columns)  # noqa: B023
        assert panel.evaluate(CUT_READOUTS) == []
        room = panel.evaluate("panel => panel.getBoundingClientRect().width")
        for index in (COMPARISON, LAYERS, WHY):
            notebook.until(lambda: abs(notebook.figure(panel, index).width - room) < 20)  # noqa: B023
            drawn = panel.locator(".js-plotly-plot").nth(index).locator(".main-svg").first
            notebook.until(lambda: (drawn.bounding_box() or {"width": 0})["width"] <= room)  # noqa: B023


def boxes_of(found: Locator) -> list[FloatRect]:
    """Where each of some elements is."""
    boxes = [found.nth(index).bounding_box() for index in range(found.count())]
    return [box for box in boxes if box is not None]


def bottom(found: Locator) -> float:
    box = found.first.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def names(figure: Drawn) -> set[str]:
    return {trace["name"] for trace in figure.traces}
