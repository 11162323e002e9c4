"""Networks whose computing is slept, layer by layer, and whose gradients are real.

Sleeping stands for a GPU that computes: it leaves the cores to the transfers. Layers, their parameters and shares of
the time are those of a real network, as estimated for a GPU; bytes and seconds are scaled.
"""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import deeppool as dp
from deeppool.simulation.transfers.parts import parts_of

SAMPLES, CLASSES = 64, 8


class Compute(torch.autograd.Function):
    """Adds the means of some parameters to the values, after some seconds a sample; the gradients come after others."""

    @staticmethod
    def forward(ctx, forward: float, backward: float, values: Tensor, *weights: Tensor) -> Tensor:
        ctx.seconds, ctx.sizes = backward, [weight.numel() for weight in weights]
        time.sleep(forward * len(values))
        return values + sum(weight.mean() for weight in weights)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        time.sleep(ctx.seconds * len(gradient))
        whole = float(gradient.sum())
        return None, None, gradient, *(torch.full((size,), whole / size) for size in ctx.sizes)


class Layer(nn.Module):
    """Sleeps in forward and backward; its parameters have some sizes."""

    def __init__(self, forward: float, backward: float, sizes: list[int]) -> None:
        super().__init__()
        self.seconds = forward, backward
        for number, size in enumerate(sizes):
            self.register_parameter(f"weight{number}", nn.Parameter(torch.zeros(size)))

    def forward(self, values: Tensor) -> Tensor:
        return Compute.apply(*self.seconds, values, *self.parameters())


class Slept(nn.Sequential):
    """All layers of a network."""


def job(model: str, megabytes: float, seconds: float) -> dp.TrainingJob:
    """A network of so many megabytes of gradients and seconds of computing a sample."""
    profile = dp.estimate(model, (3, 224, 224), gpu="a100-40", precision="fp32", batch_sizes=[32])
    parts, gradients = parts_of(profile, 32, 2)
    slower = seconds / sum(part.forward + part.backward for part in parts)
    fewer = megabytes * 1e6 / sum(each.size for each in gradients)
    sizes: list[list[int]] = [[] for _ in parts]
    for each in reversed(gradients):
        sizes[each.part].append(max(1, round(fewer * each.size / 4)))
    layers = [Layer(slower * p.forward, slower * p.backward, own) for p, own in zip(parts, sizes, strict=True)]
    return dp.TrainingJob(model=Slept(*layers), input_shape=(CLASSES,), dataset=dataset, optimizer=sgd)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(SAMPLES, CLASSES, generator=generator),
        torch.randint(CLASSES, (SAMPLES,), generator=generator),
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
