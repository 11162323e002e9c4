"""The learning rate that each rank reports of an update is that with which one process makes it."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import deeppool as dp
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import Message
from deeppool.runs.training_state import TrainingProgress
from tests.strategies import profile_from_times

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("in_the_checkout")]
UPDATES, BATCH = 7, 6
Schedule = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def inverse(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))


def stairs(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.StepLR(optimizer, 2)


def one_cycle(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    """It permits no more steps than updates."""
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=UPDATES)


def warm_up(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    rise = lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3)
    return lr_scheduler.SequentialLR(optimizer, [rise, lr_scheduler.ExponentialLR(optimizer, 0.5)], [3])


def sgd(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Samples(torch.utils.data.Dataset):
    """Samples of which those of some updates are infinite; they are read in their order."""

    def __init__(self, infinite: range = range(0)) -> None:
        self.infinite = infinite

    def __len__(self) -> int:
        return UPDATES * BATCH

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        value = torch.inf if position // BATCH in self.infinite else float(position % 5)
        return torch.full((4,), value), torch.tensor(position % 3)


def make_job(schedule: Schedule, infinite: range = range(0)) -> dp.TrainingJob:
    return dp.TrainingJob(
        model=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        input_shape=(4,),
        dataset=partial(Samples, infinite),
        sampler=torch.utils.data.SequentialSampler,
        optimizer=sgd,
        schedule=schedule,
    )


def make_plan(counts: list[int]) -> Plan:
    """A plan that computes layers on one or on two ranks, on which they are faster."""
    graph = make_job(stairs).capture().graph
    times = [(lambda batch: 1e-2 / batch) if count == 1 else (lambda batch: 1e-2 * batch) for count in counts]
    made = dp.plan(profile_from_times(graph, times), 2, BATCH)
    assert [layer.gpu_count for layer in made.layers] == counts
    return made


def of_one_process(schedule: Schedule, skipped: range = range(0)) -> list[float]:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = sgd([parameter])
    rates, made = [], schedule(optimizer)
    for update in range(UPDATES):
        rates.append(optimizer.param_groups[0]["lr"])
        if update not in skipped:
            optimizer.step()
            made.step()
    return rates


def reported(
    monkeypatch: pytest.MonkeyPatch, folder: Path, plan: Plan, job: dp.TrainingJob, **choices: object
) -> tuple[list[float], dict[int, list[float | None]]]:
    """The rates in the record, and those in the reports of each rank."""
    found: dict[int, list[float | None]] = {}
    add = TrainingProgress.add_report

    def listen(progress: TrainingProgress, message: Message, ranks: int) -> list[Message]:
        found.setdefault(message["rank"], []).append(message.get("learning_rate"))
        return add(progress, message, ranks)

    monkeypatch.setattr(TrainingProgress, "add_report", listen)
    record = dp.train(plan, job, steps=UPDATES, checkpoints=folder, **choices)
    assert [metrics.update for metrics in record.metrics] == list(range(1, UPDATES + 1))
    return [metrics.learning_rate for metrics in record.metrics], found


def first_is_late(rank: int, update: int) -> float:
    return 0.3 if (rank, update) == (0, 1) else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "counts", "choices"),
    [
        (inverse, [2, 2], {}),
        (warm_up, [2, 1], {}),
        (one_cycle, [2, 2], {"gradient_sync": dp.WaveletDataParallel()}),
        (warm_up, [2, 2], {"gradient_sync": dp.WaveletDataParallel()}),
        (one_cycle, [2, 1], {"gradient_sync": dp.EagerSGD(mode="full")}),
        (inverse, [2, 2], {"gradient_sync": dp.EagerSGD(mode="solo"), "load_imbalance": first_is_late}),
        (one_cycle, [2, 1], {"gradient_sync": dp.TransferScheduler(measured_updates=1, tried_updates=1)}),
        (stairs, [2, 2], {"gradient_sync": dp.TransferScheduler(measured_updates=1, tried_updates=0)}),
        # The second rank has no parameters.
        (stairs, [1, 1], {"gradient_sync": dp.EagerSGD(mode="full")}),
        (stairs, [1, 1], {"gradient_sync": dp.TransferScheduler(measured_updates=1, tried_updates=0)}),
    ],
)
def test_the_rates_of_all_ranks_are_those_of_one_process(
    schedule: Schedule, counts: list[int], choices: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, ranks = reported(monkeypatch, tmp_path, make_plan(counts), make_job(schedule), **choices)
    expected = of_one_process(schedule)
    assert rates == expected
    assert ranks == {0: expected, 1: expected if 2 in counts else [None] * UPDATES}


@pytest.mark.slow
def test_an_update_that_overflowed_leaves_the_rate_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, infinite = dataclasses.replace(make_plan([2, 1]), precision="fp16"), range(2, 4)
    rates, ranks = reported(monkeypatch, tmp_path, plan, make_job(warm_up, infinite))
    expected = of_one_process(warm_up, infinite)
    assert rates[2:5] == [rates[2]] * 3
    assert rates == expected
    assert ranks == {0: expected, 1: expected}
