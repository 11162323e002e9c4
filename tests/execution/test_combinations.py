"""Combinations of a training's options give the losses and parameters of one process of plain torch.

Each pair of choices meets in some case. The ranks are threads; every case trains, writes a checkpoint, and goes on from
it on another number of ranks.
"""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import deeppool as dp
from deeppool.collectives.buckets import Buckets
from deeppool.collectives.layout import Layout
from deeppool.device.protocol import Precision
from deeppool.execution.checkpoint import begin, load, save_shard
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.training.step import Batch
from deeppool.training.training_job import Training
from deeppool.training.update import LossScale
from tests.execution.thread_ranks import ThreadCommunicator, run_ranks
from tests.execution.training_rank import make_transfer_driver

SCALE = 256.0
"""First scale of losses: a larger one may overflow where sums of a whole batch do, and those of a shard do not."""
IN_EACH_RUN = 6
"""Cases that run without `-m stress`: the first ones meet most pairs."""


class Recurrent(nn.Module):
    """Tokens, a tied embedding, and samples in dimension 1."""

    shapes, dtype = {"x": (5,)}, torch.int64

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(6, 6)
        self.gru = nn.GRU(6, 6)
        self.head = nn.Linear(6, 6)
        self.head.weight = self.stem.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.stem(x).transpose(0, 1))[0][-1])


class Convolutional(nn.Module):
    """Synchronised BatchNorm, activations in place, and a convolution that is called twice."""

    shapes, dtype = {"x": (3, 4, 4)}, torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.again = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.other_norm = nn.BatchNorm2d(4, momentum=0.3)
        self.activation = nn.SiLU(inplace=True)
        self.head = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.norm(self.stem(x)))
        return self.head(self.activation(self.other_norm(self.again(x)) + x * self.again(x)).mean((2, 3)))


class Detached(nn.Module):
    """Branches, one without gradients, a frozen and an unused parameter, and layers of other types."""

    shapes, dtype = {"x": (6,)}, torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.gate = nn.Linear(6, 8)
        self.norm = nn.GroupNorm(2, 8)
        self.wide = nn.Linear(8, 8, dtype=torch.float64)
        self.head = nn.Linear(8, 6)
        self.unused = nn.Linear(2, 2)
        self.head.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.gate(x)).detach()
        return self.head(self.wide(self.norm(torch.tanh(self.stem(x)) * gate).double()).float())


class Attention(nn.Module):
    """Two inputs, a bias and a mask that several layers read, and a parameter without dimensions."""

    shapes, dtype = {"x": (4, 8), "kept": (4,)}, {"x": torch.float32, "kept": torch.int64}

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 4))
        self.stem = nn.Linear(8, 24, bias=False)
        self.second = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8)
        self.factor = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        left_out = (kept == 0).unsqueeze(1)
        for project in (self.stem, self.second):
            query, key, value = project(x).chunk(3, -1)
            scores = query @ key.transpose(1, 2) * self.factor
            scores = scores.masked_fill(left_out, torch.finfo(scores.dtype).min) + self.bias
            x = x + self.out(scores.softmax(-1) @ value)
        return self.head(x.mean(1))


class Spectral(nn.Module):
    """Complex parameters, and values that are no real numbers."""

    shapes, dtype = {"x": (4, 6)}, torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))
        self.head = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        return self.head((x + torch.fft.ifft(torch.fft.fft(x, dim=1) @ self.weight, dim=1).real).mean(1))


MODELS = {model.__name__: model for model in (Recurrent, Convolutional, Detached, Attention, Spectral)}
Named = list[tuple[str, nn.Parameter]]


def decayed(parameters: Named) -> torch.optim.Optimizer:
    """The usual groups: all parameters that are no matrix are not decayed."""
    matrices = [named for named in parameters if named[1].dim() > 1]
    others = [named for named in parameters if named[1].dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01)


def one_group_each(parameters: Named) -> torch.optim.Optimizer:
    groups = [{"params": [named], "lr": 0.02 * (1 + len(named[0]) % 5)} for named in parameters]
    return torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=0.1)


def of_some(parameters: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([value for name, value in parameters if name.startswith("stem")], lr=0.1, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[Named], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, weight_decay=0.1),
    "groups": decayed,
    "one group each": one_group_each,
    "of some": of_some,
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
}
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None] = {
    "none": None,
    "by group": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda epoch, group=group: 1 / (1 + epoch + group) for group in range(len(optimizer.param_groups))]
    ),
    "in turn": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, 2),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        ],
        milestones=[2],
    ),
}


@dataclass(frozen=True)
class Case:
    """A model, and how it is trained."""

    model: str = "Detached"
    optimizer: str = "SGD"
    schedule: str = "none"
    precision: Precision = "fp32"
    ranks: tuple[int, int] = (2, 3)
    """Before the checkpoint, and after it."""
    spread: str = "each"
    batch: int = 5
    clip_norm: float | None = None
    accumulation: int = 1
    overlap_sync: bool = False
    transfers: bool = False

    def __str__(self) -> str:
        return "-".join(str(getattr(self, field.name)) for field in fields(self)).replace(" ", "_")


CHOICES: dict[str, Sequence[Any]] = {
    "model": tuple(MODELS),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": tuple(SCHEDULES),
    "precision": ("fp32", "bf16", "fp16"),
    "ranks": ((1, 2), (2, 3), (3, 3), (3, 1)),
    # All layers on all ranks, each on some of them, or all with parameters on the first one.
    "spread": ("all", "each", "first"),
    "batch": (5, 8),
    "clip_norm": (None, 0.05),
    "accumulation": (1, 2),
    "overlap_sync": (False, True),
    "transfers": (False, True),
}


def sound(case: Case) -> bool:
    """Whether torch itself can train so: it has no Fourier transform in 16 bits on a CPU."""
    return case.model != "Spectral" or case.precision == "fp32"


def covering() -> list[Case]:
    """Returns cases in which all pairs of choices meet that can; each one has the most new pairs of some drawn ones."""
    draw = random.Random(0)
    seen: set[tuple[Any, ...]] = set()
    found = []
    wanted = {
        pair
        for first, second in itertools.combinations(CHOICES, 2)
        for pair in itertools.product([first], CHOICES[first], [second], CHOICES[second])
        if sound(replace(Case(), **{first: pair[1], second: pair[3]}))
    }
    while wanted - seen:
        name, value, other, second = min(wanted - seen, key=str)
        drawn = [Case(**{key: draw.choice(values) for key, values in CHOICES.items()}) for _ in range(40)]
        drawn += [replace(case, **{name: value, other: second}) for case in drawn]
        best = max(filter(sound, drawn), key=lambda case: len((pairs(case) & wanted) - seen))
        if not (pairs(best) & wanted) - seen:
            continue
        found.append(best)
        seen |= pairs(best)
    return found


def pairs(case: Case) -> set[tuple[Any, ...]]:
    values = [(field.name, getattr(case, field.name)) for field in fields(case)]
    return {(*first, *second) for first, second in itertools.combinations(values, 2)}


def build(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[case.model]()


@functools.cache
def captured(model: str) -> CapturedModel:
    torch.manual_seed(0)
    module = MODELS[model]()
    return dp.capture(module, module.shapes, input_dtype=module.dtype)


def batch_of(case: Case, number: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(number)
    model = MODELS[case.model]
    inputs = []
    for name, shape in model.shapes.items():
        dtype = model.dtype[name] if isinstance(model.dtype, dict) else model.dtype
        if dtype == torch.int64:
            inputs.append(torch.randint(6, (case.batch, *shape), generator=generator))
        else:
            inputs.append(torch.randn(case.batch, *shape, generator=generator))
    return (*inputs, torch.randint(6, (case.batch,), generator=generator))


def batches_of(case: Case, update: int) -> Iterator[tuple[torch.Tensor, ...]]:
    for number in range(update * case.accumulation, (update + 1) * case.accumulation):
        yield batch_of(case, number)


def stages(case: Case, ranks: int) -> list[Stage]:
    layers = captured(case.model).graph.layers
    draw = random.Random(f"{case.model} {ranks} {case.batch}")
    everywhere = tuple(range(ranks))
    found = []
    for index, layer in enumerate(layers):
        gpus = everywhere
        if case.spread == "each":
            gpus = tuple(sorted(draw.sample(range(ranks), draw.randint(1, ranks))))
        elif case.spread == "first" and layer.parameters:
            gpus = (0,)
        found.append(Stage(f"{index} {layer.name}", (index,), Layout(gpus, case.batch)))
    return found


State = dict[str, torch.Tensor]
UPDATES = (0, 3, 5)
"""Before training, at the checkpoint, and at the end. By a plan of transfers is trained from the third one on."""


@dataclass(frozen=True)
class Answer:
    """What a rank answers after its updates."""

    losses: list[float]
    rates: tuple[float, ...]
    """Of its parameter groups; none without an optimizer."""
    shard: dict[str, Any]
    """Its record of the checkpoint that it wrote."""


def prepare(
    communicator: ThreadCommunicator, case: Case, updates: range, resumed: Path | None, partial: Path
) -> Callable[[], Answer]:
    """Makes the trainer of a rank, and returns what trains some updates and writes a checkpoint."""
    rule = Training(
        optimizer=OPTIMIZERS[case.optimizer],
        schedule=SCHEDULES[case.schedule],
        accumulation=case.accumulation,
        clip_norm=case.clip_norm,
        synchronise_batch_norm=True,
    )
    trainer = Trainer(
        captured(case.model).copy(),
        stages(case, communicator.ranks),
        communicator,
        rule,
        case.precision,
        overlap_sync=case.overlap_sync,
        # Several for each stage of so small a model.
        buckets=Buckets(alone=300, size=500),
        divide_stages="layers" if case.transfers else None,
        make_driver=make_transfer_driver if case.transfers else None,
    )

    def read(data: tuple[torch.Tensor, ...]) -> Batch:
        return lambda shard: tuple(part[shard.start : shard.stop] for part in data)

    def run() -> Answer:
        if resumed is not None:
            load(trainer, resumed)
        losses = [trainer.iterate([read(data) for data in batches_of(case, update)]) for update in updates]
        trainer.driver.drain()
        optimizer = trainer.update.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        return Answer(losses, tuple(float(group["lr"]) for group in groups), save_shard(trainer, partial))

    return run


def train(case: Case, folder: Path) -> tuple[list[float], State]:
    """Trains on ranks; returns the losses and the state."""
    kept = CheckpointFolder(path=folder, every=9, keep=9, model="m", graph_fingerprint="f", global_batch=case.batch)
    losses: list[float] = []
    resumed = None
    for ranks, (first, last) in zip(case.ranks, itertools.pairwise(UPDATES), strict=True):
        partial = begin(folder, last)
        how = {"case": case, "updates": range(first, last), "resumed": resumed, "partial": partial}
        answers = run_ranks(ranks, functools.partial(prepare, **how))
        losses += map(sum, zip(*(answer.losses for answer in answers), strict=True))
        # Also of groups of which a rank has no parameter.
        assert len({answer.rates for answer in answers if answer.rates}) == 1
        resumed = kept.seal(partial, [answer.shard for answer in answers], last)
    assert resumed is not None
    return losses, dp.load_weights(resumed)


def train_in_one_process(case: Case) -> tuple[list[float], State]:
    """Trains by plain torch, without capture or stages."""
    model = build(case)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    optimizer = OPTIMIZERS[case.optimizer](named)
    make_schedule = SCHEDULES[case.schedule]
    schedule = None if make_schedule is None else make_schedule(optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=case.precision == "fp16", init_scale=SCALE)
    autocast = torch.autocast(
        "cpu", torch.float16 if case.precision == "fp16" else torch.bfloat16, enabled=case.precision != "fp32"
    )
    losses = []
    for update in range(UPDATES[-1]):
        total = 0.0
        for *inputs, target in batches_of(case, update):
            with autocast:
                loss = functional.cross_entropy(model(*inputs), target) / case.accumulation
            scaler.scale(loss).backward()
            total += float(loss.detach())
        if case.clip_norm is not None:
            scaler.unscale_(optimizer)
            # The optimizer of some parameters leaves the others scaled.
            of_optimizer = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            for _, parameter in named:
                if parameter not in of_optimizer and parameter.grad is not None:
                    parameter.grad /= scaler.get_scale()
            nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        if schedule is not None:
            schedule.step()
        losses.append(total)
    return losses, model.state_dict()


def check(case: Case, folder: Path) -> None:
    losses, state = train(case, folder)
    expected_losses, expected = train_in_one_process(case)
    exact = case.precision == "fp32"
    assert losses == pytest.approx(expected_losses, rel=2e-5 if exact else 0.03)
    initial = build(case).state_dict()
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):
            continue
        moved = float((value - initial[name]).abs().norm())
        error = float((value - state[name]).abs().norm())
        # Rounding to 16 bits moves small gradients by as much as they are, but nothing that is not trained.
        assert error <= moved * (1e-3 if exact else 0.5) + (2e-6 if moved else 0), (name, error, moved)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "INITIAL", SCALE)


COVERING = covering()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=str(case)) for case in COVERING[:IN_EACH_RUN]]
    + [pytest.param(case, id=str(case), marks=pytest.mark.stress) for case in COVERING[IN_EACH_RUN:]],
)
def test_a_combination_is_the_training_of_one_process(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(spread="first", clip_norm=0.05, transfers=True), id="a rank without gradients and a norm"),
        pytest.param(Case(optimizer="one group each", schedule="by group"), id="a schedule of groups on other ranks"),
        pytest.param(Case(optimizer="one group each", schedule="in turn"), id="rates of groups of other ranks"),
        pytest.param(Case(optimizer="of some", ranks=(3, 3)), id="a rank without chosen parameters"),
        pytest.param(Case(optimizer="SGD", spread="all"), id="no decay where no gradient is"),
        pytest.param(Case(model="Spectral", clip_norm=0.05), id="the norm of complex numbers"),
        pytest.param(Case(model="Attention", precision="bf16"), id="a mask by the least number of 16 bits"),
    ],
)
def test_combinations_that_were_wrong_once(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
