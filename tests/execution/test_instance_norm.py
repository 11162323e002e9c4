"""Running statistics of an InstanceNorm are of all shards where those of BatchNorm are."""

import torch
from torch import nn
from torch.nn import functional

import deeppool as dp
from deeppool.collectives.layout import Layout
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.training.training_job import Training
from tests.execution.thread_ranks import ThreadCommunicator, run_ranks

BATCH, UPDATES = 7, 2


def make_model() -> nn.Module:
    torch.manual_seed(0)
    norms = (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.InstanceNorm2d(4))
    return nn.Sequential(nn.Conv2d(2, 4, 1), *norms, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()


def batch_of(update: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(update)
    inputs = torch.randn(BATCH, 2, 2, 2, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (BATCH,), generator=generator)


def make_optimizer(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.1)


def test_running_statistics_are_those_of_one_process() -> None:
    captured = dp.capture(make_model(), (2, 2, 2), input_dtype=torch.float64)
    layers = tuple(range(len(captured.graph.layers)))

    def rank(communicator: ThreadCommunicator):
        stages = [Stage("all", layers, Layout((0, 1, 2), BATCH))]
        rule = Training(optimizer=make_optimizer, synchronise_batch_norm=True)
        trainer = Trainer(captured.copy(), stages, communicator, rule)

        def run() -> dict[str, torch.Tensor]:
            for update in range(UPDATES):
                data = batch_of(update)
                trainer.iterate([lambda shard, data=data: tuple(x[shard.start : shard.stop] for x in data)])
            return trainer.state

        return run

    found = run_ranks(3, rank)
    model = make_model()
    optimizer = make_optimizer(list(model.named_parameters()))
    for update in range(UPDATES):
        inputs, targets = batch_of(update)
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for state in found:
        assert {"1.running_mean", "1.running_var"} <= set(state)
        for name, value in state.items():
            torch.testing.assert_close(value, model.state_dict()[name])
