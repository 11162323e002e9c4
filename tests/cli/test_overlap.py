"""``deeppool plan --overlap-sync``: plans in which all-reduces overlap the backward pass."""

import json
import sys
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.cli import main
from tests.strategies import make_graph, profile_from_times

PLAN = ("--gpus", "4", "--global-batch", "8", "--cluster", "dgx-a100", "--json")


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    graph = make_graph([(), (0,)], [(), (4096,)], [0, 2**22])
    times = [lambda batch: 1e-3 * batch, lambda batch: 1e-3 * batch]
    return dp.save(profile_from_times(graph, times), tmp_path / "profile.json")


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["deeppool", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    output = capsys.readouterr()
    return int(end.value.code or 0), output.out, output.err


def test_plan_and_its_simulation_overlap_when_asked(capsys, monkeypatch, profile_file, tmp_path):
    file = tmp_path / "plan.json"
    code, out, _ = run(capsys, monkeypatch, "plan", profile_file, *PLAN, "--overlap-sync", "-o", file)
    made = json.loads(out)
    assert (code, made["overlap_sync"]) == (0, True)
    assert made["iteration_time"] == dp.plan(dp.load(profile_file), 4, 8, overlap_sync=True).iteration_time
    code, out, _ = run(capsys, monkeypatch, "simulate", file, "--json")
    assert (code, json.loads(out)["iteration_time"]) == (0, pytest.approx(made["iteration_time"]))


def test_nothing_overlaps_unless_asked(capsys, monkeypatch, profile_file):
    _, out, _ = run(capsys, monkeypatch, "plan", profile_file, *PLAN)
    assert json.loads(out)["overlap_sync"] is False


def test_a_limit_on_the_iteration_is_refused_in_one_line(capsys, monkeypatch, profile_file):
    code, out, err = run(
        capsys, monkeypatch, "plan", profile_file, *PLAN, "--overlap-sync", "--limit-scope", "iteration"
    )
    assert (code, out) == (1, "")
    assert err.startswith("error: overlap_sync needs limit_scope 'layer'")
    assert err.count("\n") == 1
