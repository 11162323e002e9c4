"""A training job that takes milliseconds a step, reshards under its plan, and loads its data in a process."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import deeppool as dp

BATCH = 4


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 5))


net.input_shape = (3, 6, 6)  # type: ignore[attr-defined]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(20, 3, 6, 6, generator=generator), torch.arange(20) % 5)


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.001)


def job() -> dp.TrainingJob:
    return dp.TrainingJob(
        model="job:net",
        input_shape=net.input_shape,  # type: ignore[attr-defined]
        dataset=dataset,
        optimizer=sgd,
        loader_workers=1,
    )


def write_plan(path: Path, profile_path: Path) -> None:
    """Writes a profile, and a plan for two ranks in which every layer is on both."""
    profile = dp.profile(job().capture(), device="cpu", batch_sizes=[BATCH // 2, BATCH])
    dp.save(profile, profile_path)
    plan = dp.plan(profile, dp.find_cluster("loopback", 2), BATCH)
    dp.save(replace(plan, layers=tuple(replace(layer, gpus=(0, 1), gpu_count=2) for layer in plan.layers)), path)
