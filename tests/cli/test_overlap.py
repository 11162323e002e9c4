"""``deeppool plan``: all-reduces overlap the backward pass, unless the network model is the paper's."""

import json
from pathlib import Path

import pytest

import deeppool as dp
from tests.strategies import make_graph, profile_from_times

PLAN = ("--gpus", "4", "--global-batch", "8", "--json")


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    graph = make_graph([(), (0,)], [(), (4096,)], [0, 2**22])
    times = [lambda batch: 1e-3 * batch, lambda batch: 1e-3 * batch]
    return dp.save(profile_from_times(graph, times), tmp_path / "profile.json")


@pytest.mark.parametrize("more", [(), ("--limit-scope", "iteration", "--amplification-limit", "2")])
def test_plan_and_its_simulation_overlap(deeppool, profile_file, tmp_path, more):
    file = tmp_path / "plan.json"
    code, out, _ = deeppool("plan", profile_file, *PLAN, *more, "-o", file)
    made = json.loads(out)
    assert (code, made["overlap_sync"]) == (0, True)
    limit, scope = (2.0, "iteration") if more else (None, "layer")
    assert made["iteration_time"] == dp.plan(dp.load(profile_file), 4, 8, limit, limit_scope=scope).iteration_time
    code, out, _ = deeppool("simulate", file, "--json")
    assert (code, json.loads(out)["iteration_time"]) == (0, pytest.approx(made["iteration_time"]))


def test_nothing_overlaps_in_the_papers_model(deeppool, profile_file):
    _, out, _ = deeppool("plan", profile_file, *PLAN, "--network-model", "paper")
    assert json.loads(out)["overlap_sync"] is False
