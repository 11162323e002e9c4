"""One rank of a gradient test: see test_gradients.py."""

from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from deeppool.collectives.layout import Layout
from deeppool.device.find import find_device
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.placement import place_model
from deeppool.graph.models.torchvision_operators import define_missing_operators
from deeppool.training.training_job import Training
from tests.graph.capture.test_granularity import Blocks


class Branches(nn.Module):
    """A branch and a join, a residual connection, in-place ReLU, a parameter tied between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(inplace=True))
        self.right = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1))
        self.tied = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + torch.cat([self.left(x)[:, :4], self.right(x)[:, 4:]], dim=1)
        x = x.mean((2, 3))
        x = torch.tanh(self.tied(x))
        x = torch.tanh(self.tied(x))
        return self.head(x)


def vgg16() -> nn.Module:
    define_missing_operators()
    import torchvision

    # Dropout would draw other masks on each rank.
    return torchvision.models.vgg16(num_classes=10, dropout=0.0)


MODELS = {"branches": (Branches, 6), "blocks": (Blocks, 8), "vgg16": (vgg16, 32)}
"""Model name → (builder, size of its images)."""


def make_model(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().to(dtype)


def make_batch(name: str, batch: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    size = MODELS[name][1]
    inputs = torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(4, (batch,), generator=generator)


@cache
def captured_model(name: str, dtype: torch.dtype, granularity: str = "module") -> CapturedModel:
    """Captures a model; a rank trains with weights of its own, because it is a process of its own."""
    size = MODELS[name][1]
    return capture(make_model(name, dtype), (3, size, size), input_dtype=dtype, granularity=granularity)


def prepare(name: str, _: object, batch: int, dtype: torch.dtype, folder: str, granularity: str, kind: str) -> None:
    """Captures the model for all ranks."""
    captured_model(name, dtype, granularity)


def run_rank(
    rank: int,
    name: str,
    assignment: list[tuple[int, ...]],
    batch: int,
    dtype: torch.dtype,
    folder: str,
    granularity: str = "module",
    kind: str = "cpu",
) -> None:
    """Computes one iteration's gradients and saves those that this rank owns, with its part of the loss."""
    torch.set_num_threads(1)
    ranks = 1 + max(gpu for gpus in assignment for gpu in gpus)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    device = find_device(kind)
    place = device.torch_device()
    captured = captured_model(name, dtype, granularity)
    place_model(captured, place)
    stages = [Stage(str(index), (index,), Layout(gpus, batch)) for index, gpus in enumerate(assignment)]
    rule = Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    trainer = Trainer(captured, stages, ProcessGroup(device), rule)
    inputs, targets = (tensor.to(place) for tensor in make_batch(name, batch, dtype))
    loss = trainer.gradients([lambda shard: (inputs[shard.start : shard.stop], targets[shard.start : shard.stop])])
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in captured.source.named_parameters()
        if parameter.grad is not None
    }
    torch.save(
        {"loss": torch.tensor(loss, dtype=torch.float64), "gradients": gradients}, Path(folder, f"rank{rank}.pt")
    )
    dist.destroy_process_group()
