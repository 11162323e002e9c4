"""Notebooks as they run: to their end, each with its records and a report that shows its figures without a network."""

import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import deeppool as dp
from deeppool.evaluation.execution import ExecutedNotebook
from deeppool.evaluation.notebook_html import FIGURE
from deeppool.evaluation.notebooks import evaluate, find_notebooks
from tests.notebooks.execute import NAMES, ROOT, cells_of, is_figure, parameters_of
from tests.sampling import STRESS, sampled

EXAMPLE = "examples.two_branch:two_branch"
TINY = {
    "model": EXAMPLE,
    "input_shape": [3, 32, 32],
    "batch_sizes": [1, 2, 4],
    "global_batch": 4,
    "background": EXAMPLE,
    "seconds": 1,
}
TINIEST: dict[str, dict[str, Any]] = {
    "planning": {"gpus": 4, "limits": [1.0, None]},
    "timelines": {"cluster_gpus": [2, 16]},
    "collocation": {"policies": ["priority"]},
    "your-own-model": {"steps": 3, "checkpoint_every": 2, "background_batch": 2},
}
"""Beside those of ``TINY`` that a notebook has."""
RECORDS = {
    "burst-parallel": {"profile.json": "Profile", "plan.json": "Plan", "run.json": "RunRecord"},
    "model-and-layers": {"layers.json": "Profile", "layers-h100.json": "Profile"},
    "planning": {"plan-at-scale.json": "Plan"},
    "timelines": {"timeline-run.json": "RunRecord"},
    "collocation": {"collocation-priority.json": "RunRecord", "collocation-bounded.json": "RunRecord"},
    "runs": {
        "limit-1.0-plan.json": "Plan",
        "limit-1.0-run.json": "RunRecord",
        "limit-2.0-plan.json": "Plan",
        "limit-2.0-run.json": "RunRecord",
        "replan.json": "Replan",
    },
    "your-own-model": {"own-profile.json": "Profile", "own-plan.json": "Plan", "own-training.json": "TrainingRecord"},
}
"""What each leaves beside its report."""
KEPT = ["burst-parallel"]
"""Run without `make stress`; a browser test runs a second, and calls of all of them are checked against the library."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()


Execute = Callable[[str], ExecutedNotebook]

runs_notebooks = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Execute]:
    """Runs a notebook with tiny parameters, once for all tests."""
    reports = tmp_path_factory.mktemp("reports")

    @cache
    def run(name: str) -> ExecutedNotebook:
        wanted = {**TINY, **TINIEST.get(name, {})}
        parameters = {key: wanted[key] for key in parameters_of(find_notebooks()[name]) & set(wanted)}
        (result,) = evaluate([name], reports, parameters=parameters)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield run


@pytest.mark.parametrize("name", sampled(NAMES, *KEPT))
class TestExecuted:
    """Every notebook, run with tiny parameters."""

    pytestmark = runs_notebooks

    @pytest.mark.slow
    def test_it_runs_to_its_end_and_complains_of_nothing(self, name: str, execute: Execute) -> None:
        for cell in cells_of(Path(execute(name).notebook)):
            if cell.cell_type == "code":
                assert cell.execution_count is not None
                complaints = [out.text for out in cell.outputs if out.get("name") == "stderr"]
                assert complaints == [], cell.source
                if cell.source.startswith("print("):
                    assert "".join(out.get("text", "") for out in cell.outputs).strip(), cell.source

    def test_every_figure_and_widget_has_something_to_show(self, name: str, execute: Execute) -> None:
        cells = [cell for cell in cells_of(Path(execute(name).notebook)) if cell.cell_type == "code"]
        for cell in cells:
            if is_figure(cell.source):
                assert figures_of(cell) == 1, cell.source
            if "dp.widgets." in cell.source:
                assert cell.outputs, cell.source

    def test_it_leaves_its_records_beside_its_report(self, name: str, execute: Execute) -> None:
        folder = Path(execute(name).html).parent
        assert folder.name == name
        loaded = {file: type(dp.load(folder / file)).__name__ for file in RECORDS[name]}
        assert loaded == RECORDS[name]

    def test_its_report_links_to_no_notebook_which_may_not_be_there(self, name: str, execute: Execute) -> None:
        links = re.findall(r'<a href="([^"]+)"', Path(execute(name).html).read_text(encoding="utf-8"))
        assert [link for link in links if link.endswith(".ipynb")] == []


def figures_of(cell: Any) -> int:
    """How many figures an executed cell shows."""
    return sum(FIGURE in output.get("data", {}) for output in cell.outputs)


class TestAnswers:
    """What single notebooks say, against their records."""

    pytestmark = runs_notebooks

    def test_the_first_plans_and_runs(self, execute: Execute) -> None:
        result = execute("burst-parallel")
        folder = Path(result.html).parent
        assert dp.load(folder / "run.json").model == EXAMPLE
        assert dp.load(folder / "plan.json").global_batch == TINY["global_batch"]
        assert dp.load(folder / "profile.json").batch_sizes == (1, 2, 4)
        assert str(dp.load(folder / "run.json")) in result.summary
        assert "on 8 GPUs" in result.summary

    @pytest.mark.stress
    def test_layers_are_measured_here_and_estimated_elsewhere(self, execute: Execute) -> None:
        result = execute("model-and-layers")
        folder = Path(result.html).parent
        here, elsewhere = dp.load(folder / "layers.json"), dp.load(folder / "layers-h100.json")
        assert (here.provenance, elsewhere.provenance) == ("measured", "estimated")
        assert here.graph == elsewhere.graph
        assert str(here) in result.summary
        assert str(elsewhere) in result.summary

    @pytest.mark.stress
    def test_a_plan_keeps_the_limit_that_was_asked_for(self, execute: Execute) -> None:
        result = execute("planning")
        plan = dp.load(Path(result.html).parent / "plan-at-scale.json")
        assert (plan.gpus, plan.amplification_limit, plan.provenance) == (4, 4.0, "measured")
        assert all(x.amplification <= 4.0 + 1e-9 for x in plan.layers)
        assert str(plan) in result.summary

    @pytest.mark.stress
    def test_a_trace_holds_the_prediction_and_the_measurement(self, execute: Execute) -> None:
        folder = Path(execute("timelines").html).parent
        events = (folder / "timeline-trace.json").read_text()
        run = dp.load(folder / "timeline-run.json")
        assert events.count('"ph": "X"') == len(run.plan_timeline.spans) + len(run.timeline.spans)

    @pytest.mark.stress
    def test_each_policy_is_run_and_a_bound_is_kept_in_the_record(self, execute: Execute) -> None:
        result = execute("collocation")
        folder = Path(result.html).parent
        free, bounded = (dp.load(folder / f"collocation-{name}.json") for name in ("priority", "bounded"))
        assert (free.policy, free.sharing.max_slowdown) == ("priority", None)
        assert (bounded.policy, bounded.sharing.max_slowdown) == ("priority", 0.03)
        assert str(free) in result.summary
        assert str(bounded) in result.summary

    @pytest.mark.stress
    def test_two_plans_are_compared_as_the_library_does(self, execute: Execute) -> None:
        result = execute("runs")
        folder = Path(result.html).parent
        before, after = (dp.load(folder / f"limit-{limit}-plan.json") for limit in (1.0, 2.0))
        assert result.summary.startswith(str(dp.diff(before, after)))
        assert str(dp.load(folder / "replan.json")) in result.summary

    @pytest.mark.stress
    def test_a_model_of_ones_own_is_trained_goes_on_and_shares(self, execute: Execute) -> None:
        result = execute("your-own-model")
        folder = Path(result.html).parent
        record = dp.load(folder / "own-training.json")
        assert [update.update for update in record.metrics] == [4, 5, 6]
        assert record.resumed_from.endswith("step-000003")
        assert record.checkpoint.endswith("step-000006")
        assert {outcome.name for outcome in record.background} == {"Classifier"}
        assert "<All keys matched successfully>" in Path(result.html).read_text(encoding="utf-8").replace(
            "&lt;", "<"
        ).replace("&gt;", ">")
        assert str(record) in result.summary


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_reports_show_every_figure_without_a_network(execute: Execute, tmp_path: Path) -> None:
    from playwright.sync_api import Route, sync_playwright

    results = [execute(name) for name in (NAMES if STRESS else KEPT)]
    refused: list[str] = []
    broken: list[str] = []

    def only_files(route: Route) -> None:
        if route.request.url.startswith("file://"):
            route.continue_()
        else:
            refused.append(route.request.url)
            route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path, executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS
        )
        browser.route("**/*", only_files)
        for result in results:
            page = browser.new_page()
            page.on("pageerror", lambda error, name=result.name: broken.append(f"{name}: {error}"))
            page.goto(Path(result.html).as_uri())
            expected = sum(figures_of(cell) for cell in cells_of(Path(result.notebook)) if cell.cell_type == "code")
            page.wait_for_function(
                f"document.querySelectorAll('.js-plotly-plot:has(svg.main-svg)').length >= {expected}", timeout=240_000
            )
            plots = page.locator(".js-plotly-plot").all()
            assert len(plots) == expected > 0
            for plot in plots:
                assert_is_drawn(plot.evaluate(READ), result.name)
            page.close()
        browser.close()
    assert refused == []
    assert broken == []


READ = """plot => ({
    title: plot.layout.title.text,
    height: plot.querySelector('svg.main-svg').getBoundingClientRect().height,
    traces: plot._fullData.filter(trace => trace.visible === true)
        .map(trace => ({type: trace.type, mode: trace.mode ?? '', values: trace.y?.length ?? 0})),
    marks: plot.querySelectorAll('.cartesianlayer .point path, .cartesianlayer path.point').length,
    lines: plot.querySelectorAll('.cartesianlayer .js-line').length,
})"""
"""Of a figure in a page, what a reader sees and what there is to see."""


def assert_is_drawn(figure: dict[str, Any], name: str) -> None:
    """That a reader sees a title, and of every trace its bars, its points or its line."""
    place = f"{name}: {figure['title']}"
    assert figure["title"], place
    assert figure["height"] > 100, place
    bars = sum(trace["values"] for trace in figure["traces"] if trace["type"] == "bar")
    points = sum(trace["values"] for trace in figure["traces"] if "markers" in trace["mode"])
    assert figure["marks"] == bars + points, place
    # A line with gaps is drawn as several.
    assert figure["lines"] >= sum("lines" in trace["mode"] for trace in figure["traces"]), place
    assert figure["marks"] + figure["lines"] > 0, place
