"""A model whose computing is slept, for jobs of any ratio of communication to computing; its gradients are real.

Sleeping stands for a GPU that computes: it leaves the cores to the transfers. Each layer sleeps its share for every
sample, one part in forward and two in backward, and has an equal share of the parameters.
"""

import threading
import time

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import deeppool as dp

LAYERS, WIDTH = 8, 256
DEVICE = threading.Lock()
"""Two threads of a rank share its one device."""


@torch.library.custom_op("crossover_benchmark::sleep", mutates_args=())
def sleep(x: Tensor, forward: float, backward: float) -> Tensor:  # noqa: ARG001
    with DEVICE:
        time.sleep(forward * x.shape[0])
    return x.clone()


@sleep.register_fake
def _(x: Tensor, forward: float, backward: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def _setup(ctx, inputs, output):  # noqa: ARG001
    ctx.seconds = inputs[2]


def _backward(ctx, gradient):
    with DEVICE:
        time.sleep(ctx.seconds * gradient.shape[0])
    return gradient.clone(), None, None


sleep.register_autograd(_backward, setup_context=_setup)


class Sleep(nn.Module):
    """A third of some seconds a sample in forward, and two thirds in backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        return sleep(x, self.seconds / 3, 2 * self.seconds / 3)


class Slept(nn.Module):
    """Layers that sleep some seconds a sample in all, with some MB of parameters."""

    def __init__(self, seconds: float, megabytes: float) -> None:
        super().__init__()
        hidden = int(megabytes * 1e6 / 4 / LAYERS / 2 / WIDTH)
        self.sleeps = nn.ModuleList(Sleep(seconds / LAYERS) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(WIDTH, hidden, bias=False) for _ in range(LAYERS))
        self.up = nn.ModuleList(nn.Linear(hidden, WIDTH, bias=False) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for sleeps, down, up in zip(self.sleeps, self.down, self.up, strict=True):
            x = sleeps(x)
            x = x + up(torch.relu(down(x)))
        return self.head(x)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(64, WIDTH, generator=generator), torch.arange(64) % 10)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def job(seconds: float, megabytes: float) -> dp.TrainingJob:
    torch.manual_seed(0)
    return dp.TrainingJob(model=Slept(seconds, megabytes), input_shape=(WIDTH,), dataset=dataset, optimizer=sgd)
