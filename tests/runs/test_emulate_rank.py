"""``deeppool run --emulate-rank``: one process, one rank, clearly said."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import deeppool as dp
from deeppool.cli.app import app
from deeppool.cluster.cluster import find_cluster
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.replanning.profile_correction import correct_profile
from tests.figures.records import run_of, two_layer_plan
from tests.planning.replanning.test_profile_correction import run_with, two_stages
from tests.strategies import profile_from_times

pytestmark = pytest.mark.usefixtures("in_the_checkout")

EXAMPLE = "examples.two_branch:two_branch"


@pytest.mark.slow
@pytest.mark.processes
def test_one_rank_of_eight_runs_on_one_core_and_lasts_as_long_as_the_plan(tmp_path) -> None:
    graph = dp.capture(EXAMPLE).graph
    profile = profile_from_times(graph, [lambda b: 1e-4 * b] * len(graph.layers))
    found = dp.plan(profile, find_cluster("loopback", 8), 16)
    middle = len(found.layers) // 2
    # Rank 5 has the second half; the first takes so long elsewhere that rank 5 is idle most of the time.
    layers = [
        dataclasses.replace(
            layer, gpus=(0,), gpu_count=1, time=0.04, forward=0.02, backward=0.02, reshard=0.0, sync=0.0
        )
        if index < middle
        else dataclasses.replace(layer, gpus=tuple(range(8)), gpu_count=8)
        for index, layer in enumerate(found.layers)
    ]
    total = sum(layer.reshard + layer.forward + layer.backward + layer.sync for layer in layers)
    held = sum(layer.time * layer.gpu_count for layer in layers)
    made = dataclasses.replace(found, layers=tuple(layers), iteration_time=total, gpu_seconds=held)
    arguments = ["run", str(dp.save(made, tmp_path / "plan.json")), "--emulate-rank", "5", "--steps", "3", "--json"]
    # An equal of the foreground: at the lowest priority it may get nothing where something else uses this core.
    result = CliRunner().invoke(app, [*arguments, "--background", EXAMPLE, "--policy", "naive"])
    assert result.exit_code == 0, result.output
    run = json.loads(result.stdout)
    assert (run["emulated_rank"], run["ranks"], run["cores"]) == (5, 8, 1)
    assert [stage["gpus"] for stage in run["stages"]] == [list(range(8))]
    assert {span["gpu"] for span in run["timeline"]["spans"]} == {5}
    assert {span["kind"] for span in run["timeline"]["spans"]} >= {"forward", "backward", "reshard", "sync", "update"}
    elsewhere = 0.04 * middle
    front = run["foreground"]
    assert front["alone"]["iteration_time"]["p50"] >= elsewhere
    # However long the second half takes on a busy machine, the first is waited for.
    assert front["alone"]["idle_share"][0] * front["alone"]["iteration_time"]["mean"] >= 0.95 * elsewhere
    assert front["first_loss"] is None
    assert run["background"]["harvest"] > 0
    assert "emulated: rank 5 of 8" in run["timeline"]["title"]


@pytest.mark.stress  # torch is compiled again without its assertions, where the installation cannot be written
@pytest.mark.processes
def test_a_run_needs_no_assertions(tmp_path: Path) -> None:
    # That none has an effect is checked in test_architecture.py: an emulated rank once kept its place in one.
    graph = dp.capture(EXAMPLE).graph
    made = dp.plan(profile_from_times(graph, [lambda b: 1e-4 * b] * len(graph.layers)), 2, 4)
    command = ["-m", "deeppool.cli", "run", str(dp.save(made, tmp_path / "plan.json")), "--emulate-rank", "0"]
    done = subprocess.run(
        [sys.executable, *command, "--steps", "3", "--json"],
        env={**os.environ, "PYTHONOPTIMIZE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["foreground"]["iteration_time"]["count"] == 3


@pytest.mark.parametrize(("rank", "bound"), [(-1, "least 0"), (4, "most 3")])
def test_an_emulated_rank_outside_the_plan_is_refused(rank: int, bound: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"must be at {bound}, got {rank} \(the plan is for 4 GPUs\)"):
        dp.launch(two_layer_plan(), emulate_rank=rank)


def test_a_record_says_that_it_was_emulated() -> None:
    record = dataclasses.replace(run_of(), emulated_rank=3)
    assert "emulated: rank 3 of 4, transfers modelled, on Test CPU" in str(record)
    assert "rank 3 20 %" in str(record)
    assert "loss" not in str(record)
    for figure in (dp.figures.timeline(record), dp.figures.collocation(record)):
        assert "emulated: rank 3 of 4" in figure.to_json()


def test_times_of_one_rank_do_not_correct_a_profile() -> None:
    profile, made = two_stages()
    run = run_with(made, emulated_rank=2, cores=1)
    with pytest.raises(PlanError, match=r"emulated rank 2 of 4, so it measured that rank's layers alone"):
        correct_profile(profile, made, run)
