"""Notebooks: well-formed as they are committed, and whole when they have run, without a network too."""

import ast
import shutil
from pathlib import Path

import nbformat
import pytest

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.evaluation.notebooks import Result, copy_notebooks, evaluate, find_notebooks

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXAMPLE = "examples.two_branch:two_branch"
TINY = {
    "model": EXAMPLE,
    "input_shape": [3, 32, 32],
    "batch_sizes": [1, 2, 4],
    "global_batch": 4,
    "background": EXAMPLE,
    "seconds": 3,
}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path, tag: str | None = None) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell.source for cell in cells if tag is None or tag in cell.metadata.get("tags", [])]


def parameters_of(path: Path) -> set[str]:
    (source,) = code_cells(path, "parameters")
    return {target.id for node in ast.parse(source).body for target in node.targets}


# -- as committed -----------------------------------------------------------------------------------


def test_there_are_notebooks_and_they_are_found_by_name() -> None:
    assert NOTEBOOKS
    assert sorted(find_notebooks().values()) == NOTEBOOKS
    assert find_notebooks()["burst-parallel"].name == "01-burst-parallel.ipynb"


@each_notebook
def test_a_notebook_is_valid_and_carries_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.source
    assert "widgets" not in notebook.metadata


@each_notebook
def test_a_notebook_has_one_cell_of_parameters_and_one_summary(path: Path) -> None:
    assert {"output", "seconds"} <= parameters_of(path)
    assert len(code_cells(path, "summary")) == 1


@each_notebook
def test_presets_name_parameters_of_their_notebook(path: Path) -> None:
    told = nbformat.read(path, as_version=4).metadata["deeppool"]
    presets = {name: told[name] for name in told if name != "measures"}
    assert set(presets) == {"quick", "full"}
    for preset in presets.values():
        assert set(preset) <= parameters_of(path)


@each_notebook
def test_a_notebook_calls_the_library_and_defines_nothing(path: Path) -> None:
    for source in code_cells(path):
        defined = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert not defined, source


@pytest.mark.parametrize(
    ("names", "parameters", "phrase"),
    [
        (["burst"], {}, "no notebook 'burst': there are burst-parallel"),
        (["burst-parallel"], {"sceonds": 3}, "01-burst-parallel.ipynb has no parameter 'sceonds': it has model,"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_runs(
    names: list[str], parameters: dict, phrase: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        evaluate(names, tmp_path / "reports", parameters=parameters)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_the_user_has_is_kept(tmp_path: Path) -> None:
    folder = copy_notebooks(tmp_path / "mine")
    assert sorted(path.name for path in folder.iterdir()) == [path.name for path in NOTEBOOKS]
    edited = folder / NOTEBOOKS[0].name
    edited.write_text("mine")
    copy_notebooks(folder)
    assert edited.read_text() == "mine"


def test_the_notebooks_themselves_are_not_opened() -> None:
    with pytest.raises(InvalidValueError, match="holds deeppool's own notebooks, which stay as they are"):
        copy_notebooks(ROOT / "tests" / ".." / "notebooks")


# -- as run -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        (result,) = evaluate(["burst-parallel"], tmp_path_factory.mktemp("reports"), parameters=TINY)
        return result


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_notebook_runs_and_leaves_its_report_and_records(executed: Result) -> None:
    folder = Path(executed.html).parent
    assert folder.name == "burst-parallel"
    assert dp.load(folder / "run.json").model == EXAMPLE
    assert dp.load(folder / "plan.json").global_batch == TINY["global_batch"]
    assert dp.load(folder / "profile.json").batch_sizes == (1, 2, 4)
    assert str(dp.load(folder / "run.json")) in executed.summary
    assert "on 8 GPUs" in executed.summary
    assert "<html" in Path(executed.html).read_text(encoding="utf-8")
    for cell in nbformat.read(executed.notebook, as_version=4).cells:
        assert cell.cell_type != "code" or cell.execution_count is not None


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.browser
@pytest.mark.timeout(300)
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_report_shows_every_figure_without_a_network(executed: Result, tmp_path: Path) -> None:
    from playwright.sync_api import Route, sync_playwright

    cells = code_cells(find_notebooks()["burst-parallel"])
    figures = sum(source.lstrip().startswith("dp.figures.") for source in cells)
    assert figures
    refused: list[str] = []

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
        page = browser.new_page()
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(Path(executed.html).as_uri())
        page.wait_for_function(
            f"document.querySelectorAll('.js-plotly-plot:has(svg.main-svg)').length >= {figures}", timeout=20_000
        )
        drawn = page.eval_on_selector_all(
            ".js-plotly-plot",
            """plots => plots.map(plot => ({
                title: plot.layout.title.text,
                height: plot.querySelector('svg.main-svg').getBoundingClientRect().height,
                values: plot._fullData.reduce((sum, trace) => sum + trace.x.length, 0),
                marks: plot.querySelectorAll('.cartesianlayer .point path, .cartesianlayer path.point').length,
            }))""",
        )
        browser.close()
    assert refused == []
    assert broken == []
    assert len(drawn) == figures
    for figure in drawn:
        assert figure["title"]
        assert figure["height"] > 100
        # Every value is a bar or a point.
        assert figure["marks"] == figure["values"] > 0
