"""The code of a plan and of a run, executed: it makes what it was made from."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deeppool as dp
from deeppool.cluster.cluster import PRESETS, Cluster, Link
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.planning.report.as_code import (
    CLUSTER_FILE,
    JOB,
    PLAN_FILE,
    launch_command,
    launch_python,
    plan_command,
    plan_python,
)
from tests.command import Command
from tests.figures.records import two_layer_plan
from tests.strategies import make_graph, profile_from_times

OWN = Cluster(4, "it's mine", 2, Link(1e10, 1e-6, "made (by hand)"), Link(1e9, 2e-6, "slower"), None)
PROFILE = profile_from_times(
    make_graph([(), (0,), (1,)]), [lambda b: 5e-4 * b, lambda b: 4e-3 + 2e-4 * b, lambda b: 8e-3]
)
PLANS: dict[str, dict[str, Any]] = {
    "defaults": {"cluster": replace(PRESETS["dgx-h100"], gpus=4)},
    "a limit": {"cluster": replace(PRESETS["ethernet-25g"], gpus=2), "amplification_limit": 1.15},
    "a cluster of one's own": {"cluster": OWN, "limit_scope": "iteration", "amplification_limit": 2.0},
    # The name of a preset, but other links.
    "a changed preset": {"cluster": replace(PRESETS["dgx-a100"], gpus=4, inside=OWN.inside)},
    "other options": {
        "cluster": replace(PRESETS["dgx-a100"], gpus=4),
        "network_model": "paper",
        "optimizer": "adam",
        "search": "published",
    },
    "another goal": {"cluster": OWN, "goal": "ddp_speed"},
}
each_plan = pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    dp.save(PROFILE, f"{PROFILE.graph.model}.json")
    return tmp_path


def comparable(plan: Any) -> Any:
    return replace(plan, search_time=0.0)


@each_plan
def test_python_makes_the_same_plan(options: dict[str, Any]) -> None:
    plan = dp.plan(dp.load(f"{PROFILE.graph.model}.json"), global_batch=16, **options)
    names: dict[str, Any] = {}
    exec(plan_python(plan), names)
    assert comparable(names["plan"]) == comparable(plan)
    assert plan.profile_fingerprint in plan_python(plan)


@each_plan
def test_the_command_makes_the_same_plan(options: dict[str, Any], deeppool: Command) -> None:
    plan = dp.plan(dp.load(f"{PROFILE.graph.model}.json"), global_batch=16, **options)
    words = shlex.split(plan_command(plan), comments=True)
    assert (CLUSTER_FILE in words) == ("dp.save(plan.cluster" in plan_command(plan))
    assert f"  # first dp.save(profile, '{PROFILE.graph.model}.json')" in plan_command(plan)
    dp.save(plan.cluster, CLUSTER_FILE)
    outcome = deeppool(*words[1:])
    assert outcome.code == 0, outcome.error
    assert comparable(dp.load(PLAN_FILE)) == comparable(plan)


def test_a_model_of_a_package_has_a_file_name_without_its_colon() -> None:
    plan = replace(dp.plan(PROFILE, 4, 16), model="jobs:seq")
    assert "dp.load('jobs-seq.json')" in plan_python(plan)
    assert "deeppool plan jobs-seq.json " in plan_command(plan)
    assert "dp.save(profile, 'jobs-seq.json')" in plan_command(plan)


def test_the_code_of_a_plan_of_a_shipped_profile_needs_no_file(folder: Path, deeppool: Command) -> None:
    """The command read a file that nothing had written."""
    plan = dp.plan(dp.find_profile("vgg16-h200"), dp.find_cluster("dgx-h200", 8), global_batch=32)
    (folder / f"{PROFILE.graph.model}.json").unlink()
    names: dict[str, Any] = {}
    exec(plan_python(plan), names)
    outcome = deeppool(*shlex.split(plan_command(plan))[1:])
    assert outcome.code == 0, outcome.error
    assert comparable(names["plan"]) == comparable(dp.load(PLAN_FILE)) == comparable(plan)


def test_the_code_of_a_run_calls_launch_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {
        "background": "resnet18",
        "background_batch": 2,
        "policy": "feedback",
        "max_slowdown": 0.03,
        "seconds": 9.5,
    }
    called: list[Any] = []
    plan = two_layer_plan()
    dp.save(plan, PLAN_FILE)
    monkeypatch.setattr(dp, "launch", lambda *given, **options: called.append((given, options)) or PROFILE)
    exec(launch_python(arguments), {})
    assert called == [((dp.load(PLAN_FILE),), arguments)]
    assert shlex.split(launch_command(arguments)) == shlex.split(
        "deeppool run plan.json --background resnet18 --background-batch 2 --policy feedback --max-slowdown 0.03 "
        "--seconds 9.5 -o run.json"
    )


def test_a_job_of_ones_own_is_named_and_what_is_not_given_is_left_out() -> None:
    job = BackgroundJob(dp.TrainingJob.__new__(dp.TrainingJob))
    arguments = {"background": job, "policy": None, "seconds": 30.0}
    assert "dp.launch(plan, background=job, seconds=30.0)" in launch_python(arguments)
    assert f"--background {JOB} --seconds 30" in launch_command(arguments)
