"""Evaluation notebooks as they are committed: question, findings, figure, record; and the cheapest as they run."""

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from papermill.parameterize import parameterize_path

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.evaluation import Evaluation
from deeppool.evaluation.execution import literal_path
from deeppool.evaluation.notebooks import evaluate, find_notebooks, read_notebook
from tests.notebooks.execute import EVALUATIONS, ROOT, cells_of, code_cells, is_figure, parameters_of, uses
from tests.sampling import sampled

LONGEST_CELL = 26
"""Lines; what needs more belongs into the library."""
IN_THE_PAPER = {"fig1", "fig2", "fig3", "fig4", "fig5", "fig9", "fig10", "fig11", "fig12", "table1", "table3"}
COMPANIONS = {"caramel", "crossover", "eager", "five", "wavelet"}
"""Evaluations of the other systems, which number nothing."""
CLOCKS = {
    *("dp.launch", "dp.train", "dp.profile", "dp.measure_interference", "dp.compare_orders"),
    *("search_times", "skewed_calls", "compare_modes", "dp.compare_techniques"),
}
"""What reads one, by the name under which notebooks use it."""

each_notebook = pytest.mark.parametrize("path", EVALUATIONS, ids=lambda path: path.stem)


@pytest.mark.parametrize("path", ["/runs/{date}/a.ipynb", "{}", "plain/a.ipynb", "{{"])
def test_braces_in_a_path_are_no_parameters(path: str) -> None:
    assert parameterize_path(literal_path(Path(path)), {"output": "elsewhere"}) == path


def name_of(path: Path) -> str:
    return path.stem.split("-")[0]


def findings_of(path: Path) -> ast.Call:
    """The call that makes the notebook's findings."""
    nodes = [node for source in code_cells(path) for node in ast.walk(ast.parse(source))]
    (call,) = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Findings"]
    return call


def test_every_table_and_figure_that_can_be_made_here_has_a_notebook() -> None:
    known = find_notebooks()
    assert {name_of(path) for path in EVALUATIONS} == IN_THE_PAPER | COMPANIONS
    assert {known[name] for name in IN_THE_PAPER | COMPANIONS} == set(EVALUATIONS)


@each_notebook
def test_it_begins_with_its_question_and_says_what_the_numbers_are(path: Path) -> None:
    first = cells_of(path)[0]
    assert first.cell_type == "markdown"
    if name_of(path) in COMPANIONS:
        assert re.match(r"# [A-Z][A-Za-z -]+: [^#\n]*\?\n", first.source)
        return
    kind, number = re.fullmatch(r"([a-z]+)(\d+)", name_of(path)).groups()  # type: ignore[union-attr]
    title = {"fig": "figure", "table": "table"}[kind]
    # Five papers have a figure 1.
    assert re.match(rf"# DeepPool, {title} {number}: [^#\n]*\?\n", first.source)
    assert re.search(r"measured|emulated|simulated|estimated|predicted|computed|Nothing is timed", first.source)


@each_notebook
def test_it_ends_with_a_figure_and_the_record_of_its_name(path: Path) -> None:
    *_, figure, summary = code_cells(path)
    assert is_figure(figure)
    assert code_cells(path, "summary") == [summary]
    assert "findings.save(output)" in summary and "print(record)" in summary
    assert findings_of(path).args[0].value == name_of(path)  # type: ignore[attr-defined]
    assert {"findings.number", "findings.check"} <= uses(path)


@each_notebook
def test_parameters_say_where_the_record_goes_and_are_all_used(path: Path) -> None:
    parameters = parameters_of(path)
    assert "output" in parameters
    assert parameters <= uses(path)


@each_notebook
def test_presets_are_quick_and_full_and_name_parameters_of_the_notebook(path: Path) -> None:
    told = nbformat.read(path, as_version=4).metadata["deeppool"]
    assert set(told) == {"quick", "full", "measures"}
    for preset in ("quick", "full"):
        assert set(told[preset]) <= parameters_of(path)


@each_notebook
def test_a_notebook_that_reads_clocks_says_so_and_runs_alone(path: Path) -> None:
    assert read_notebook(name_of(path), path).measures is bool(CLOCKS & uses(path))


@each_notebook
def test_it_calls_the_library_and_defines_nothing(path: Path) -> None:
    for source in code_cells(path):
        kinds = ast.FunctionDef | ast.ClassDef | ast.Lambda
        assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)], source
        assert len(source.splitlines()) <= LONGEST_CELL, source


def run_cells(path: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """Runs the cells in this process, and returns what they define."""
    found: dict[str, Any] = {}
    for source in code_cells(path):
        exec(compile(source, path.name, "exec"), found)
        if source in code_cells(path, "parameters"):
            found |= parameters
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3"])
def test_what_the_paper_says_of_many_gpus_is_not_held_against_one(name: str, tmp_path: Path) -> None:
    record = run_cells(find_notebooks()[name], {"profile_file": "vgg16-cpu", "gpu_counts": [1], "output": tmp_path})[
        "record"
    ]
    assert record.checks
    assert {check.holds and check.inapplicable != "" for check in record.checks} == {True}
    assert all(number.why.startswith("measured layer times") for number in record.numbers if number.paper)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig9", "fig10"])
def test_a_model_of_ones_own_on_one_gpu_has_samples_and_room_for_the_background(name: str, tmp_path: Path) -> None:
    own = {"models": {"resnet18": [3, 32, 32]}, "gpus": 1, "simulated_points": 2, "burst_on": {}, "output": tmp_path}
    own["interference_file"] = ROOT / "tests/records/recorded/interference.json"
    record = run_cells(find_notebooks()[name], own)["record"]
    assert any(number.name.startswith("resnet18") for number in record.numbers)


def test_what_is_counted_on_a_graph_is_not_called_predicted(tmp_path: Path) -> None:
    record = run_cells(find_notebooks()["table1"], {"workloads": {"vgg16": [3, 64, 64]}, "output": tmp_path})["record"]
    assert [(number.name, number.basis) for number in record.numbers] == [
        ("vgg16, parameters", "counted"),
        ("vgg16, layers", "counted"),
    ]


@pytest.mark.parametrize("beside", ["", None])
def test_utilisation_is_shown_without_a_profile_beside_it(beside: str | None, tmp_path: Path) -> None:
    parameters = {"profile_file": "resnet50-cpu", "beside": beside, "output": str(tmp_path)}
    record = run_cells(find_notebooks()["fig4"], parameters)["record"]
    assert len(record.numbers) == len(dp.find_profile("resnet50-cpu").batch_sizes)


@pytest.mark.parametrize(("gpus", "global_batch"), [(8, 4), (3, 4), (0, 4), (1, 0)])
def test_a_batch_that_gpus_cannot_share_is_refused_before_anything_is_estimated(gpus: int, global_batch: int) -> None:
    with pytest.raises(InvalidValueError, match=f"must be a multiple of the GPUs, got {global_batch} on {gpus} "):
        run_cells(find_notebooks()["fig5"], {"gpus": gpus, "global_batch": global_batch})


SMALL: dict[str, dict[str, Any]] = {
    "table1": {"workloads": {"vgg16": [3, 64, 64]}},
    "fig10": {"models": {"vgg16": [3, 64, 64]}, "samples_per_gpu": {"vgg16": 2}},
}
"""The cheapest two, with one small model each, in `make stress`."""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", sampled(SMALL))
def test_a_notebook_leaves_a_record_that_its_report_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (result,) = evaluate([name], tmp_path, parameters=SMALL[name])
    folder = Path(result.html).parent
    record = dp.load(folder / "record.json")
    assert isinstance(record, Evaluation)
    assert record.name == folder.name == name
    assert record.numbers and record.checks
    assert any(number.paper is not None for number in record.numbers)
    assert str(record) in result.summary
    report = Path(result.html).read_text(encoding="utf-8")
    assert "plotly" in report
    assert record.checks[0].statement.split()[0] in report
