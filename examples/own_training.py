"""A training of your own: model, data, loss and optimizer as Python, trained by a plan.

    python -m examples.own_training                                       # profile, plan for 2 ranks: plan.json
    deeppool train plan.json examples.own_training:job --steps 200 --checkpoints checkpoints

Interrupt it, and the same command goes on; plan for another number of ranks, and it goes on there too.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import deeppool as dp


def dataset() -> Dataset:
    """Noisy copies of one image per class; yours reads files, and anything with a length and positions will do."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(10, (512,), generator=generator)
    prototypes = torch.randn(10, 3, 32, 32, generator=generator)
    return TensorDataset(prototypes[classes] + torch.randn(512, 3, 32, 32, generator=generator), classes)


def smoothed(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean over the samples."""
    return nn.functional.cross_entropy(outputs, target, label_smoothing=0.1)


def optimizer(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Weights decay, scales and biases do not."""
    weights = [(name, parameter) for name, parameter in parameters if parameter.dim() > 1]
    others = [(name, parameter) for name, parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=2e-3)


def job() -> dp.TrainingJob:
    """What ``deeppool train`` takes by name."""
    return dp.TrainingJob(
        model="examples.two_branch:two_branch",
        input_shape=(3, 32, 32),
        dataset=dataset,
        loss=smoothed,
        optimizer=optimizer,
        schedule=lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, 200),
        clip_norm=1.0,
        synchronise_batch_norm=True,
    )


def trials() -> dp.Trials:
    """What ``deeppool train … --background`` takes by name: learning rates, tried in the gaps of another training."""

    def with_rate(rate: float) -> dp.TrainingJob:
        return replace(job(), optimizer=lambda named: torch.optim.SGD([x for _, x in named], lr=rate), schedule=None)

    return dp.Trials(with_rate, [{"rate": 0.1}, {"rate": 0.01}], steps=100, batch=16, folder="trials")


if __name__ == "__main__":
    profile = dp.profile(job().capture(), batch_sizes=[8, 16, 32])
    plan = dp.plan(profile, dp.find_cluster("loopback", 2), global_batch=32)
    print(plan.explain())
    dp.save(plan, "plan.json")
