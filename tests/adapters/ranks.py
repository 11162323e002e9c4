"""What the ranks of these tests train, and where."""

import importlib
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from deeppool.execution.transfer_scheduler import TransferScheduler

RANKS = 2
SAMPLES = 4
"""Of a rank in a forward."""
STEPS = 40
TRYING = TransferScheduler(measured_updates=1, tried_updates=1)
"""Two measured updates, then at most 26 by several plans: all of STEPS are seen."""
FEATURES = 8


class Net(nn.Module):
    """Three layers that start elsewhere on each rank, unless its parameters are shared out."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 3

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(x).squeeze(1), labels)}


def dataset(samples: int) -> list[dict[str, torch.Tensor]]:
    x = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(11))
    return [{"x": row, "labels": row.sin().sum()} for row in x]


def preload(*modules: str) -> None:
    """Imports what all ranks need, in the process that they are forked from."""
    warnings.simplefilter("ignore")
    for module in modules:
        importlib.import_module(module)


def join(rank: int, port: int) -> None:
    """Says of this process what torchrun would."""
    torch.set_num_threads(1)
    place: Mapping[str, Any] = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip
    os.environ |= {name: str(value) for name, value in place.items()}
