"""Notebooks by name, and what they say about themselves, before anything runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from deeppool.cli import notebooks as command_line
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.evaluation.notebooks import choose, evaluate, find_notebooks, notebooks_folder
from tests.evaluation.folders import write_notebook

PROJECT = sorted(notebooks_folder().rglob("[!.]*.ipynb"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_notebook(tmp_path / "01-first-steps.ipynb", title="First")
    for name in ("table1-workloads", "fig10-partitions", "fig9-throughput"):
        write_notebook(tmp_path / "evaluation" / f"{name}.ipynb", title=name, measures=name.startswith("table"))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    write_notebook(tmp_path / ".ipynb_checkpoints" / "01-first-steps-checkpoint.ipynb")
    return tmp_path


def test_a_notebook_without_parameters_says_that_it_has_none(folder: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(), folder / "02-plain.ipynb")
    (plain,) = choose(["plain"], folder)
    with pytest.raises(InvalidValueError, match=r"02-plain.ipynb has no parameter 'gpus': it has none$"):
        plain.arguments("quick", {"gpus": 4})


def test_evaluations_are_named_for_their_figure_and_come_after_the_workbench_in_order(folder: Path) -> None:
    assert list(find_notebooks(folder)) == ["first-steps", "fig9", "fig10", "table1"]


@pytest.mark.parametrize("name", ["fig10", "evaluation/fig10"])
def test_an_evaluation_is_found_with_and_without_its_folder(name: str, folder: Path) -> None:
    (found,) = choose([name], folder)
    assert (found.name, found.title, found.measures) == ("fig10", "fig10-partitions", False)
    assert found.parameters == ("gpus", "log", "output")


def test_a_name_given_twice_is_one_notebook(folder: Path) -> None:
    assert [each.name for each in choose(["fig9", "evaluation/fig9"], folder)] == ["fig9"]


def test_overrides_take_the_place_of_the_presets_values(folder: Path) -> None:
    write_notebook(folder / "02-mine.ipynb", full={"gpus": 64, "log": "x"})
    (mine,) = choose(["mine"], folder)
    assert mine.arguments("full", {"gpus": 16}) == {"gpus": 16, "log": "x"}
    assert mine.arguments("quick", {}) == {}


def test_a_preset_that_names_no_parameter_is_refused(folder: Path) -> None:
    write_notebook(folder / "02-mine.ipynb", quick={"gqus": 64})
    with pytest.raises(InvalidValueError, match=r"02-mine.ipynb has no parameter 'gqus' of its preset quick: it has"):
        evaluate(["mine"], folder / "out", notebooks=folder)


def test_the_output_folder_is_no_parameter_to_override(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"gets its output folder as 'output' \(give that with -o\)"):
        evaluate(["fig9"], folder / "out", parameters={"output": "elsewhere"}, notebooks=folder)


def test_a_notebook_that_is_edited_after_it_was_read_counts_as_changed(folder: Path) -> None:
    (before,) = choose(["fig9"], folder)
    known = before.fingerprint
    write_notebook(before.path, "print(gpus)")
    (after,) = choose(["fig9"], folder)
    assert before.fingerprint == known != after.fingerprint


@pytest.mark.parametrize("option", [["-o", "reports"], ["--full"], ["-p", "gpus=4"], ["--jobs", "2"]])
def test_a_list_refuses_options_of_a_run(option: list[str], folder: Path, deeppool: Callable[..., Any]) -> None:
    code, out, err = deeppool("evaluate", "--list", "--notebooks", folder, *option)
    assert (code, out) == (2, "")
    assert "is for running notebooks: --list runs none" in err


def test_a_parameter_that_one_of_the_notebooks_lacks_is_refused_before_any_runs(folder: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"01-first-steps.ipynb has no parameter 'gpu': it has gpus, log"):
        evaluate([], folder / "out", parameters={"gpu": 1}, notebooks=folder)
    assert not (folder / "out").exists()


def test_two_notebooks_of_one_name_are_refused(folder: Path) -> None:
    write_notebook(folder / "evaluation" / "fig9-again.ipynb")
    with pytest.raises(InvalidValueError, match=r"fig9-again.ipynb and .*fig9-throughput.ipynb are both 'fig9'"):
        find_notebooks(folder)


def test_a_folder_without_notebooks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=f"there is no notebook in {tmp_path}"):
        choose([], tmp_path)


def test_a_file_that_is_no_notebook_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "01-broken.ipynb").write_text("{")
    with pytest.raises(DocumentError, match=r"cannot read .*01-broken.ipynb as a notebook"):
        choose([], tmp_path)


@pytest.mark.parametrize("path", PROJECT, ids=lambda path: path.stem)
def test_a_notebook_of_the_project_says_whether_it_measures(path: Path) -> None:
    # Left out, it would run beside others, and what it measures would be wrong without a word.
    assert isinstance(nbformat.read(path, as_version=4).metadata["deeppool"].get("measures"), bool)


def test_the_command_lists_names_with_titles_and_runs_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command_line.evaluate(listed=True, notebooks=folder)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "first-steps First beside others" in lines
    assert "table1 table1-workloads alone" in lines
    command_line.evaluate(["fig9"], listed=True, notebooks=folder, as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["notebooks"]
    assert found == {
        "name": "fig9",
        "title": "fig9-throughput",
        "measures": False,
        "parameters": ["gpus", "log", "output"],
        "presets": {"quick": {}, "full": {}},
    }
