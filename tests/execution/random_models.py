"""Models drawn at random, for tests that training under a plan is that of one process.

A model keeps a list of values, each a vector, an image or a sequence for every sample. Each of its steps reads one of
them, or joins two, and appends a value; the last ones reach the head.
"""

import math
import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

VECTOR, IMAGE, SEQUENCE = (8,), (4, 4, 4), (5, 8)
CLASSES, WORDS = 6, 7


class Op(nn.Module):
    """A function of its own parts and some values."""

    def __init__(self, function: Callable[..., torch.Tensor], **parts: nn.Module | torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module | nn.Parameter) else nn.Buffer(part))

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.function(self, *values)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / 3)


def write(own: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Writes parts of a tensor in place."""
    x = x.clone()
    x[:, :2] = x[:, 2:4] * 2
    x[:, 1] += 1
    return x


def masked(own: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mask = x.new_zeros(x.shape[-1])
    mask[2:5] = 1.5
    return x * mask + mask


ANY: list[Callable[[], nn.Module]] = [
    lambda: nn.ReLU(inplace=True),
    nn.Tanh,
    lambda: nn.Dropout(0.3),
    nn.Identity,
    lambda: Op(write),
    lambda: Op(masked),
    lambda: Op(lambda own, x: x + own.part.mean(), part=weight(3)),
    lambda: Op(lambda own, x: x * own.part, part=torch.rand(1) + 0.5),
    lambda: Op(lambda own, x: functional.relu_(x + 1).mul_(0.7)),
    lambda: Op(lambda own, x: x.max(-1, keepdim=True)[0] - x),
    lambda: Op(lambda own, x: x.flatten(1).view(x.shape).softmax(-1)),
    lambda: Op(lambda own, x: torch.where(x > 0, x, 0.1 * x) + (x.argmax(-1, keepdim=True) / 9)),
    lambda: Op(lambda own, x: x.split([1, x.shape[1] - 1], 1)[1].mean(1, keepdim=True) + x),
]
OPS: dict[tuple[int, ...], list[Callable[[], nn.Module]]] = {
    VECTOR: [
        *2 * [lambda: nn.Linear(8, 8)],
        lambda: Op(lambda own, x: torch.cat([*reversed(x.chunk(2, 1))], 1).sigmoid() * x),
        lambda: nn.LayerNorm(8),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.Linear(8, 8).requires_grad_(False),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        lambda: Op(lambda own, x: functional.linear(x, own.part, own.bias), part=weight(8, 8), bias=torch.ones(8)),
        lambda: Op(lambda own, x: x + torch.tanh(own.part(x)), part=nn.Linear(8, 8)),
        lambda: Op(lambda own, x: x @ own.part.t() @ own.part, part=weight(8, 8)),
        lambda: nn.Sequential(nn.Linear(8, 12), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(12, 8, bias=False)),
    ],
    IMAGE: [
        *2 * [lambda: nn.Conv2d(4, 4, 3, padding=1)],
        lambda: Op(lambda own, x: torch.cat([*reversed(x.chunk(2, 1))], 1).sigmoid() * x),
        lambda: nn.BatchNorm2d(4),
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        lambda: nn.BatchNorm2d(4).requires_grad_(False),
        lambda: nn.Dropout2d(0.4),
        lambda: nn.MaxPool2d(3, 1, 1),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        lambda: Op(lambda own, x: own.part(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), part=nn.Linear(4, 4)),
    ],
    SEQUENCE: [
        lambda: nn.Linear(8, 8),
        lambda: nn.LayerNorm(8),
        lambda: Op(lambda own, x: x + own.part, part=weight(5, 8)),
        lambda: Op(lambda own, x: own.part(x.transpose(0, 1))[0].transpose(0, 1), part=nn.GRU(8, 8)),
        lambda: Op(lambda own, x: own.part(x, x, x)[0], part=nn.MultiheadAttention(8, 2, batch_first=True)),
        lambda: Op(lambda own, x: own.part(x.transpose(1, 2)).transpose(1, 2), part=nn.BatchNorm1d(8)),
    ],
}
JOINS: list[Callable[[], nn.Module]] = [
    lambda: Op(lambda own, x, y: x + y),
    lambda: Op(lambda own, x, y: x * torch.sigmoid(y)),
    lambda: Op(lambda own, x, y: own.part(torch.stack([x, y], -1)).squeeze(-1), part=nn.Linear(2, 1)),
]


def draws_masks(model: nn.Module) -> bool:
    return any(isinstance(each, nn.Dropout | nn.Dropout2d) for each in model.modules())


INPUTS = {"image": (IMAGE, torch.float64), "numbers": (VECTOR, torch.float64), "words": ((5,), torch.int64)}


class RandomModel(nn.Module):
    """Model of a seed; with ``dropout=False`` without random numbers."""

    def __init__(self, seed: int, *, dropout: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.names = draw.sample(sorted(INPUTS), draw.randint(1, 3))
        self.words = nn.Embedding(WORDS, 8, padding_idx=draw.choice([None, 2]))
        self.unused = nn.Linear(3, 3)
        kinds = [SEQUENCE if name == "words" else INPUTS[name][0] for name in self.names]
        self.steps, self.reads, self.into = nn.ModuleList(), list[tuple[int, ...]](), nn.ModuleList()
        for _ in range(draw.randint(3, 9)):
            source = draw.choice([len(kinds) - 1, draw.randrange(len(kinds))])
            others = [other for other, kind in enumerate(kinds) if kind == kinds[source] and other != source]
            if others and draw.random() < 0.3:
                self.reads.append((source, draw.choice(others)))
                self.steps.append(draw.choice(JOINS)())
            else:
                self.reads.append((source,))
                made = zip(self.steps, kinds[len(self.names) :], strict=True)
                shared = [step for step, kind in made if kind == kinds[source] and isinstance(step, nn.Linear)]
                step = draw.choice(OPS[kinds[source]] + ANY)()
                if draws_masks(step) and not dropout:
                    step = nn.Identity()
                self.steps.append(draw.choice(shared) if shared and draw.random() < 0.2 else step)
            kinds.append(kinds[source])
        # Of what nobody reads, nothing is computed, not even statistics.
        self.ends = sorted(set(range(len(kinds))) - {index for reads in self.reads for index in reads})
        for end in self.ends:
            self.into.append(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(kinds[end]), 8)))
        self.head = nn.Linear(8, CLASSES)
        self.kind = draw.choice(["tensor", "tuple", "dict"])
        if draw.random() < 0.3 and "words" in self.names:
            self.head = nn.Linear(8, WORDS)
            self.head.weight = self.words.weight

    def forward(self, image=None, numbers=None, words=None):
        given = {"image": image, "numbers": numbers, "words": words}
        values = [self.words(given[name]) if name == "words" else given[name] for name in self.names]
        for step, reads in zip(self.steps, self.reads, strict=True):
            values.append(step(*(values[index] for index in reads)))
        found = [into(values[end]) for into, end in zip(self.into, self.ends, strict=True)]
        scores = self.head(torch.stack(found).sum(0))
        return {"tensor": scores, "tuple": (scores, found[0]), "dict": {"extra": found[0], "logits": scores}}[self.kind]
