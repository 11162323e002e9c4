"""Notebooks as they are committed: each asks, calls the library in short cells, answers, and points to the next."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.evaluation.notebooks import copy_notebooks, evaluate, find_notebooks
from tests.notebooks.execute import (
    EVALUATIONS,
    NAMES,
    NOTEBOOKS,
    ROOT,
    cells_of,
    code_cells,
    is_figure,
    parameters_of,
    uses,
)

LONGEST_CELL = 6
"""Lines without imports; what needs more belongs into the library."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_notebooks_are_numbered_and_found_by_name() -> None:
    # The evaluations come after them.
    assert list(find_notebooks().values())[: len(NAMES)] == NOTEBOOKS
    assert list(find_notebooks())[: len(NAMES)] == NAMES
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"{number:02}-" for number in range(1, len(NAMES) + 1)]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *EVALUATIONS], ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_carries_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.source
    assert "widgets" not in notebook.metadata


@each_notebook
def test_a_notebook_begins_with_its_question_and_how_long_the_answer_takes(path: Path) -> None:
    first = cells_of(path)[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# [^#\n]*\?\n", first.source)
    assert re.search(r"It takes about [\w ]+ on two idle cores", first.source.replace("\n", " "))


@each_notebook
def test_a_notebook_ends_with_a_figure_a_summary_and_what_comes_next(path: Path) -> None:
    *_, figure, summary = code_cells(path)
    assert is_figure(figure)
    assert code_cells(path, "summary") == [summary]
    farewell = cells_of(path)[-1]
    assert farewell.source.startswith("## What next?")
    following = NOTEBOOKS[NOTEBOOKS.index(path) + 1 :]
    assert not following or following[0].name in links_of(farewell.source)


@each_notebook
def test_links_between_notebooks_lead_somewhere(path: Path) -> None:
    for cell in cells_of(path):
        for link in links_of(cell.source) if cell.cell_type == "markdown" else ():
            assert link.startswith("https://") or (path.parent / link).is_file(), link


def links_of(markdown: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", markdown)


@each_notebook
def test_parameters_bound_what_runs_say_where_records_go_and_are_all_used(path: Path) -> None:
    parameters, used = parameters_of(path), uses(path)
    assert "output" in parameters
    assert "seconds" in parameters or "dp.launch" not in used
    assert "steps" in parameters or "dp.train" not in used
    assert parameters <= used


@each_notebook
def test_presets_name_parameters_of_their_notebook(path: Path) -> None:
    told = nbformat.read(path, as_version=4).metadata["deeppool"]
    presets = {name: told[name] for name in told if name != "measures"}
    assert set(presets) == {"quick", "full"}
    for preset in presets.values():
        assert set(preset) <= parameters_of(path)


@each_notebook
def test_a_notebook_that_measures_says_so_and_runs_alone(path: Path) -> None:
    told = nbformat.read(path, as_version=4).metadata["deeppool"]
    assert told["measures"] is bool({"dp.launch", "dp.train", "dp.profile", "dp.widgets.ProfilePanel"} & uses(path))


@each_notebook
def test_a_notebook_calls_the_library_in_short_cells_and_defines_nothing(path: Path) -> None:
    # In one notebook the user's own code is the point.
    own = code_cells(path, "yours")
    assert not own or path.stem.endswith("your-own-model")
    for source in code_cells(path):
        if source in own:
            continue
        defined = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert not defined, source
        code = [line for line in source.splitlines() if line and not line.startswith(("import ", "from "))]
        assert len(code) <= LONGEST_CELL or source in code_cells(path, "parameters"), source


def test_a_collocation_without_a_bound_has_no_bounded_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = [cell for cell in code_cells(find_notebooks()["collocation"]) if "max_slowdown=" in cell]
    monkeypatch.setattr(dp, "launch", None)
    runs = {"naive": ["a run"]}
    exec(source, {"dp": dp, "max_slowdown": None, "runs": runs})
    assert runs == {"naive": ["a run"]}


@pytest.mark.parametrize(
    ("names", "parameters", "phrase"),
    [
        (["burst"], {}, "no notebook 'burst': there are burst-parallel, model-and-layers"),
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
    copies = {path.relative_to(folder) for path in folder.rglob("*.ipynb")}
    assert copies == {path.relative_to(ROOT / "notebooks") for path in find_notebooks().values()}
    edited = folder / NOTEBOOKS[0].name
    edited.write_text("mine")
    copy_notebooks(folder)
    assert edited.read_text() == "mine"


def test_the_notebooks_themselves_are_not_opened() -> None:
    with pytest.raises(InvalidValueError, match="holds deeppool's own notebooks, which stay as they are"):
        copy_notebooks(ROOT / "tests" / ".." / "notebooks")


@pytest.mark.slow
def test_what_notebooks_call_is_there(tmp_path: Path) -> None:
    for path in [*NOTEBOOKS, *EVALUATIONS]:
        module = tmp_path / f"notebook_{path.stem.replace('-', '_')}.py"
        module.write_text("\n\n".join(code_cells(path)), encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, tmp_path.glob("*.py"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stderr == ""
    # Parameters of a notebook are of wider types than the library's: only what runs would fail by counts.
    missing = re.compile(r"\[(attr-defined|name-defined|call-arg|call-overload|import-not-found|misc|syntax)\]$")
    assert [line for line in checked.stdout.splitlines() if missing.search(line)] == []
