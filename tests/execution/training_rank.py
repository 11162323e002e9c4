"""One rank that trains under several rules: see test_same_training.py."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import Buckets
from deeppool.collectives.layout import Layout
from deeppool.costs.communication import Network
from deeppool.device.find import find_device
from deeppool.device.protocol import Device, Precision
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.eager_driver import EagerDriver
from deeppool.execution.eager_sgd import EagerSGD
from deeppool.execution.stages import Division, Stage
from deeppool.execution.trainer import SyncDriver, Trainer
from deeppool.execution.transfer_scheduler import TransferDriver, TransferScheduler
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.placement import place_model
from deeppool.training.training_job import Training
from tests.strategies import measured_network

SHAPE = (3, 6, 6)
UPDATES = 3

LINK = Link(10e9, 5e-6, "made by hand")
SLOW_LIBRARY = replace(measured_network({2: (1.0,) * 3, 8: (1.0,) * 3}), inside=None, between=None)
MEASURED = Network(Cluster(8, "by hand", 8, LINK, LINK, measured=SLOW_LIBRARY), "measured")
TRYING = TransferScheduler(measured_updates=1, tried_updates=1)
TRIED_UPDATES = 2 + 2 * 13
"""Updates before the plans, and most updates of their trial: two in each turn of 7, 4 and 2 plans."""


@dataclass(frozen=True)
class Rule:
    """A model and how it is trained."""

    name: str
    batch_norm: bool = False
    dropout: float = 0.0
    frozen: bool = False
    optimizer: str = "SGD"
    schedule: bool = False
    accumulation: int = 1
    clip_norm: float | None = None
    precision: Precision = "fp32"
    batch: int = 9
    dtype: torch.dtype = torch.float64
    overlap_sync: bool = False
    data_parallel: bool = False
    """One stage on all ranks, instead of one on a random set for each layer."""
    updates: int = UPDATES
    transfers: bool = False
    """Whether transfers follow a plan, made after the second update."""
    tries_plans: bool = False
    """Whether several plans are tried on a measured network, some of them in halves."""
    eager: str | None = None
    """Mode of eager-SGD."""
    infinite_update: int | None = None
    """Updates in which the data hold an infinite number."""


class Model(nn.Module):
    """Two branches of a stem, a parameter that is used twice, and the parts that a rule selects."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8) if rule.batch_norm else nn.Identity()
        self.left = nn.Conv2d(8, 8, 1)
        self.right = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 1))
        self.right_norm = nn.BatchNorm2d(8) if rule.batch_norm else nn.Identity()
        self.dropout = nn.Dropout(rule.dropout)
        self.tied = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)
        if rule.dropout:
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=rule.dropout)
            # Fused attention draws its masks on each rank.
            self.encoder.self_attn.dropout = 0.0
        if rule.frozen:
            self.left.requires_grad_(False)
            self.tied.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.norm(self.stem(x)))
        x = x + torch.tanh(self.left(x)) * self.right_norm(self.right(x))
        if hasattr(self, "encoder"):
            # A sequence first, in which samples are dimension 1.
            x = self.encoder(x.flatten(2).permute(2, 0, 1)).permute(1, 2, 0).unflatten(2, x.shape[2:])
        x = self.dropout(x.mean((2, 3)))
        x = torch.tanh(self.tied(x))
        return self.head(self.tied(x))


def make_model(rule: Rule) -> nn.Module:
    torch.manual_seed(0)
    return Model(rule).to(rule.dtype)


@cache
def _captured(batch_norm: bool, dropout: float, frozen: bool, dtype: torch.dtype) -> CapturedModel:
    rule = Rule("captured", batch_norm=batch_norm, dropout=dropout, frozen=frozen, dtype=dtype)
    return capture(make_model(rule), SHAPE, input_dtype=dtype)


def captured_model(rule: Rule) -> CapturedModel:
    """Returns the captured model of a rule, with weights of its own: each model is captured once."""
    return _captured(rule.batch_norm, rule.dropout, rule.frozen, rule.dtype).copy()


def prepare(ranks: int, rules: tuple[Rule, ...], *_: object) -> None:
    """Captures the models of all rules, for all ranks."""
    for rule in rules:
        captured_model(rule)


def make_optimizer(rule: Rule, parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.01, "weight_decay": 0.1}}[rule.optimizer]
    return getattr(torch.optim, rule.optimizer)(parameters, **options)


def make_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def make_batch(rule: Rule, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(rule.batch, *SHAPE, generator=generator, dtype=torch.float64).to(rule.dtype)
    if number == rule.infinite_update:
        inputs[-1] = torch.inf
    return inputs, torch.randint(10, (rule.batch,), generator=generator)


def training(rule: Rule) -> Training:
    return Training(
        optimizer=lambda parameters: make_optimizer(rule, parameters),
        schedule=make_schedule if rule.schedule else None,
        accumulation=rule.accumulation,
        clip_norm=rule.clip_norm,
        synchronise_batch_norm=rule.batch_norm,
        seed=7,
    )


def stages(rule: Rule, layers: int, ranks: int) -> list[Stage]:
    """Returns stages with a random set of GPUs for every layer; the first one has them all."""
    if rule.data_parallel:
        return [Stage("all", tuple(range(layers)), Layout(tuple(range(ranks)), rule.batch))]
    draw = random.Random(rule.name)
    sets = [tuple(sorted(draw.sample(range(ranks), draw.randint(1, ranks)))) for _ in range(layers)]
    sets[0] = tuple(range(ranks))
    return [Stage(str(index), (index,), Layout(gpus, rule.batch)) for index, gpus in enumerate(sets)]


def division(rule: Rule, device: Device) -> Division | None:
    """As a rank of a run chooses it."""
    if rule.transfers:
        return "layers"
    return "buckets" if rule.overlap_sync and device.asynchronous else None


def run_rank(rank: int, ranks: int, rules: tuple[Rule, ...], folder: str, kind: str = "cpu") -> None:
    """Trains under each rule; saves the parameters and buffers of this rank, its losses and the loss's scale."""
    torch.set_num_threads(1)
    device = find_device(kind)
    place = device.torch_device()
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    for rule in rules:
        captured = place_model(captured_model(rule), place)
        parts = stages(rule, len(captured.graph.layers), ranks)
        trainer = Trainer(
            captured,
            parts,
            ProcessGroup(device),
            training(rule),
            rule.precision,
            overlap_sync=rule.overlap_sync,
            # Several for each stage of so small a model.
            buckets=Buckets(alone=1000, size=1500),
            choose_schedule=TRYING.choose_schedule(MEASURED) if rule.tries_plans else None,
            divide_stages=division(rule, device),
            make_driver=driver_of(rule),
        )
        losses = []
        for update in range(rule.updates):
            numbers = range(update * rule.accumulation, (update + 1) * rule.accumulation)
            batches = [tuple(tensor.to(place) for tensor in make_batch(rule, number)) for number in numbers]
            losses.append(
                trainer.iterate(
                    [
                        lambda shard, b=b: (b[0][shard.start : shard.stop], b[1][shard.start : shard.stop])
                        for b in batches
                    ]
                )
            )
        unfinished = len(trainer.step.pending())
        trainer.driver.drain()
        assert not trainer.step.pending()
        mine = {name for part in parts for name in names_of(captured, part) if rank in part.layout.gpus}
        state = {name: value.cpu() for name, value in captured.source.state_dict().items() if name in mine}
        scale = torch.tensor(trainer.update.scale.factor)
        torch.save(
            {
                "state": state,
                "losses": torch.tensor(losses, dtype=torch.float64),
                "scale": scale,
                "unfinished": unfinished,
                "transfers": trainer.driver.transfers and json.dumps(serialization.to_json(trainer.driver.transfers)),
            },
            Path(folder, f"{rule.name}-{rank}.pt"),
        )
    dist.destroy_process_group()


def driver_of(rule: Rule) -> Callable[[Trainer], SyncDriver] | None:
    if rule.eager is not None:
        return lambda trainer: EagerDriver(trainer, EagerSGD(mode=rule.eager).join)
    if rule.tries_plans:
        return lambda trainer: TRYING.driver(trainer, MEASURED)
    return make_transfer_driver if rule.transfers else None


def make_transfer_driver(trainer: Trainer) -> TransferDriver:
    """Returns a driver whose latency is a part's compute, so that some gradients travel together and others do not."""
    link = Link(1e6, 1e-4, "made by hand")
    network = Network(Cluster(trainer.ranks, "by hand", trainer.ranks, link, link))
    return TransferDriver(trainer, TransferScheduler(measured_updates=1, tried_updates=0), network)


def names_of(captured, stage: Stage) -> set[str]:
    """Returns the names of a stage's parameters and running statistics."""
    names = {name for layer in stage.layers for name in captured.graph.layers[layer].parameters}
    modules = {name.rpartition(".")[0] for name in names}
    buffers = {name for name, _ in captured.source.named_buffers() if name.rpartition(".")[0] in modules}
    return names | {name for name in buffers if not name.endswith("num_batches_tracked")}
