"""Training job of the soak test: minimal, but it reshards, writes checkpoints and loads data in a process."""

from functools import cache

import torch
from torch import nn
from torch.utils.data import TensorDataset

import deeppool as dp
from deeppool.planning.plan import Plan
from tests.strategies import profile_from_times

BATCH = 4


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5))


net.input_shape = (3, 6, 6)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(20, 3, 6, 6, generator=generator), torch.arange(20) % 5)


def adamw(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def job() -> dp.TrainingJob:
    return dp.TrainingJob(
        model=f"{__name__}:net", input_shape=net.input_shape, dataset=dataset, optimizer=adamw, loader_workers=1
    )


@cache
def plan(gpus: int) -> Plan:
    """The convolution on all GPUs, the dense layer on one."""
    graph = job().capture().graph
    times = [(lambda b: 1e-3 * b) if index == 0 else (lambda b: 1e-3) for index in range(len(graph.layers))]
    return dp.plan(profile_from_times(graph, times), gpus, BATCH)
