"""The script for a GPU, tried where there is none."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks.gpu import collocation, memory, placements, ranks, run
from deeppool.base import serialization
from deeppool.profiling.measure import sampling
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Profile
from deeppool.scheduling.mechanism_ladder import mechanism_ladder

pytestmark = pytest.mark.slow


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "MAXIMUM_RUNS", 1)
    monkeypatch.setattr(sampling, "MAXIMUM_SECONDS", 1e-3)

    def start(*arguments):
        monkeypatch.setattr(sys, "argv", ["run.py", "-o", str(tmp_path / "results"), *arguments])
        run.main()
        return tmp_path / "results"

    return start


def test_dry_run_on_a_cpu_measures_every_mode_and_saves_a_profile(script):
    folder = script("--device", "cpu", "--quick")
    summary = json.loads((folder / "summary.json").read_text())
    profiles = summary["profiles"]
    assert (summary["device"], summary["quick"], profiles["left_out"]) == ("cpu", True, [])
    assert summary["environment"]["versions"]["torch"]
    assert [(entry["model"], entry["mode"]) for entry in profiles["measurements"]] == [
        ("resnet18", "fp32-eager"),
    ]
    for entry in profiles["measurements"]:
        assert [check["batch"] for check in entry["checks"]] == [1, 2, 4]
        assert all(check["iteration"] > 0 for check in entry["checks"])
    assert [size["batch"] for size in profiles["measurements"][0]["held_out"]] == [2]
    profile = serialization.read(folder / "resnet18-cpu-fp32-eager.json", Profile)
    assert (profile.device, profile.precision, profile.graphs) == ("cpu", "fp32", False)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000


def test_what_time_is_too_short_for_is_named(script):
    summary = json.loads((script("--device", "cpu", "--minutes", "-1") / "summary.json").read_text())
    profiles = summary["profiles"]
    assert profiles["measurements"] == []
    assert len(profiles["left_out"]) == len(run.MODELS) * len(run.ON_CPU)


def test_what_cannot_be_measured_is_an_entry_and_does_not_end_the_others(script, monkeypatch):
    # CUDA graphs are refused on a CPU.
    monkeypatch.setitem(run.MODES, "cpu", (run.Mode("fp32", True), run.Mode("fp32", False)))
    summary = json.loads((script("--device", "cpu", "--quick") / "summary.json").read_text())
    failed, measured = summary["profiles"]["measurements"]
    assert failed["error"] == "graphs are CUDA graphs, got device cpu (leave graphs out)"
    assert "checks" in measured


@pytest.mark.stress
@pytest.mark.parametrize("device", ["emulated:h200", "emulated"])
def test_dry_run_climbs_the_ladder_and_tries_the_kernels(script, device):
    summary = json.loads(
        (script("--device", device, "--quick", "--parts", "ladder", "pairs") / "summary.json").read_text()
    )
    assert summary["device"] == device
    (measured,) = summary["ladder"]["measurements"]
    (gap,) = measured["gaps"]
    assert (measured["failed"], gap["left_out"]) == ({}, [])
    assert [rung["rung"] for rung in gap["rungs"]] == list(mechanism_ladder(share=collocation.SHARE))
    assert all(rung["foreground"]["mean"] > 0 and rung["harvest"] >= 0 for rung in gap["rungs"])
    assert summary["pairs"]["left_out"] == []
    assert len(summary["pairs"]["priorities"]) == 8
    assert [arrangement["name"] for arrangement in summary["pairs"]["interference"]["arrangements"]] == [
        "normal",
        "lowest",
    ]


@pytest.mark.stress
def test_dry_run_climbs_the_ladder_beside_the_first_and_the_last_rank_of_a_plan(script):
    summary = json.loads((script("--device", "emulated", "--quick", "--parts", "ranks") / "summary.json").read_text())
    found = summary["ranks"]
    assert found["failed"] == {}
    # A plan from noisy times may use one rank or both.
    assert [row["rank"] for row in found["rows"]] in ([0], [0, 1])
    for row in found["rows"]:
        measured = row["ladder"]
        assert [rung["rung"] for rung in measured["rungs"]] == [*mechanism_ladder(), ranks.BY_TIME]
        assert 0 <= measured["idle"] < 1
        assert measured["wake"]["count"] == 3


def test_plans_are_from_the_shipped_profiles_of_this_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "find_device", lambda name: SimpleNamespace(name="NVIDIA H200"))
    found = ranks.saved_or_measured(tmp_path, "cuda", quick=False)("vgg16")
    assert found == find_profile("vgg16-h200")


def test_what_there_is_no_time_for_is_a_row_of_its_own(script):
    summary = json.loads(
        (script("--device", "emulated", "--minutes", "-1", "--parts", "ranks") / "summary.json").read_text()
    )
    assert summary["ranks"]["rows"] == [
        {"model": model, "left_out": True} for model in ("vgg16", "wide_resnet101_2", "inception_v3")
    ]


def test_a_foreground_that_cannot_be_made_is_an_entry_too(script, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the GPU is full")

    monkeypatch.setattr(collocation, "StreamLadder", fail)
    summary = json.loads((script("--device", "cpu", "--quick", "--parts", "ladder") / "summary.json").read_text())
    (measured,) = summary["ladder"]["measurements"]
    assert (measured["error"], measured["gaps"]) == ("the GPU is full", [])


@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.stress
def test_dry_run_on_a_cpu_launches_the_background_in_both_homes(script):
    summary = json.loads((script("--device", "cpu", "--quick", "--parts", "launches") / "summary.json").read_text())
    rows = summary["launches"]["rows"]
    assert [(row["row"], row.get("home")) for row in rows] == [
        ("thread, paced", "thread of the rank"),
        ("process, paced", "process"),
    ], rows
    for row in rows:
        assert row["harvest"] >= 0
        assert row["ended"] == "stopped"


@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.stress
def test_on_the_emulated_device_a_background_has_every_mechanism_in_the_ranks_process_and_none_in_its_own(script):
    summary = json.loads(
        (script("--device", "emulated", "--quick", "--parts", "launches") / "summary.json").read_text()
    )
    rows = {row["row"]: row for row in summary["launches"]["rows"]}
    assert list(rows) == list(placements.PLACEMENTS)
    for name, row in rows.items():
        if name.startswith("process"):
            assert "device emulated belongs to one process" in row["error"]
        else:
            assert row["home"] == "thread of the rank", row
            assert row["priority"] == f"stream priority {'high' if 'naive' in name else 'low'}"
            assert row["harvest"] > 0


def test_waves_are_measured_beside_one_of_twice_the_batch(script):
    summary = json.loads(
        (script("--device", "emulated:h200", "--quick", "--parts", "waves") / "summary.json").read_text()
    )
    rows = summary["waves"]["rows"]
    assert summary["waves"]["left_out"] == []
    assert [(row["waves"], row["batch"]) for row in rows] == [(1, 8), (2, 8), (1, 16)]
    for row in rows:
        assert row["throughput"] == row["batch"] / row["iteration_time"]
        # What is in use is never more than what is reserved.
        assert 0 < max(used for _, used in row["memory_timeline"]) <= row["peak"] <= row["memory"]
        times = [seconds for seconds, _ in row["memory_timeline"]]
        assert times == sorted(times)


@pytest.mark.parametrize("device", ["emulated:h200", pytest.param("emulated", marks=pytest.mark.stress)])
def test_in_random_pairs_a_background_that_does_not_fit_is_refused_and_no_foreground_fails(script, device):
    summary = json.loads((script("--device", device, "--quick", "--parts", "memory") / "summary.json").read_text())
    pairs = summary["memory"]["pairs"]
    assert len(pairs) == memory.QUICK.foregrounds * memory.QUICK.backgrounds
    assert [pair["foreground_failed"] for pair in pairs] == [None] * len(pairs)
    refused = [pair for pair in pairs if pair["refused"]]
    run = [pair for pair in pairs if not pair["refused"]]
    assert refused
    assert all(pair["refused"].startswith("memory: emulated device out of memory") for pair in refused)
    assert run
    assert all(pair["background_failed"] is None and pair["steps"] > 0 for pair in run)
    assert max(pair["left"] for pair in refused) < min(pair["left"] for pair in run)
