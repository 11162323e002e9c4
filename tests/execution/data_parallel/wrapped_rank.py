"""One rank of the tests of wrapped models; see test_scheduled_training.py."""

import itertools
import json
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.device.cpu import CpuDevice
from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.data_parallel.baselines import DeAR, ParameterServer
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining
from deeppool.execution.transfer_scheduler import TransferScheduler
from tests.strategies import measured_network

UPDATES = 7
FEATURES, SAMPLES = 6, 3
"""Samples of a rank in an update."""
SLOW_LIBRARY = replace(measured_network({2: (1.0,) * 3, 8: (1.0,) * 3}), inside=None, between=None)
LINK = Link(10e9, 5e-6, "made by hand")
CLUSTER = Cluster(8, "by hand", 8, LINK, LINK, measured=SLOW_LIBRARY)
"""The library is never chosen here."""


@dataclass(frozen=True)
class Case:
    name: str
    method: object
    optimizer: str = "SGD"
    scheduled: bool = False
    clip_norm: float | None = None
    accumulation: int = 1
    updates: int = UPDATES
    slow_rank: int | None = None
    """Rank whose forwards take longer."""


PREDICTED = TransferScheduler(measured_updates=1, tried_updates=0)
TRYING = TransferScheduler(measured_updates=1, tried_updates=1)
CASES = [
    Case("caramel", PREDICTED),
    # Two updates before the plans, and two for each turn of 7, 4 and 2 of them at most.
    Case("trying", TRYING, updates=2 + 2 * 13 + 3, slow_rank=1),
    Case("trying-adamw", TRYING, optimizer="AdamW", scheduled=True, updates=2 + 2 * 13 + 3),
    Case("trying-clipping", TRYING, clip_norm=0.05, accumulation=2, updates=2 + 2 * 13 + 3),
    Case("adamw", PREDICTED, optimizer="AdamW", scheduled=True),
    Case("clipping", replace(PREDICTED, measured_updates=2), clip_norm=0.05),
    Case("accumulating", replace(PREDICTED, batch_bytes=200.0), accumulation=2),
    Case("dear", DeAR(bucket_bytes=400)),
    Case("parameter-server", ParameterServer()),
    Case("sharded", ParameterServer(sharded=True)),
]


class Watched(nn.Linear):
    """Records the version of its weight whenever a forward reads it."""

    versions: list[int]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.versions.append(self.weight._version)
        return super().forward(values)


class Model(nn.Module):
    """Branches, and parameters that are tied, frozen, unused, read without their module, or the model's own."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        self.swapped = swapped
        """Whether the branches run the other way round, so that their gradients are ready in another order."""
        generator = torch.Generator().manual_seed(7)
        self.unused = nn.Linear(3, 2)
        self.first = Watched(FEATURES, 5)
        self.left, self.right = Watched(5, 5), Watched(5, 5)
        self.read = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.tied = Watched(5, 5, bias=False)
        self.tied.weight = self.left.weight
        self.last = Watched(5, 2)
        self.scale = nn.Parameter(torch.ones(2))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        self.double()
        for module in self.watched():
            module.versions = []

    def watched(self) -> list[Watched]:
        return [module for module in self.modules() if isinstance(module, Watched)]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.first(values).tanh()
        branches = [self.left, self.right]
        for branch in reversed(branches) if self.swapped else branches:
            values = values + branch(values.detach() * 0 + 1).tanh()
        values = nn.functional.linear(values, self.read.weight, self.read.bias).tanh()
        return self.last(self.tied(self.frozen(values)).tanh()) * self.scale


def samples(update: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * update + rank)
    return torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64), torch.randn(
        SAMPLES, 2, generator=generator, dtype=torch.float64
    )


def make_optimizer(case: Case, model: nn.Module):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if case.optimizer == "AdamW":
        optimizer = torch.optim.AdamW(trained, lr=0.01)
    else:
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if case.scheduled else None


@cache
def one_process(case: Case, ranks: int) -> tuple[list[dict[str, torch.Tensor]], list[torch.Tensor]]:
    """Parameters after each update of plain training on the samples of all ranks, and the outputs for some of them."""
    model = Model()
    optimizer, schedule = make_optimizer(case, model)
    states, outputs = [], []
    for update in range(case.updates):
        for part in range(case.accumulation):
            given = [samples(case.accumulation * update + part, rank) for rank in range(ranks)]
            inputs, targets = (torch.cat(each) for each in zip(*given, strict=True))
            (model(inputs) - targets).square().mean().backward()
        if case.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        with torch.no_grad():
            outputs.append(model(samples(0, 0)[0]))
    return states, outputs


def train(case: Case, rank: int, group: ScheduleGroup) -> dict:
    model = Model(swapped=rank % 2 == 1)
    if rank > 0:
        with torch.no_grad():
            model.first.weight.zero_()  # rank 0's replaces it
    optimizer, schedule = make_optimizer(case, model)
    states, outputs = one_process(case, len(group.ranks))
    issued, unfinished = [], []
    with ScheduledTraining(model, optimizer, case.method, CLUSTER, group) as training:
        for update in range(case.updates):
            optimizer.zero_grad()  # as many loops do first: it must not discard what is under way
            for part in range(case.accumulation):
                inputs, targets = samples(case.accumulation * update + part, rank)
                if rank == case.slow_rank:
                    time.sleep(0.002)
                if part < case.accumulation - 1:
                    with training.no_sync():
                        (model(inputs) - targets).square().mean().backward()
                else:
                    (model(inputs) - targets).square().mean().backward()
            if case.clip_norm is not None:
                training.clip_grad_norm_(case.clip_norm)
            run = training._run
            training.step()
            if schedule is not None:
                schedule.step()
            if run is not None and update > case.method.measured_updates:
                issued.append(run.issued)
                unfinished.append(len(run._pending))
            if update == 3:
                # An evaluation sees the last update, though nobody has drained it.
                with torch.no_grad():
                    torch.testing.assert_close(model(samples(0, 0)[0]), outputs[update], rtol=1e-9, atol=1e-12)
            if update == 4 and rank == 0:
                # A checkpoint of one rank: no other takes part.
                equal(model.state_dict(), states[update])
                assert len(optimizer.state_dict()["state"]) > 0
        check_timeline(training)
    assert not training.trying
    equal(model.state_dict(), states[-1])
    check_versions(model, case)
    assert not any(hooks for module in model.modules() for hooks in (module._forward_pre_hooks, module._forward_hooks))
    plan = json.dumps(serialization.to_json(training.transfers))
    return {"issued": issued, "plan": plan, "unfinished": unfinished}


def equal(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


def check_versions(model: Model, case: Case) -> None:
    """Every forward has read parameters whose number of updates is its own number."""
    for module in model.watched():
        read = module.versions[:: case.accumulation]
        # One more forward evaluates after the fourth update.
        steps = [later - earlier for earlier, later in itertools.pairwise(read)]
        assert len({step for step in steps if step}) == 1
        assert steps.count(0) <= 1


def check_timeline(training: ScheduledTraining) -> None:
    timeline = training.timeline
    if timeline is None:
        return
    kinds = {span.kind for span in timeline.spans}
    assert {"forward", "backward"} <= kinds
    assert timeline.provenance == "measured"
    assert min(span.start for span in timeline.spans) == 0


def prepare(ranks: int, counts: dict[int, list[str]], folder: str) -> None:
    """Trains in one process, for all ranks."""
    for count, names in counts.items():
        for case in CASES:
            if case.name in names:
                one_process(case, count)


def run(rank: int, ranks: int, counts: dict[int, list[str]], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    found = {}
    for count, names in counts.items():
        for case in CASES:
            if case.name in names:
                group = ScheduleGroup(CpuDevice(), range(count))
                if rank < count:
                    found[f"{case.name} of {count}"] = train(case, rank, group)
                else:
                    group.close()
    mistakes(rank, ranks)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def mistakes(rank: int, ranks: int) -> None:
    model = Model()
    every = list(model.parameters())
    group = ScheduleGroup(CpuDevice(), range(ranks))
    method = PREDICTED
    with pytest.raises(InvalidValueError, match=r"leaves out 2 of it that require gradients, such as unused.bias"):
        ScheduledTraining(
            model,
            torch.optim.SGD([p for n, p in model.named_parameters() if "unused" not in n and p.requires_grad], 0.1),
            method,
            CLUSTER,
            group,
        )
    with pytest.raises(InvalidValueError, match="LBFGS evaluates all gradients several times"):
        ScheduledTraining(model, torch.optim.LBFGS(every), method, CLUSTER, group)
    with pytest.raises(InvalidValueError, match=f"has {ranks - 1} GPUs, the training {ranks} ranks"):
        ScheduledTraining(model, make_optimizer(CASES[0], model)[0], method, replace(CLUSTER, gpus=ranks - 1), group)
    optimizer = make_optimizer(CASES[0], model)[0]
    training = ScheduledTraining(model, optimizer, method, CLUSTER, group)
    for update in range(4):
        if update == 3:
            # The update that is under way has none of it.
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        model(samples(update, rank)[0]).sum().backward()
        if update < 3:
            training.step()
    with pytest.raises(InvalidValueError, match="1 parameters train that did not at first"):
        training.step()
    with pytest.raises(RunError, match="two backwards without a step between them"):
        model(samples(0, rank)[0]).sum().backward()
    training.close()
