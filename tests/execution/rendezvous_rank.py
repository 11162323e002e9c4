"""One rank of a model whose two branches wait for each other: see test_side_by_side.py."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from deeppool.collectives.layout import Layout
from deeppool.device.cpu import CpuDevice
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.training.training_job import Training

BATCH = 4


def wait_for(folder: str, me: str, other: str, step: str, timeout: float) -> None:
    """Returns once both branches are in the same step; gives up after some seconds."""
    Path(folder, f"{me}-{step}").touch()
    deadline = time.monotonic() + timeout
    while not Path(folder, f"{other}-{step}").exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"branch {me} was alone in its {step}")
        time.sleep(0.001)


@torch.library.custom_op("deeppool_tests::meet", mutates_args=())
def wait_for_other_branch(x: torch.Tensor, folder: str, me: str, other: str, timeout: float, step: str) -> torch.Tensor:
    if dist.is_initialized():  # not while capture tries the operator on numbers
        wait_for(folder, me, other, step, timeout)
    return x.clone()


@wait_for_other_branch.register_fake
def _(x, folder, me, other, timeout, step):
    return torch.empty_like(x)


def save_context(ctx, inputs, output):
    ctx.where = inputs[1:5]


def wait_in_backward(ctx, gradient):
    return wait_for_other_branch(gradient, *ctx.where, "backward"), None, None, None, None, None


wait_for_other_branch.register_autograd(wait_in_backward, setup_context=save_context)


class Branch(nn.Module):
    """Layer that proceeds only while the other branch runs too."""

    def __init__(self, folder: str, me: str, other: str, timeout: float) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.where = folder, me, other, timeout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return wait_for_other_branch(self.layer(x), *self.where, "forward")


class Model(nn.Module):
    """A stem, two branches, a head."""

    def __init__(self, folder: str, timeout: float) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.left, self.right = Branch(folder, "left", "right", timeout), Branch(folder, "right", "left", timeout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        return self.head(self.left(x) + self.right(x))


def run_rank(rank: int, folder: str, sets: dict[str, tuple[int, ...]], timeout: float) -> None:
    """One iteration; ``sets`` has the ranks of each branch, all others run on both."""
    torch.set_num_threads(1)
    captured = capture(Model(folder, timeout), (8,))
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=2)
    layers = captured.graph.layers
    stages = [
        Stage(layer.name, (index,), Layout(sets.get(layer.name.partition(".")[0], (0, 1)), BATCH))
        for index, layer in enumerate(layers)
    ]
    training = Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    trainer = Trainer(captured, stages, ProcessGroup(CpuDevice()), training)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(BATCH, 8, generator=generator), torch.randint(4, (BATCH,), generator=generator)
    trainer.iterate([lambda shard: (inputs[shard.start : shard.stop], targets[shard.start : shard.stop])])
    dist.barrier()
    dist.destroy_process_group()
