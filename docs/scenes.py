"""What docs/screenshots.py pictures: of every widget, the cells that show it and what is done before the picture.

A scene runs for real: its numbers are those of the machine that made the picture.
"""

from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Locator

from tests.browser.notebook import Notebook

IMPORT = "import deeppool as dp"
TRAINING = """
from examples.own_training import job
training = job()
profile = dp.profile(training.capture(), device="cpu", batch_sizes=[8, 16, 32])
plan = dp.plan(profile, dp.find_cluster("loopback", 2), global_batch=32)
"""

TWO_BRANCHES = """
example = "examples.two_branch:two_branch"
profile = dp.profile(example, device="cpu", batch_sizes=[4, 8, 16])
plan = dp.plan(profile, dp.find_cluster("loopback", 2), global_batch=16)
"""
TWO_RUNS = """
from deeppool.records.files import save_run
for policy in ("naive", "priority"):
    save_run(dp.launch(plan, background=example, policy=policy, seconds=12), "runs")
dp.save(plan, "runs/plan.json")
"""


def at_once(notebook: Notebook, panel: Locator) -> None:
    """The widget is worth a picture as it opens."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One widget in a notebook of its own."""

    cells: tuple[str, ...]
    """The last one shows the widget."""
    panel: str
    """CSS selector of the widget."""
    prepare: Callable[[Notebook, Locator], None] = at_once
    """Presses keys and waits, until the widget shows what the picture is about; then the picture is taken."""


def let_it_train(notebook: Notebook, panel: Locator) -> None:
    """Far enough for a loss, with the devices shown for some seconds."""
    notebook.until(lambda: "loss" in panel.inner_text(), seconds=300)
    notebook.press(notebook.button(panel, "Devices"), "Enter")
    see_samples(notebook, panel)


def see_samples(notebook: Notebook, panel: Locator) -> None:
    """Lines with enough samples to see a course."""
    notebook.until(lambda: len(notebook.figure(panel).trace("available")["y"]) >= 30)


def see_times(notebook: Notebook, panel: Locator) -> None:
    """The most expensive layers chosen, as the table is sorted."""
    rows = panel.locator("tbody button")
    rows.first.wait_for()
    notebook.press(rows.nth(0), "Enter", "ArrowDown", "Enter", "ArrowDown", "Enter")
    notebook.until(lambda: len(notebook.value("panel.selected")) == 3)


def see_graph(notebook: Notebook, panel: Locator) -> None:
    """The graph is there as soon as it is captured."""
    notebook.until(lambda: len(notebook.figure(panel).traces) > 1, seconds=120)


def change_the_bound(notebook: Notebook, panel: Locator) -> None:
    """Both jobs have run under two bounds."""
    notebook.press(notebook.button(panel, "Launch"), "Enter")
    notebook.until(lambda: see_bounds(notebook, panel, 1), seconds=300)
    notebook.press(notebook.slider(panel, "Bound (% slower)"), *["ArrowLeft"] * 10)
    notebook.until(lambda: see_bounds(notebook, panel, 2), seconds=300)
    # To the end, so that nothing moves while the picture is taken.
    notebook.until(notebook.button(panel, "Launch").is_enabled, seconds=300)


def see_bounds(notebook: Notebook, panel: Locator, count: int) -> bool:
    """Whether the chart has iterations under so many bounds."""
    plot = panel.locator(".js-plotly-plot").first
    if not plot.is_visible():
        return False
    drawn = notebook.figure(panel)
    bounds = {value for value in drawn.trace("bound")["y"] if value is not None}
    return len(bounds) >= count and len(drawn.trace("collocated")["y"]) > 5


def compare_with_the_older(notebook: Notebook, panel: Locator) -> None:
    """The newest run is shown; the one before it is the second choice below it."""
    before = notebook.figure(panel)
    notebook.press(panel.locator("select").first, "ArrowDown")
    notebook.changed(panel, before)
    notebook.press(panel.locator("select").last, "ArrowDown", "ArrowDown", "ArrowDown")
    notebook.until(lambda: "noise explains" in panel.inner_text())


def see_the_frontier(notebook: Notebook, panel: Locator) -> None:
    """A limit that changes the plan, and every efficient plan around it."""
    slider = panel.locator(".widget-slider", has_text="amplification limit").locator(".noUi-handle").first
    notebook.press(slider, "ArrowLeft", "ArrowLeft")
    notebook.until(lambda: "1.5×" in panel.inner_text() and "being computed" not in panel.inner_text())


def zoom_in(notebook: Notebook, panel: Locator) -> None:
    """Far enough to read the names of layers."""
    before = notebook.figure(panel)
    notebook.press(notebook.button(panel, "Narrower"), "Enter")
    notebook.changed(panel, before)


SCENES = {
    "model": Scene(
        (
            IMPORT,
            "profile = dp.find_profile('resnet50-cpu')\n"
            "panel = dp.widgets.ModelPicker('resnet50', profile.graph.input_shape, profile=profile)\npanel",
        ),
        ".dp-model-picker",
        see_graph,
    ),
    "profile": Scene(
        (IMPORT, "panel = dp.widgets.ProfilePanel(dp.find_profile('vgg16-cpu'))\npanel"), ".dp-profile-panel", see_times
    ),
    "collocation-panel": Scene(
        (
            IMPORT,
            TWO_BRANCHES,
            "dp.widgets.CollocationPanel(plan, background=example, max_slowdown=0.1, seconds=40)",
        ),
        ".dp-collocation-panel",
        change_the_bound,
    ),
    "run-browser": Scene(
        (IMPORT, TWO_BRANCHES, TWO_RUNS, 'dp.widgets.RunBrowser("runs")'), ".dp-run-browser", compare_with_the_older
    ),
    "explorer": Scene(
        (IMPORT, 'dp.widgets.AmplificationExplorer(dp.find_profile("vgg16-cpu"))'),
        ".dp-amplification-explorer",
        see_the_frontier,
    ),
    "timelines": Scene(
        (
            IMPORT,
            'profile = dp.find_profile("vgg16-cpu")',
            "dp.widgets.TimelineView(dp.plan(profile, 8, 32, 2.0), dp.plan(profile, 1024, 1024, 2.0))",
        ),
        ".dp-timeline-view",
        zoom_in,
    ),
    "run": Scene(
        (IMPORT, TRAINING, "run = dp.start(dp.train, plan, training, steps=2000)\nrun"), ".dp-run-panel", let_it_train
    ),
    "runs": Scene(
        (IMPORT, TRAINING, "run = dp.start(dp.train, plan, training, steps=2000)", "dp.widgets.RunsPanel()"),
        ".dp-runs-panel",
        lambda notebook, panel: notebook.until(lambda: "update" in panel.inner_text(), seconds=300),
    ),
    "telemetry": Scene((IMPORT, "dp.widgets.TelemetryPanel()"), ".dp-telemetry-panel", see_samples),
}
"""By the name of the picture: ``docs/pictures/NAME-light.png`` and ``NAME-dark.png``."""
