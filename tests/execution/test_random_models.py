"""Random models under random plans and options train as one process of plain torch does.

The ranks are threads, which train, write a checkpoint, and go on from it under another plan. Only masks of dropout are
not plain torch's: those cases are compared with one rank and one stage.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import deeppool as dp
from deeppool.collectives.buckets import Buckets
from deeppool.collectives.layout import Layout
from deeppool.device.find import find_device
from deeppool.execution.checkpoint import begin, load, save_shard
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.placement import place_model
from deeppool.training.training_job import Training
from tests.execution.random_models import CLASSES, INPUTS, WORDS, RandomModel, draws_masks
from tests.execution.thread_ranks import ThreadCommunicator, run_ranks
from tests.execution.training_rank import make_transfer_driver

UPDATES = (0, 2, 4)
"""Before training, at the checkpoint, and at the end."""
IN_EACH_RUN = (4, 5, 9, 54)
"""Seeds that run without `-m stress`; the last one has dropout."""


def own_loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    scores, extra = (outputs["logits"], outputs["extra"]) if isinstance(outputs, dict) else outputs
    return functional.cross_entropy(scores, target) + 0.1 * extra.square().mean()


@dataclass(frozen=True)
class Case:
    """What is drawn for a seed beside the model."""

    seed: int
    dropout: bool
    optimizer: str
    schedule: bool
    accumulation: int
    clip_norm: float | None
    batch: int
    ranks: tuple[int, int]
    granularity: str
    overlap_sync: bool
    divide: str | None
    transfers: bool
    device: str
    own_loss: bool


def case_of(seed: int) -> Case:
    draw = random.Random(seed)
    transfers = draw.random() < 0.3
    return Case(
        seed,
        dropout=draw.random() < 0.3,
        optimizer=draw.choice(["SGD", "AdamW", "groups"]),
        schedule=draw.random() < 0.5,
        accumulation=draw.choice([1, 1, 2, 3]),
        clip_norm=draw.choice([None, None, 0.05, 1e6]),
        batch=draw.choice([3, 5, 7, 8]),
        ranks=(draw.randint(1, 3), draw.randint(1, 3)),
        granularity=draw.choice(["operator", "module", "module", "block"]),
        overlap_sync=draw.random() < 0.5,
        divide="layers" if transfers else draw.choice([None, "buckets"]),
        transfers=transfers,
        device=draw.choice(["cpu", "cpu", "emulated"]),
        own_loss=draw.random() < 0.5,
    )


def make_optimizer(case: Case, named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    if case.optimizer == "SGD":
        return torch.optim.SGD(named, lr=0.05, momentum=0.9, weight_decay=0.1)
    if case.optimizer == "AdamW":
        # Where a gradient is nearly 0, its sign would count.
        return torch.optim.AdamW(named, lr=0.01, weight_decay=0.1, eps=1e-3)
    matrices = [each for each in named if each[1].dim() > 1]
    others = [each for each in named if each[1].dim() <= 1]
    return torch.optim.SGD([{"params": matrices}, {"params": others, "lr": 0.02}], lr=0.05, momentum=0.9, nesterov=True)


def make_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=9, cycle_momentum=False)


def make_model(case: Case) -> RandomModel:
    return RandomModel(case.seed, dropout=case.dropout).double()


def loss_of(case: Case, model: RandomModel) -> Callable[..., torch.Tensor] | None:
    return own_loss if case.own_loss and model.kind != "tensor" else None


def captured_model(case: Case) -> CapturedModel:
    model = make_model(case)
    shapes, dtypes = ({name: INPUTS[name][part] for name in model.names} for part in range(2))
    return dp.capture(model, shapes, input_dtype=dtypes, loss=loss_of(case, model), granularity=case.granularity)


def batches_of(case: Case, model: RandomModel, update: int) -> Iterator[tuple[torch.Tensor, ...]]:
    for number in range(update * case.accumulation, (update + 1) * case.accumulation):
        generator = torch.Generator().manual_seed(number)
        inputs = []
        for name in model.names:
            shape, dtype = INPUTS[name]
            drawn = torch.randn(case.batch, *shape, generator=generator, dtype=torch.float64)
            inputs.append((3 * drawn).long() % WORDS if dtype == torch.int64 else drawn)
        yield (*inputs, torch.randint(CLASSES, (case.batch,), generator=generator))


def random_stages(captured: CapturedModel, case: Case, ranks: int) -> list[Stage]:
    """Returns runs of layers in a random order that the graph allows, each on random ranks."""
    draw, layers = random.Random(f"{case.seed} {ranks}"), captured.graph.layers
    order: list[int] = []
    while len(order) < len(layers):
        free = [
            index for index, layer in enumerate(layers) if index not in order and set(layer.predecessors) <= set(order)
        ]
        free = [index for index in free if index != len(layers) - 1] or free
        order.append(draw.choice(free))
    stages: list[Stage] = []
    while order:
        run = tuple(order[: draw.choice([1, 1, 2, 5, 99])])
        del order[: len(run)]
        gpus = tuple(sorted(draw.sample(range(ranks), draw.randint(1, ranks))))
        stages.append(Stage(str(run), run, Layout(gpus, case.batch)))
    return stages


State = dict[str, torch.Tensor]


def prepare(
    communicator: ThreadCommunicator,
    case: Case,
    captured: CapturedModel,
    stages: list[Stage],
    updates: range,
    resumed: Path | None,
    partial: Path,
) -> Callable[[], tuple[list[float], dict[str, Any]]]:
    place = find_device(case.device).torch_device()
    rule = Training(
        optimizer=lambda named: make_optimizer(case, named),
        schedule=make_schedule if case.schedule else None,
        accumulation=case.accumulation,
        clip_norm=case.clip_norm,
        synchronise_batch_norm=True,
        seed=5,
    )
    trainer = Trainer(
        place_model(captured.copy(), place),
        stages,
        communicator,
        rule,
        overlap_sync=case.overlap_sync,
        buckets=Buckets(alone=300, size=500),
        divide_stages=case.divide,
        make_driver=make_transfer_driver if case.transfers else None,
    )

    def run() -> tuple[list[float], dict[str, Any]]:
        if resumed is not None:
            load(trainer, resumed)
        losses = []
        for update in updates:
            batches = [
                lambda shard, data=data: tuple(part[shard.start : shard.stop].to(place) for part in data)
                for data in batches_of(case, captured.source, update)
            ]
            losses.append(trainer.iterate(batches))
        trainer.driver.drain()
        return losses, save_shard(trainer, partial)

    return run


def train(case: Case, captured: CapturedModel, folder: Path, *, alone: bool = False) -> tuple[list[float], State]:
    """Trains on ranks, or on one rank in one stage; returns the losses and the state."""
    kept = CheckpointFolder(path=folder, every=9, keep=9, model="m", graph_fingerprint="f", global_batch=case.batch)
    losses: list[float] = []
    resumed = None
    for ranks, (first, last) in zip((1, 1) if alone else case.ranks, itertools.pairwise(UPDATES), strict=True):
        partial = begin(folder, last)
        every = tuple(range(len(captured.graph.layers)))
        stages = [Stage("all", every, Layout((0,), case.batch))] if alone else random_stages(captured, case, ranks)
        answers = run_ranks(
            ranks,
            lambda each, stages=stages, updates=range(first, last), resumed=resumed, partial=partial: prepare(
                each, case, captured, stages, updates, resumed, partial
            ),
        )
        losses += map(sum, zip(*(answer[0] for answer in answers), strict=True))
        resumed = kept.seal(partial, [answer[1] for answer in answers], last)
    assert resumed is not None
    return losses, dp.load_weights(resumed)


def train_in_one_process(case: Case) -> tuple[list[float], State]:
    """Trains by plain torch, without capture or stages."""
    model = make_model(case)
    optimizer = make_optimizer(case, [each for each in model.named_parameters() if each[1].requires_grad])
    schedule = make_schedule(optimizer) if case.schedule else None
    losses = []
    for update in range(UPDATES[-1]):
        total = 0.0
        for *inputs, target in batches_of(case, model, update):
            outputs = model(**dict(zip(model.names, inputs, strict=True)))
            if loss_of(case, model):
                loss = own_loss(outputs, target)
            else:
                scores = outputs["logits"] if isinstance(outputs, dict) else outputs
                loss = functional.cross_entropy(scores if torch.is_tensor(scores) else scores[0], target)
            try:
                (loss / case.accumulation).backward()
            except RuntimeError as error:
                pytest.skip(str(error))
            total += float(loss.detach()) / case.accumulation
        if case.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        losses.append(total)
    return losses, model.state_dict()


def check(case: Case, folder: Path) -> None:
    captured = captured_model(case)
    losses, state = train(case, captured, folder / "ranks")
    dropout = draws_masks(captured.source)
    alone = replace(case, device="cpu", transfers=False, divide=None)
    expected_losses, expected = (
        train(alone, captured, folder / "alone", alone=True) if dropout else train_in_one_process(case)
    )
    assert losses == pytest.approx(expected_losses, rel=1e-8)
    for name, value in expected.items():
        if not name.endswith("num_batches_tracked"):
            assert torch.allclose(state[name], value, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize(
    "seed",
    [*IN_EACH_RUN, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(400) if seed not in IN_EACH_RUN)],
)
def test_a_random_model_under_a_random_plan_trains_as_in_one_process(seed: int, tmp_path: Path) -> None:
    check(case_of(seed), tmp_path)
