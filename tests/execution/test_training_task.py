"""What a rank refuses before it trains: a BatchNorm without a variance, a model with nothing to train, and others."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.training_task import user_task
from tests.strategies import profile_from_times

CPU = torch.device("cpu")


def check(model: nn.Module, batch: int, gpus: int, shape: tuple[int, ...] = (4,), **choices: bool) -> None:
    """Makes the task of a rank of a plan that has all layers on all GPUs."""
    job = dp.TrainingJob(
        model=model,
        input_shape=shape,
        dataset=lambda: torch.utils.data.TensorDataset(torch.randn(8, *shape), torch.arange(8) % 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        **choices,
    )
    graph = job.capture().graph
    plan = dp.plan(profile_from_times(graph, [lambda samples: 1e-3 * samples] * len(graph.layers)), gpus, batch)
    assert {layer.gpu_count for layer in plan.layers} == {gpus}
    user_task(job, batch, CPU, plan)


def test_a_shard_of_one_value_per_channel_has_no_variance_and_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    # Of five samples on three GPUs the last one has a single sample.
    with pytest.raises(InvalidValueError, match=r"BatchNorm in 0 has one value per channel .*synchronise_batch_norm"):
        check(model, batch=5, gpus=3)
    check(model, batch=6, gpus=3)
    check(model, batch=5, gpus=3, synchronise_batch_norm=True)
    with pytest.raises(InvalidValueError, match="one value per channel"):
        check(model, batch=1, gpus=1, synchronise_batch_norm=True)


def test_positions_of_an_image_are_values_and_running_statistics_need_none() -> None:
    images = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    check(images, batch=2, gpus=2, shape=(2, 4, 4))
    check(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval()), batch=2, gpus=2)


def test_a_synchronised_batch_norm_of_the_model_is_not_taken_for_one_of_shards() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3))
    with pytest.raises(InvalidValueError, match=r"1 is a SyncBatchNorm, .* \(synchronise_batch_norm=True"):
        check(model, batch=8, gpus=2)
    check(model, batch=8, gpus=2, synchronise_batch_norm=True)
    check(model, batch=8, gpus=1)


def test_a_plan_of_another_job_is_refused_by_what_differs() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)
    job = dp.TrainingJob(
        model=nn.Linear(4, 3),
        input_shape=(4,),
        dataset=lambda: data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    graph = job.capture().graph
    plan = dp.plan(profile_from_times(graph, [lambda samples: 1e-3 * samples] * len(graph.layers)), 2, 8)
    user_task(job, 8, CPU, plan)
    with pytest.raises(RunError, match=r"samples of shape \(4,\), the job's samples are of shape \(2, 2\)"):
        user_task(replace(job, input_shape=(2, 2)), 8, CPU, plan)
    deeper = replace(job, model=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    with pytest.raises(
        RunError,
        match=r"another model, Linear of layers linear … linear \(1\), and not of Sequential of layers 0 … 1 \(2\)",
    ):
        user_task(deeper, 8, CPU, plan)
    with pytest.raises(RunError, match="model Linear has changed since the plan was made"):
        user_task(replace(job, model=nn.Linear(4, 5)), 8, CPU, plan)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) if self.training else x


@pytest.mark.parametrize(
    ("last", "message"),
    [(nn.Dropout(0.5), "has changed since"), (Noisy(), "is of another model")],
    ids=["layer", "graph"],
)
def test_a_model_that_was_evaluated_is_told_to_be_in_evaluation_mode(last: nn.Module, message: str) -> None:
    """A training that goes on after its model was evaluated, as between epochs, was told that the model had changed."""
    model = nn.Sequential(nn.Linear(4, 3), last)
    job = dp.TrainingJob(
        model=model,
        input_shape=(4,),
        dataset=lambda: torch.utils.data.TensorDataset(torch.randn(8, 4), torch.arange(8) % 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    graph = job.capture().graph
    plan = dp.plan(profile_from_times(graph, [lambda samples: 1e-3 * samples] * len(graph.layers)), 1, 4)
    model.eval()
    with pytest.raises(RunError, match=rf"{message}.* \(call model\.train\(\), it is in evaluation mode, or profile"):
        user_task(job, 4, CPU, plan)


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="no parameter of Sequential requires a gradient: nothing would train"):
        check(nn.Sequential(nn.Linear(4, 3)).requires_grad_(False), batch=2, gpus=1)
