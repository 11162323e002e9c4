"""Notebook scenes that docs/screenshots.py photographs: the cells that display a widget, and the input before that.

Scenes really run: their numbers are those of the machine that made the picture.
"""

from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Locator

from tests.browser.notebook import Notebook

IMPORT = "import deeppool as dp"
TWO_BRANCHES = """
example = "examples.two_branch:two_branch"
profile = dp.profile(example, device="cpu", batch_sizes=[4, 8, 16])
plan = dp.plan(profile, dp.find_cluster("loopback", 2), global_batch=16)
"""
RESNET = """
profile = dp.profile("resnet18", (3, 64, 64), device="cpu", batch_sizes=[2, 4, 8])
plan = dp.plan(profile, dp.find_cluster("loopback", 2), 8, 2.0)
"""
TWO_RUNS = """
from deeppool.records.files import save_run
for policy in ("naive", "priority"):
    save_run(dp.launch(plan, background=example, policy=policy, seconds=12), "runs")
dp.save(plan, "runs/plan.json")
"""


def no_preparation(notebook: Notebook, panel: Locator) -> None:
    """Leaves the widget as it opens."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One widget in its own notebook."""

    cells: tuple[str, ...]
    """Cells to run; the last one displays the widget."""
    panel: str
    """CSS selector of the widget."""
    prepare: Callable[[Notebook, Locator], None] = no_preparation
    """Presses keys and waits until the widget shows the intended state."""


def select_layers(notebook: Notebook, panel: Locator) -> None:
    """Selects the three most expensive layers in the sorted table."""
    rows = panel.locator("tbody button")
    rows.first.wait_for()
    notebook.press(rows.nth(0), "Enter", "ArrowDown", "Enter", "ArrowDown", "Enter")
    notebook.until(lambda: len(notebook.value("panel.selected")) == 3)


def wait_for_graph(notebook: Notebook, panel: Locator) -> None:
    """Waits until the graph is captured."""
    notebook.until(lambda: len(notebook.figure(panel).traces) > 1, seconds=120)


def change_the_bound(notebook: Notebook, panel: Locator) -> None:
    """Runs both jobs under two bounds."""
    notebook.press(notebook.button(panel, "Launch"), "Enter")
    notebook.until(lambda: has_bounds(notebook, panel, 1), seconds=900)
    notebook.press(notebook.slider(panel, "Bound (% slower)"), *["ArrowLeft"] * 10)
    notebook.until(lambda: has_bounds(notebook, panel, 2), seconds=900)
    # Until the end, so that nothing changes while the picture is taken.
    notebook.until(notebook.button(panel, "Launch").is_enabled, seconds=900)


def has_bounds(notebook: Notebook, panel: Locator, count: int) -> bool:
    """Whether the chart has iterations under ``count`` bounds."""
    plot = panel.locator(".js-plotly-plot").first
    if not plot.is_visible():
        return False
    drawn = notebook.figure(panel)
    bounds = {value for value in drawn.trace("bound")["y"] if value is not None}
    return len(bounds) >= count and len(drawn.trace("collocated")["y"]) > 5


def compare_two_runs(notebook: Notebook, panel: Locator) -> None:
    """Compares the newest run with the previous one."""
    before = notebook.figure(panel)
    notebook.press(panel.locator("select").first, "ArrowDown")
    notebook.changed(panel, before)
    notebook.press(panel.locator("select").last, "ArrowDown", "ArrowDown", "ArrowDown")
    notebook.until(lambda: "noise explains" in panel.inner_text())


def change_the_limit(notebook: Notebook, panel: Locator) -> None:
    """Sets a limit that changes the plan, and waits for the frontier."""
    slider = panel.locator(".widget-slider", has_text="amplification limit").locator(".noUi-handle").first
    notebook.press(slider, "ArrowRight", "ArrowRight", "ArrowRight")
    notebook.until(lambda: "4×" in panel.inner_text() and "being computed" not in panel.inner_text())


SCENES = {
    "model-light": Scene(
        (
            IMPORT,
            "profile = dp.find_profile('resnet50-h200')\n"
            "panel = dp.widgets.ModelPicker('resnet50', profile.graph.input_shape, profile=profile)\npanel",
        ),
        ".dp-model-picker",
        wait_for_graph,
    ),
    "profile-dark": Scene(
        (IMPORT, "panel = dp.widgets.ProfilePanel(dp.find_profile('vgg16-h200'))\npanel"),
        ".dp-profile-panel",
        select_layers,
    ),
    "collocation-panel-dark": Scene(
        (
            IMPORT,
            RESNET,
            'dp.widgets.CollocationPanel(plan, background="resnet18", max_slowdown=0.1, seconds=40)',
        ),
        ".dp-collocation-panel",
        change_the_bound,
    ),
    "run-browser-light": Scene(
        (IMPORT, TWO_BRANCHES, TWO_RUNS, 'dp.widgets.RunBrowser("runs")'), ".dp-run-browser", compare_two_runs
    ),
    "explorer-light": Scene(
        (IMPORT, 'dp.widgets.AmplificationExplorer(dp.find_profile("vgg16-h200"))'),
        ".dp-amplification-explorer",
        change_the_limit,
    ),
    "timelines-dark": Scene(
        (
            IMPORT,
            'profile = dp.find_profile("vgg16-h200")',
            "dp.widgets.TimelineView(dp.plan(profile, 8, 32, 4.0), dp.plan(profile, 64, 256, 8.0))",
        ),
        ".dp-timeline-view",
    ),
}
"""Scenes by the name of their picture, ``docs/pictures/NAME.png``, which ends in its theme."""
