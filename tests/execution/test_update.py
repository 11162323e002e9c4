"""The optimizer step: what all ranks of a training decide together."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from deeppool.execution.communicator import SingleRank
from deeppool.execution.update import Update
from deeppool.training.training_job import Training

META = torch.device("meta")


def test_a_rank_without_parameters_adds_to_the_norm_on_the_device_of_the_others() -> None:
    devices: list[torch.device] = []

    class Peers(SingleRank):
        def all_reduce(self, tensor: torch.Tensor, *_: Any) -> Any:
            devices.append(tensor.device)
            return SimpleNamespace(wait=lambda: None)

    parameters = {"weight": nn.Parameter(torch.ones(2, device=META))}
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1), clip_norm=1.0)
    update = Update(parameters, {"weight": (1,)}, Peers(), rule, META, scaled=False)
    with pytest.raises(RuntimeError, match="meta"):  # which has no numbers
        update.step()
    assert devices == [META]
