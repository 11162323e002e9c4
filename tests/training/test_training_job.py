"""What a training's definition refuses before a process starts, and what it converts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.training.training_job import load_job, save_job

DATA = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))


def net() -> nn.Module:
    return nn.Linear(2, 2)


def make_job(**changes: Any) -> dp.TrainingJob:
    choices: dict[str, Any] = {"dataset": lambda: DATA, "optimizer": lambda named: torch.optim.SGD(named, lr=0.1)}
    return dp.TrainingJob(**{"model": nn.Linear(2, 2), "input_shape": (2,)} | choices | changes)


def test_whole_numbers_of_numpy_are_pythons() -> None:
    job = make_job(seed=np.int64(5), accumulation=np.int32(2), loader_workers=np.int64(1))
    assert [(type(value), value) for value in (job.seed, job.accumulation, job.loader_workers)] == [
        (int, 5),
        (int, 2),
        (int, 1),
    ]


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"accumulation": 2.0}, "accumulation must be a whole number, got 2.0"),
        ({"accumulation": 0}, "accumulation must be at least 1, got 0"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
        ({"loader_workers": -1}, "loader_workers must be at least 0, got -1"),
        ({"dataset": DATA}, "dataset must be a function, which each process calls, got a TensorDataset"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "optimizer must be a function, .* got a SGD"),
        ({"sampler": torch.utils.data.SequentialSampler(DATA)}, "sampler must be a function, .* a SequentialSampler"),
        ({"schedule": [1, 2]}, "schedule must be a function, .* got a list"),
        ({"loss": "mse"}, "loss must be a function, .* got a str"),
    ],
)
def test_what_is_no_function_or_number_is_refused(changes: dict[str, Any], phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        make_job(**changes)


def test_a_model_that_is_neither_a_module_nor_a_name_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(
        CaptureError, match=r"a model is a torch.nn.Module, .* got 'net' \(give what it returns: net\(\)"
    ):
        save_job(make_job(model=net), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_gradient_is_refused_until_it_is_removed_as_it_would_not_be_sent(kind: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    job = make_job(model=model)
    hook = getattr(model[0].weight, kind)(lambda value: None)
    with pytest.raises(InvalidValueError, match=r"^'0\.weight' of Sequential has a hook on its gradient, which"):
        save_job(job, tmp_path)
    hook.remove()
    save_job(job, tmp_path)
    assert torch.equal(load_job(tmp_path).model[0].weight, model[0].weight)
