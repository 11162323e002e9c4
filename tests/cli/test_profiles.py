"""``deeppool profile --list``, ``--compare``, profiles by name, and cautions where an uncertain profile is used."""

import json
from dataclasses import replace

import pytest

from deeppool.base import serialization
from deeppool.planning.planner import plan
from deeppool.profiling import shipped
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.records import files
from tests.strategies import make_graph, profile_from_times

GOOD = profile_from_times(make_graph([(), (0,)]), [lambda b: 1e-3 * b, lambda b: 1e-4 * b], batch_sizes=(1, 2, 4, 8))
UNCERTAIN = replace(GOOD, checks=(IterationCheck(8, 1.2, 1.0, 0.01, 5),))
CAUTION = "the profile's layers add up to 20.0 % more than the whole iteration at batch 8, beyond the bound of 8 %"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder: files of a good profile, an uncertain one and a slower one; the good one is shipped too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    (tmp_path / "shipped").mkdir()
    serialization.write(GOOD, tmp_path / "shipped" / "drawn-cpu.json")
    serialization.write(GOOD, tmp_path / "good.json")
    serialization.write(UNCERTAIN, tmp_path / "uncertain.json")
    slower = tuple(replace(x, forward=tuple(2 * time for time in x.forward)) for x in GOOD.measurements[:1])
    serialization.write(replace(GOOD, measurements=(*slower, *GOOD.measurements[1:])), tmp_path / "slower.json")
    return tmp_path


def test_list_shows_what_is_shipped(deeppool):
    code, out, err = deeppool("profile", "--list")
    assert (code, err) == (0, "")
    assert out.startswith("drawn-cpu: drawn on 3x8x8, batch 1, 2, 4, 8;")
    _, out, _ = deeppool("profile", "--list", "--json")
    assert [entry["name"] for entry in json.loads(out)["profiles"]] == ["drawn-cpu"]


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--gpus", 2, "--global-batch", 8),
        ("frontier", "--gpus", 2, "--global-batch", 8),
        ("frontier", "--gpus", 2, "--global-batch", 8, "--background", "drawn-cpu"),
        ("scaling", "--gpus", 2, "--global-batch", 8),
    ],
)
def test_a_shipped_profile_is_used_by_name(deeppool, command):
    name, *options = command
    assert deeppool(name, "drawn-cpu", *options)[::2] == (0, "")


def test_what_is_neither_file_nor_name_is_reported_in_a_line(deeppool):
    code, out, err = deeppool("plan", "vgg99", "--gpus", 2, "--global-batch", 8)
    assert (code, out) == (1, "")
    assert err == (
        "error: no profile 'vgg99': neither a file nor one of drawn-cpu (make one: deeppool profile MODEL -o FILE)\n"
    )


def test_compare_reports_what_changed_and_ends_in_0_either_way(deeppool):
    code, out, err = deeppool("profile", "--compare", "good.json", "slower.json")
    assert (code, err) == (0, "")
    assert "4 of 8 layer times changed beyond noise" in out
    assert "layer0" in out
    assert "layer1" not in out
    code, out, _ = deeppool("profile", "--compare", "drawn-cpu", "good.json", "--json")
    assert code == 0
    assert json.loads(out)["changes"] == []


def test_a_comparison_is_saved(deeppool, folder):
    code, out, _ = deeppool("profile", "--compare", "good.json", "slower.json", "--json", "-o", "compared.json")
    assert code == 0
    assert json.loads(out) == json.loads((folder / "compared.json").read_text())
    assert len(files.load(folder / "compared.json").changes) == 4


def test_list_refuses_a_file(deeppool, folder):
    code, out, err = deeppool("profile", "--list", "-o", "list.json")
    assert (code, out) == (2, "")
    assert "--output is for a profile or a comparison" in err
    assert not (folder / "list.json").exists()


@pytest.mark.parametrize("what", [("--list",), ("--compare", "good.json", "slower.json")])
@pytest.mark.parametrize(
    ("option", "name"),
    [
        (("--device", "auto"), "--device"),
        (("--batch-sizes", "4"), "--batch-sizes"),
        (("--no-graphs",), "--graphs"),
        (("--seconds", "6"), "--seconds"),
        (("--input-shape", "8"), "--input-shape"),
    ],
)
def test_options_of_measuring_are_refused_where_nothing_is_measured(deeppool, what, option, name):
    code, out, err = deeppool("profile", *what, *option)
    assert (code, out) == (2, "")
    assert f"{name} is for measuring MODEL (leave it out)" in err


def test_compare_of_two_models_is_reported_in_a_line(deeppool, folder):
    serialization.write(profile_from_times(make_graph([()]), [lambda b: 1e-3 * b]), folder / "other.json")
    code, out, err = deeppool("profile", "--compare", "good.json", "other.json")
    assert (code, out) == (1, "")
    assert err.startswith("error: the profiles are of different models: drawn on 3x8x8 (2 layers,")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("vgg16",),
        ("vgg16", "--list"),
        ("vgg16", "--compare", "good.json", "slower.json"),
        ("--list", "--compare", "good.json", "slower.json"),
        ("--compare", "good.json"),
    ],
)
def test_one_thing_at_a_time(deeppool, arguments):
    code, out, err = deeppool("profile", *arguments)
    assert (code, out) == (2, "")
    assert "Error" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        ("frontier", "good.json", "--gpus", 2, "--global-batch", 8, "--background", "uncertain.json"),
        ("scaling", "uncertain.json", "--gpus", 2, "--global-batch", 8),
        ("simulate", "plan.json"),
        ("profile", "--compare", "good.json", "uncertain.json"),
    ],
)
def test_what_leans_on_an_uncertain_profile_says_so(deeppool, folder, command):
    serialization.write(plan(UNCERTAIN, 2, 8), folder / "plan.json")
    code, out, err = deeppool(*command, "--json")
    assert code == 0
    json.loads(out)
    assert err == f"caution: {CAUTION} (profile again on an idle machine)\n"


@pytest.mark.parametrize("command", ["plan", "frontier"])
def test_a_plan_or_frontier_of_an_uncertain_profile_says_so_itself(deeppool, command):
    code, out, err = deeppool(command, "uncertain.json", "--gpus", 2, "--global-batch", 8)
    assert (code, err) == (0, "")
    assert CAUTION in " ".join(out.split())
    _, out, _ = deeppool(command, "uncertain.json", "--gpus", 2, "--global-batch", 8, "--json")
    assert json.loads(out)["caveats"] == [f"{CAUTION} (profile again on an idle machine)"]
