"""Background jobs and their queues: which job is next, and what is refused."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim import SGD

import deeppool as dp
from deeppool.base.sharing import Sharing
from deeppool.collocation.job_queue import BackgroundJob, JobQueue, job_lists, measured_job
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.job import Job
from tests.figures.records import two_layer_plan

pytestmark = pytest.mark.usefixtures("in_the_checkout")


TRAINING = dp.TrainingJob(model="resnet18", optimizer=partial(SGD, lr=0.1), dataset=list)


def job(**choices: object) -> BackgroundJob:
    return BackgroundJob(Job("resnet18", (3, 32, 32), batch=2), **choices)


def test_a_free_rank_takes_the_first_job() -> None:
    first, second, third = job(), job(), job()
    queue = JobQueue([first, second, third], ranks=2)
    assert [queue.take(1), queue.take(0)] == [first, second]
    assert queue.waiting() == [third]
    assert [queue.take(1), queue.take(0), queue.take(1)] == [third, None, None]
    assert queue.waiting() == []


def test_a_rank_with_its_own_queue_takes_from_that_only() -> None:
    first, second, other = job(), job(), job()
    queue = JobQueue({0: [first, second], 2: [other]}, ranks=3)
    assert queue.waiting() == [first, second, other]
    assert [queue.take(rank) for rank in (1, 2, 0, 2, 0)] == [None, other, first, None, second]


def test_a_model_by_name_trains_beside_every_rank() -> None:
    plan = two_layer_plan()
    queues = job_lists("resnet18", plan)
    assert sorted(queues) == list(range(plan.gpus))
    assert {only.name for (only,) in queues.values()} == {"resnet18"}
    with pytest.raises(CaptureError, match="unknown model 'resnet1'"):
        job_lists("resnet1", plan)
    assert job_lists(queues[0][0], plan) == [queues[0][0]]


def test_memory_is_bytes_or_a_size_with_a_unit() -> None:
    assert [job(memory=text).budget for text in (None, 5e8, "2GB", "1.5 GiB")] == [None, 5e8, 2e9, 1.5 * 2**30]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"steps": 0}, "steps of a background job must be at least 1, got 0"),
        ({"steps": 2.5}, "steps of a background job must be a whole number, got 2.5"),
        ({"checkpoint_every": 0}, "checkpoint_every of a background job must be at least 1, got 0"),
        ({"restarts": -1}, "restarts of a background job must be at least 0, got -1"),
        ({"memory": 0}, "memory of a background job must be positive and finite, got 0"),
        ({"memory": "lots"}, "a size of memory is, for example, 40GB or 37.5GiB, got 'lots'"),
    ],
)
def test_an_invalid_job_is_refused(choices: dict, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        job(**choices)


def test_an_invalid_queue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="given for rank 2; the ranks are 0 to 1"):
        JobQueue({2: [job()]}, ranks=2)
    with pytest.raises(InvalidValueError, match=r"must be a deeppool.BackgroundJob, got a Job \(put"):
        JobQueue([job().job], ranks=2)
    twice = [job(checkpoints=tmp_path), job(checkpoints=str(tmp_path / "other" / ".."))]
    with pytest.raises(InvalidValueError, match=r"two background jobs would write checkpoints into .*own\)"):
        JobQueue({0: twice[:1], 1: twice[1:]}, ranks=2)


def test_a_measured_run_takes_one_training_without_an_end_of_its_own(tmp_path: Path) -> None:
    plan = two_layer_plan()
    assert measured_job(job(), plan) == job()
    assert measured_job("resnet18", plan, 3).batch == 3
    with pytest.raises(InvalidValueError, match=r"has one background job, .* got a list \(deeppool.train"):
        measured_job([job()], plan)
    with pytest.raises(InvalidValueError, match="has no steps, checkpoints, memory or restarts of its own"):
        measured_job(job(checkpoints=tmp_path), plan)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"max_slowdown": 0.03}, "policy and max_slowdown are about a background job"),
        ({"policy": "nice"}, "policy and max_slowdown are about a background job"),
        ({"background": [], "policy": "wild"}, "policy must be one of none, naive"),
        ({"background": {7: [job()]}}, "the ranks are 0 to 3"),
        ({"background": TRAINING}, r"must be a deeppool.BackgroundJob, got a TrainingJob \(put"),
        ({"background": {0: TRAINING}}, r"BackgroundJob, got a TrainingJob \(put"),
        ({"background": torch.tensor(1.0)}, r"BackgroundJob, got a Tensor \(put"),
        ({"background": {0: np.array(1.0)}}, r"BackgroundJob, got a ndarray \(put"),
        ({"background": [job()], "policy": Sharing(home="thread")}, "run in processes of their own"),
    ],
)
def test_a_training_refuses_an_invalid_background_before_a_process_starts(choices, message) -> None:
    with pytest.raises(InvalidValueError, match=message):
        dp.train(two_layer_plan(), TRAINING, steps=1, **choices)
