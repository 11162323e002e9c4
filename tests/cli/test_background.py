"""Background jobs from the command line: what a name or a callable becomes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import deeppool as dp
from deeppool.cli.app import app
from deeppool.cli.train import find_background
from deeppool.training.training_job import TrainingJob
from tests.figures.records import two_layer_plan

pytestmark = pytest.mark.usefixtures("in_the_checkout")
OWN, TRIALS = "examples.own_training:job", "examples.own_training:trials"


def test_each_name_becomes_a_job_with_a_folder_of_its_own() -> None:
    references = [OWN, "resnet18", "examples.two_branch:two_branch", OWN]
    jobs = find_background(
        references, two_layer_plan(), batch=8, steps=40, checkpoints=Path("kept"), memory="2GB", restarts=1
    )
    assert [isinstance(job.job, TrainingJob) for job in jobs] == [True, False, False, True]
    assert [job.name for job in jobs] == [
        "examples.two_branch:two_branch",
        "resnet18",
        "examples.two_branch:two_branch",
        "examples.two_branch:two_branch",
    ]
    assert {(job.batch, job.steps, job.budget, job.restarts) for job in jobs} == {(8, 40, 2e9, 1)}
    assert [job.checkpoints.name for job in jobs] == [
        "0-examples-own-training-job",
        "1-resnet18",
        "2-examples-two-branch-two-branch",
        "3-examples-own-training-job",
    ]


def test_a_callable_may_return_trials_which_are_a_queue_by_themselves() -> None:
    none = {"batch": None, "steps": None, "checkpoints": None, "memory": None, "restarts": 0}
    found = find_background([TRIALS], two_layer_plan(), **none)
    assert isinstance(found, dp.Trials)
    assert [found.job(**configuration).schedule for configuration in found.configurations] == [None, None]


def test_without_names_there_is_no_background() -> None:
    assert find_background([], two_layer_plan(), batch=4, steps=None, checkpoints=None, memory=None, restarts=0) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--background", "resnet1"], "unknown model 'resnet1'"),
        (["--background", "examples.own_training:nothing"], "cannot import job 'examples.own_training:nothing'"),
        (["--background", OWN, "--background-memory", "lots"], "a size of memory is, for example, 40GB"),
        (
            ["--background", OWN, "--background-restarts", "-1"],
            "restarts of a background job must be at least 0, got -1",
        ),
        (["--background", TRIALS, "--background-steps", "3"], "trials have a batch, steps, a folder, a memory"),
        (["--background", TRIALS, "--background-batch", "4"], "trials have a batch, steps, a folder, a memory"),
        (["--background", TRIALS, "--background", OWN], "trials are a queue by themselves"),
        (["--max-slowdown", "0.03"], "policy and max_slowdown are about a background job"),
    ],
)
def test_a_background_that_cannot_be_is_reported_in_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    plan = dp.save(two_layer_plan(), tmp_path / "plan.json")
    done = CliRunner().invoke(app, ["train", str(plan), OWN, "--steps", "1", *options])
    assert done.exit_code == 1
    assert message in str(done.exception)


def test_a_profile_is_for_fewer_ranks() -> None:
    done = CliRunner().invoke(app, ["train", "plan.json", OWN, "--steps", "1", "--profile", "profile.json"])
    assert done.exit_code == 2
    assert "--profile needs --min-ranks" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("batch", "8"), ("steps", "3"), ("checkpoints", "kept"), ("memory", "2GB"), ("restarts", "1")]
)
def test_an_option_of_background_jobs_needs_one(option: str, value: str) -> None:
    done = CliRunner().invoke(app, ["train", "plan.json", OWN, "--steps", "1", f"--background-{option}", value])
    assert done.exit_code == 2
    assert f"--background-{option} needs --background JOB" in " ".join(done.stderr.replace("│", " ").split())
