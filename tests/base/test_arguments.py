"""Arguments that are no record: the file of one, and the function that makes one."""

import inspect
import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import deeppool as dp
from deeppool.base import run_registry
from deeppool.errors import DeeppoolError, InvalidValueError
from tests.figures.records import two_layer_plan

TRACE = dp.WorkloadTrace("a", "b", (dp.TraceJob(name="x", role="foreground", source="x", iterations=1),))


def training_job() -> dp.TrainingJob:
    return dp.TrainingJob(model="resnet18", input_shape=(3, 8, 8), dataset=list, optimizer=list)


def job() -> None:
    """Stands for a function that makes a job."""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: dp.plan("own.json", 2, 8),
            "profile must be a Profile, got 'own.json' (dp.load('own.json') reads a file)",
        ),
        (lambda: dp.frontier(two_layer_plan(), 2, 8), "profile must be a Profile, got a Plan (dp.profile makes one)"),
        (
            lambda: dp.launch(Path("plan.json")),
            "plan must be a Plan, got 'plan.json' (dp.load('plan.json') reads a file)",
        ),
        (lambda: dp.simulate(None), "plan must be a Plan, got None (dp.plan makes one)"),
        (lambda: dp.train("plan.json", job, steps=1), "plan must be a Plan, got 'plan.json'"),
        (
            lambda: dp.train(two_layer_plan(), job, steps=1),
            "job must be a TrainingJob, got 'job' (give what it returns: job())",
        ),
        (
            lambda: dp.train(two_layer_plan(), "mine:job", steps=1),
            "job must be a TrainingJob, got 'mine:job' (import and call it)",
        ),
        (lambda: dp.save({}, "plan.json"), "record must be a Record, got a dict"),
        (lambda: dp.figures.advice(two_layer_plan()), "found must be an Advice, got a Plan (dp.advise makes one)"),
        (
            lambda: dp.widgets.AmplificationExplorer("x.json"),
            "profile must be a Profile, got 'x.json' (dp.load('x.json')",
        ),
        (lambda: dp.start(3), "function must be a function, got 3"),
        (
            lambda: dp.scaling(dp.find_profile("vgg16-h200"), lambda batch: 3),
            "steps must be a StepsToAccuracy, got '<lambda>' (dp.find_steps makes one)",
        ),
        (lambda: dp.BackgroundJob({}), "job must be a TrainingJob or a Job, got a dict (dp.TrainingJob makes one)"),
        (lambda: dp.Cluster(2, inside=1e9), "inside must be a Link, got 1000000000.0"),
        (lambda: dp.TransferScheduler(transfers="x.json"), "transfers must be a TransferPlan or None, got 'x.json'"),
        (lambda: dp.launch(two_layer_plan(), seed="x", steps=3), "seed must be a whole number, got 'x'"),
        (
            lambda: dp.measure_transfers(training_job(), global_batch=None),
            "global_batch must be a whole number, got None",
        ),
        (lambda: dp.measure_jobs([training_job()], global_batch=8, steps=2), "steps must be at least 3, got 2"),
        (
            lambda: dp.compare_orders([training_job()] * 2, global_batch=8, buckets=[0]),
            "buckets must be positive and finite, got 0",
        ),
        (
            lambda: dp.BackgroundJob("resnet18"),
            "job must be a TrainingJob or a Job, got 'resnet18' (dp.TrainingJob makes one)",
        ),
        (lambda: dp.load(None), "path must be a str or a path, got None"),
        (
            lambda: dp.measure_jobs([job], global_batch=8),
            "jobs[0] must be a TrainingJob, got 'job' (give what it returns: job())",
        ),
        (lambda: dp.pair_jobs(x for x in ()), "jobs must be a list, got a generator"),
        (
            lambda: dp.simulate_cluster(dp.WorkloadTrace("a", "b", {}), 2),
            "jobs must be a list, got a dict",
        ),
        (
            lambda: dp.compare_with_run(two_layer_plan(), two_layer_plan()),
            "run must be a RunRecord, got a Plan (dp.launch makes one)",
        ),
        (
            lambda: dp.simulate_cluster(TRACE, 2, sources={"x": "x.json"}),
            "sources['x'] must be a Profile or a Plan, got 'x.json' (dp.load('x.json') reads a file)",
        ),
        (
            lambda: dp.plan(dp.find_profile("vgg16-h200"), 2, 8, optimizer=[]),
            "optimizer must be one of sgd, momentum, adam, adamw, got a list",
        ),
        (lambda: dp.plan(dp.find_profile("vgg16-h200"), 2, 10**30), "global_batch must be at most"),
        (
            lambda: dp.capture("resnet18", on_progress="print"),
            "on_progress must be a function or None, got 'print'",
        ),
    ],
)
def test_an_argument_of_another_type_says_how_to_get_the_right_one(call, told) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(told)):
        call()


def required(name: str) -> list[str]:
    parameters = inspect.signature(getattr(dp, name)).parameters.values()
    return [x.name for x in parameters if x.default is x.empty and x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)]


FUNCTIONS = [name for name in dp.__all__ if inspect.isfunction(getattr(dp, name))]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if required(name)])
def test_public_functions_refuse_objects_of_other_types_in_one_line(name) -> None:
    with pytest.raises(DeeppoolError, match=r"must be|a model is a") as refused:
        getattr(dp, name)(**{x: {} for x in required(name)})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if "on_progress" in inspect.signature(getattr(dp, name)).parameters]
)
def test_arguments_are_refused_before_a_run_is_registered(name, monkeypatch) -> None:
    monkeypatch.setattr(run_registry, "_registration", None)  # which starts a thread
    with pytest.raises(InvalidValueError, match="must be"):
        getattr(dp, name)(**{x: {} for x in required(name)}, on_progress="print")


ODD = (
    None, "text", "a\0b", -1, math.nan, math.inf, 10**30, True, b"x", Path("x"), [1], [None], {"a": 1}, object(), int,
    lambda: None, torch.tensor(2), torch.ones(3), np.int64(2), np.float32(2), np.ones(2),
)  # fmt: skip
VALID = {
    "BackgroundJob": {"job": training_job()},
    "Cluster": {"gpus": 2},
    "Conditions": {},
    "CrossoverScheduler": {"jobs": [training_job()] * 2, "global_batch": 8},
    "EagerSGD": {"mode": "quorum", "quorum": 1},
    "JobCosts": {"name": "a", "compute": 1.0, "communication": 0.5},
    "Link": {"bandwidth": 1e9, "latency": 0.0, "source": "a"},
    "Sharing": {},
    "StepsTable": {"name": "a", "source": "b", "pairs": [(8, 100), (16, 60)]},
    "TraceJob": {"name": "x", "role": "foreground", "source": "x", "iterations": 1},
    "TrainingJob": {"model": "resnet18", "dataset": list, "optimizer": list},
    "TransferScheduler": {},
    "Trials": {"job": job, "configurations": [{"lr": 0.1}], "steps": 1, "folder": "trials"},
    "WorkloadTrace": {"name": "a", "method": "b", "jobs": TRACE.jobs},
    "launch": {"plan": two_layer_plan(), "steps": 3},
    "pair_jobs": {"jobs": [dp.JobCosts(name, 1.0, 0.5) for name in "ab"]},
    "plan": {"profile": dp.find_profile("vgg16-h200"), "cluster": 2, "global_batch": 8},
    "simulate": {"plan": two_layer_plan()},
    "simulate_cluster": {"trace": TRACE, "cluster": 2, "sources": {"x": two_layer_plan(2)}},
    "train": {"plan": two_layer_plan(), "job": training_job(), "steps": 3},
}


class NotStartedError(DeeppoolError):
    """Raised in place of starting processes."""


def refuse_to_start(*_: object, **__: object) -> None:
    raise NotStartedError


@pytest.mark.parametrize(
    ("name", "argument"), [(name, x) for name in VALID for x in inspect.signature(getattr(dp, name)).parameters]
)
def test_an_argument_of_an_odd_type_works_or_is_refused_but_fails_nowhere_inside(
    name, argument, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module, starts in (("launch", "collocated_processes"), ("train", "RestartLoop")):
        monkeypatch.setattr(f"deeppool.runs.{module}.{starts}", refuse_to_start)
    with suppress(NotStartedError):
        getattr(dp, name)(**VALID[name])
    for value in ODD:
        if argument == "on_progress" and callable(value):
            continue  # it is called, and takes other arguments
        with suppress(DeeppoolError):
            getattr(dp, name)(**{**VALID[name], argument: value})


def test_lists_of_other_kinds_and_seeds_of_torch_are_taken() -> None:
    costs = [dp.JobCosts(name, 1.0, 0.5) for name in "ab"]
    assert dp.pair_jobs(tuple(costs)) == dp.pair_jobs(np.array(costs)) == dp.pair_jobs(costs)
    assert replace(training_job(), seed=2**64 - 1).seed == 2**64 - 1  # as torch.initial_seed() may be
    assert dp.Conditions(speeds=np.ones(2)).speeds == (1.0, 1.0)
