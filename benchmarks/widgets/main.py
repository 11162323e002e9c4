"""How long from a moved slider to the figure, and from "Run All" to the first widget?

The explorer's sliders at 1,024 GPUs and the timeline's window, in the kernel alone and in a real JupyterLab in a
headless Chromium: from the key press to the page's next frame after plotly has drawn. And each notebook as it comes,
in a fresh kernel: from the command to the first widget. And five figures in a page that has just been opened, as
plotly's own widget and as deeppool's: from the command to the last figure, and what that takes.

    python benchmarks/widgets/main.py
    python benchmarks/widgets/main.py --models "Inception-v3" "GPT of 1,155 layers"
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from playwright.sync_api import Locator

import deeppool as dp
from benchmarks.planner.models import gpt, made_up  # noqa: F401  (of the expressions)
from tests.browser.lab import Lab, opened
from tests.browser.notebook import Notebook

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PROFILES = {
    "VGG-16": "dp.find_profile('vgg16-cpu')",
    "Inception-v3": "dp.find_profile('inception_v3-cpu')",
    "GPT of 1,155 layers": "made_up(gpt())",
}
"""Layer times; those of the GPT are made up."""
IMPORTS = "import deeppool as dp\nfrom benchmarks.planner.models import gpt, made_up"
GPUS, BATCH = 1024, 1024
LONGEST_WAIT = 300
"""Seconds for the first frontier."""
LIMITS = "amplification limit (×)"


def explorer_of(model: str) -> str:
    """Returns the expression of an explorer."""
    return f"dp.widgets.AmplificationExplorer({PROFILES[model]}, gpus={GPUS}, global_batch={BATCH})"


def timelines_of(model: str) -> str:
    """Returns the expression of two timelines."""
    plans = f"[dp.plan(profile, gpus, gpus, 2.0) for profile in [{PROFILES[model]}] for gpus in (8, {GPUS})]"
    return f"dp.widgets.TimelineView(*{plans})"


DATA = "go.Figure(go.Scatter(x=[0, 1], y=[number, 1]))"
FIGURES = {
    "plotly's own widget": f"go.FigureWidget({DATA})",
    "deeppool's, which share plotly's library": f"dp.widgets.LiveFigure({DATA})",
}
NUMBER = 5
DRAWN = "[...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.querySelector('svg.main-svg')).length"

FORGET = "[explorer._plans._cache.pop(kind, None) for kind in ('plan', 'first plan')]"
"""Makes all limits new, as they are in an explorer that has just been opened; frontiers stay known."""

# When the sentence changed first and last, in the frame that shows it. A sentence on the limit before, of a search that
# ends as the key is pressed, does not count.
SENTENCE = """panel => {
    const slider = [...panel.querySelectorAll(".widget-slider")].find(each => each.textContent.includes("limit"));
    const shown = () => {
        const limit = slider.querySelector(".widget-readout").textContent;
        const said = limit === "no limit" ? "no limit on" : `more than ${limit}×`;
        return panel.querySelector(".dp-summary").textContent.includes(said);
    };
    const changed = () => requestAnimationFrame(() => {
        if (!shown()) return;
        panel.changedAt = performance.now();
        panel.drawnAt ??= panel.changedAt;
    });
    panel.drawnAt = null;
    new MutationObserver(changed).observe(panel.querySelector(".dp-summary"),
        {childList: true, characterData: true, subtree: true});
    addEventListener("keydown", () => { panel.pressedAt = performance.now(); panel.drawnAt = null; }, {capture: true});
}"""
# When plotly drew last. Of a key that is pressed and drawn for, the page's own clock knows both moments.
WATCH = """plot => {
    plot.drawnAt = null;
    plot.on("plotly_afterplot", () => requestAnimationFrame(() => { plot.drawnAt = performance.now(); }));
    addEventListener("keydown", () => { plot.pressedAt = performance.now(); plot.drawnAt = null; }, {capture: true});
}"""
WAIT = "plot => plot.drawnAt === null ? null : plot.drawnAt - plot.pressedAt"
LAST = "panel => panel.changedAt - panel.pressedAt"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--models", nargs="*", choices=PROFILES, default=list(PROFILES)[:1], metavar="MODEL")
    parser.add_argument("--no-browser", action="store_true", help="the kernel alone")
    parser.add_argument("--run-all", action="store_true", help="the notebooks instead of the sliders")
    parser.add_argument("--figures", action="store_true", help="five figures instead of the sliders")
    arguments = parser.parse_args()
    print(dp.environment(), end="\n\n")
    if arguments.run_all:
        print("| from Run All to the first widget | median | spread |\n|---|---|---|")
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as lab:
            for path in sorted(NOTEBOOKS.glob("*.ipynb")):
                times = [first_widget(lab, path) for _ in range(arguments.repeats)]
                print(row(path.stem, times), flush=True)
        return
    if arguments.figures:
        print("| five figures, from Run All to the last one | median | spread | to the page | memory of the page |")
        print("|---|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as lab:
            found = [{name: last_figure(lab, name) for name in FIGURES} for _ in range(arguments.repeats)]
            for name in FIGURES:
                times, *rest = zip(*(each[name] for each in found), strict=True)
                print(f"{row(name, times)} {' | '.join(f'{statistics.median(one):.0f} MB' for one in rest)} |")
        return
    print("| from the slider to the figure | median | spread |\n|---|---|---|")
    for model in arguments.models:
        for name, times in kernel(model, arguments.repeats).items():
            print(row(f"{model}, kernel: {name}", times), flush=True)
        if not arguments.no_browser:
            with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as lab:
                for name, times in browser(lab, model, arguments.repeats):
                    print(row(f"{model}, browser: {name}", times), flush=True)
                lab.end()


def row(name: str, times: Sequence[float]) -> str:
    """Median and range in milliseconds."""
    return f"| {name} | {statistics.median(times):.0f} ms | {min(times):.0f} … {max(times):.0f} |"


def kernel(model: str, repeats: int) -> dict[str, list[float]]:
    """The widget's own callbacks, without a page: what is sent is ready when they return."""
    explorer = eval(explorer_of(model))
    explorer.wait()
    view = eval(timelines_of(model))
    sliders = {
        f"limit, {GPUS:,} GPUs": (explorer.limit, [value for _, value in explorer.limit.options][4:]),
        "GPUs, 64 to 1,024, frontier known": (explorer.gpus, [64, 128, 256, 512, 1024]),
        f"window of a timeline, 8 and {GPUS:,} GPUs": (view.window, windows(view.window.max)),
    }
    found = {}
    for name, (slider, values) in sliders.items():
        # Once around, so that what is computed once is.
        for value in values:
            slider.value = value
            explorer.wait()
        found[name] = [timed(slider, values[count % len(values)]) for count in range(repeats)]
    return found


def first_widget(lab: Lab, path: Path) -> float:
    """Milliseconds from Run All until the first widget is there; the notebook then ends unfinished."""
    copy = lab.server.root / path.name
    shutil.copy(path, copy)
    notebook = Notebook(lab.server, lab.browser, copy.name)
    notebook.show()
    started = time.perf_counter()
    notebook.start_all()
    notebook.page.locator(".dp-panel").first.wait_for()
    took = 1e3 * (time.perf_counter() - started)
    notebook.hide()
    lab.server.end_kernels("")
    return took


def last_figure(lab: Lab, name: str) -> tuple[float, float, float]:
    """Milliseconds from Run All until five figures are drawn, megabytes that came until then, and the page's memory."""
    notebook = lab.open(["import ipywidgets, plotly.graph_objects as go\nimport deeppool as dp"])
    arrived: list[int] = []
    session = lab.browser.new_cdp_session(notebook.page)
    session.send("Network.enable")
    session.on("Network.webSocketFrameReceived", lambda frame: arrived.append(len(frame["response"]["payloadData"])))
    notebook.replace_cells([f"ipywidgets.VBox([{FIGURES[name]} for number in range({NUMBER})])"])
    started = time.perf_counter()
    notebook.run_all()
    notebook.until(lambda: notebook.page.evaluate(DRAWN) == NUMBER)
    took = 1e3 * (time.perf_counter() - started)
    memory = notebook.page.evaluate("performance.memory.usedJSHeapSize")
    lab.end()
    return took, sum(arrived) / 1e6, memory / 1e6


def windows(longest: float) -> list[tuple[float, float]]:
    """From wide to narrow."""
    return [(share * longest / 2, (1 - share / 2) * longest) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)]


def timed(slider: object, value: object) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    slider.value = value  # type: ignore[attr-defined]
    return 1e3 * (time.perf_counter() - started)


def browser(lab: Lab, model: str, repeats: int) -> Iterator[tuple[str, list[float]]]:
    """From a key on a slider to the next frame after the last figure that it changes was drawn."""
    cells = [IMPORTS, f"explorer = {explorer_of(model)}\nexplorer", f"view = {timelines_of(model)}\nview"]
    notebook = lab.open(cells, seconds=LONGEST_WAIT)
    explorer, view = notebook.panel(".dp-amplification-explorer"), notebook.panel(".dp-timeline-view")
    notebook.until(lambda: notebook.value("explorer.wait(60)"), seconds=LONGEST_WAIT)
    yield f"limit, {GPUS:,} GPUs, plan and sentence", sentence(notebook, explorer, repeats)
    moved, _ = new_limits(notebook, explorer, repeats, patient=False)
    yield f"new limit each 0.7 s, {GPUS:,} GPUs, plan and sentence", moved
    first, last = new_limits(notebook, explorer, repeats, patient=True)
    yield f"new limit, {GPUS:,} GPUs, plan and sentence", first
    yield "the same, the plan of the whole search", last
    figures = {
        f"limit, {GPUS:,} GPUs, layers": (explorer, 1, LIMITS),
        f"limit, {GPUS:,} GPUs, frontier": (explorer, 0, LIMITS),
        f"window of a timeline, 8 and {GPUS:,} GPUs": (view, 0, notebook.value("view.window.description")),
    }
    for name, (panel, index, label) in figures.items():
        # Each from the same limit: where neighbouring limits have one plan, a figure stays as it is.
        notebook.value("(setattr(explorer.limit, 'value', 2.0), explorer.wait(60))")
        notebook.page.wait_for_timeout(1000)
        plot = panel.locator(".js-plotly-plot").nth(index)
        slider = panel.locator(".widget-slider", has_text=label).locator(".noUi-handle").first
        plot.evaluate(WATCH)
        slider.focus()
        if panel is view:
            # A window that is a step shorter than the iteration still shows all of it.
            notebook.page.keyboard.press("ArrowRight")
            notebook.page.wait_for_timeout(1000)
        times: list[float] = []
        for count in range(repeats):
            notebook.page.keyboard.press("ArrowLeft" if count // 3 % 2 == 0 and panel is explorer else "ArrowRight")
            notebook.until(lambda plot=plot: plot.evaluate(WAIT) is not None)
            # Until nothing more comes: the last figure that was drawn for this key counts.
            notebook.page.wait_for_timeout(300)
            times.append(plot.evaluate(WAIT))
        yield name, times


def sentence(notebook: Notebook, panel: Locator, repeats: int) -> list[float]:
    """From a key on the limit's slider to the frame that shows the new plan's sentence."""
    panel.evaluate(SENTENCE)
    slider = panel.locator(".widget-slider", has_text=LIMITS).locator(".noUi-handle").first
    slider.focus()
    times: list[float] = []
    for count in range(repeats):
        notebook.page.keyboard.press("ArrowLeft" if count // 3 % 2 == 0 else "ArrowRight")
        notebook.until(lambda: panel.evaluate(WAIT) is not None)
        # The figures of this key are not to count for the next one.
        notebook.page.wait_for_timeout(700)
        times.append(panel.evaluate(WAIT))
    return times


def new_limits(notebook: Notebook, panel: Locator, repeats: int, *, patient: bool) -> tuple[list[float], list[float]]:
    """From a key to the first sentence and to the last one, at limits that the explorer has not seen.

    Args:
        notebook: where ``panel`` is the explorer.
        panel: its element, whose sentence is watched.
        repeats: number of limits.
        patient: whether each search ends before the next key; else that key cancels it.
    """
    slider = panel.locator(".widget-slider", has_text=LIMITS).locator(".noUi-handle").first
    first: list[float] = []
    last: list[float] = []
    while len(first) < repeats:
        # Up from 2 to no limit, down from 2 to 1.05: under 1 no plan of Inception-v3 fits into memory.
        for key, steps in (("ArrowRight", 7), ("ArrowLeft", 8)):
            notebook.value(f"({FORGET}, setattr(explorer.limit, 'value', 1.0), setattr(explorer.limit, 'value', 2.0))")
            notebook.until(lambda: notebook.value("explorer.wait(60)"), seconds=LONGEST_WAIT)
            notebook.page.wait_for_timeout(1000)
            slider.focus()
            for _ in range(min(steps, repeats - len(first))):
                notebook.page.keyboard.press(key)
                notebook.until(lambda: panel.evaluate(WAIT) is not None)
                notebook.page.wait_for_timeout(700)
                first.append(panel.evaluate(WAIT))
                if patient:
                    notebook.until(lambda: notebook.value("explorer.wait(60)"), seconds=LONGEST_WAIT)
                    notebook.page.wait_for_timeout(700)
                    last.append(panel.evaluate(LAST))
    return first, last


if __name__ == "__main__":
    main()
