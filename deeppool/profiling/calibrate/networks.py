"""Networks whose layers a calibration measures: sizes spread over those of usual networks, and no published one.

Sizes are drawn on logarithmic scales from a fixed seed, so that every calibration measures the same layers.
"""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

SEED = 20
MOST_FLOPS, FEWEST_FLOPS = 2e8, 1e6
"""Forward FLOPs of one sample in a layer that is drawn; a multiply-add counts as two."""
MOST_CHANNELS = 1024
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU)


@dataclass(frozen=True, slots=True)
class SampleNetwork:
    """A network to measure."""

    model: nn.Module
    input_shape: tuple[int, ...]
    batch_sizes: tuple[int, ...]


def sample_networks() -> Iterator[SampleNetwork]:
    """Yields the networks one after another, with weights from a fixed seed."""
    draw = random.Random(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for width, batches in ((160, (1, 2)), (96, (2, 6)), (48, (4, 16)), (24, (8, 32))):
            yield SampleNetwork(_Convolutions(draw, width), (3, width, width), batches)
            yield SampleNetwork(_Depthwise(draw, width), (3, width, width), batches)
        for tokens, batches in ((196, (1, 2)), (64, (2, 6)), (16, (4, 16))):
            yield SampleNetwork(_Transformer(draw, tokens), (tokens, 96), batches)
        yield SampleNetwork(wide_linear(draw), (2048,), (1, 8, 32))


def channels(draw: random.Random, least: int = 16, most: int = MOST_CHANNELS) -> int:
    """Draws a multiple of eight on a logarithmic scale."""
    return max(8, round(math.exp(draw.uniform(math.log(least), math.log(most))) / 8) * 8)


class _Convolutions(nn.Sequential):
    """Dense and grouped convolutions with normalisations, activations and poolings, at smaller and smaller widths."""

    def __init__(self, draw: random.Random, width: int) -> None:
        size, stride = draw.choice(((7, 2), (3, 2), (4, 4), (3, 1)))
        made = channels(draw, 24, 96)
        layers: list[nn.Module] = [*_convolution(draw, 3, made, size, stride)]
        width = (width + 2 * (size // 2) - size) // stride + 1
        poolings = itertools.cycle((nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(2, ceil_mode=True)))
        while width > 3:
            for _ in range(4):
                block, made = _drawn(draw, made, width)
                layers += block
            layers += [_Branches(made)]
            layers.append(next(poolings))
            width = (width + 1) // 2
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(made, 1000))


def _drawn(draw: random.Random, taken: int, width: int) -> tuple[list[nn.Module], int]:
    """Returns a convolution of usual size with what follows it, and the channels that it makes."""
    while True:
        made, size = channels(draw), draw.choice((1, 1, 3, 3, 5))
        groups = 8 if size == 3 and taken % 64 == made % 64 == 0 and draw.random() < 0.3 else 1
        if FEWEST_FLOPS <= 2 * width**2 * taken * made * size**2 / groups <= MOST_FLOPS or made == 8:
            return _convolution(draw, taken, made, size, 1, groups), made
        taken_flops = 2 * width**2 * taken * 16
        if taken_flops > MOST_FLOPS:
            return _convolution(draw, taken, 16, 1, 1), 16


def _convolution(
    draw: random.Random, taken: int, made: int, size: int, stride: int, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(taken, made, size, stride, size // 2, groups=groups, bias=draw.random() < 0.3)
    return [convolution, nn.BatchNorm2d(made), draw.choice(ACTIVATIONS)()]


class _Branches(nn.Module):
    """A residual connection, and two halves concatenated."""

    def __init__(self, made: int) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(made, made // 2, 1), nn.Conv2d(made, made - made // 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cat([self.left(x), self.right(x)], 1)


class _Depthwise(nn.Sequential):
    """Depthwise convolutions between pointwise ones, with gates of channels."""

    def __init__(self, draw: random.Random, width: int) -> None:
        made = channels(draw, 16, 64)
        layers: list[nn.Module] = [*_convolution(draw, 3, made, 3, 2)]
        width = (width + 1) // 2
        while width > 3:
            for stride in (1, 2):
                inner, after = channels(draw, made, 6 * made), channels(draw, made, 2 * made)
                inner, after = min(inner, 768), min(after, 256)
                size = draw.choice((3, 3, 5, 7))
                layers += _convolution(draw, made, inner, 1, 1)
                layers += _convolution(draw, inner, inner, size, stride, inner)
                if stride == 1:
                    layers.append(_Gate(inner))
                layers += _convolution(draw, inner, after, 1, 1)
                made = after
            width = (width + 1) // 2
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(made, 1000))


class _Gate(nn.Module):
    """Channels scaled by a function of their means."""

    def __init__(self, made: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(made, max(8, made // 16), 1), nn.Conv2d(max(8, made // 16), made, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = functional.hardsigmoid(self.up(functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))))
        return x * scale


class _Transformer(nn.Sequential):
    """Blocks of attention and two linear layers, of different widths."""

    def __init__(self, draw: random.Random, tokens: int) -> None:
        layers: list[nn.Module] = []
        width = 96
        for _ in range(5):
            made = channels(draw, 64, 768) // 32 * 32
            layers += [nn.Linear(width, made), _Block(draw, made)]
            width = made
        super().__init__(*layers, nn.Linear(width, 1000))


class _Block(nn.Module):
    """Attention, fused or as products and a softmax, and two linear layers."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        inner = channels(draw, width, 4 * width)
        self.fused, self.heads = draw.random() < 0.5, width // 32
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projection, self.result = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, width = x.shape[1:]
        parts = self.projection(self.before(x)).reshape(-1, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            mixed = torch.softmax(query @ key.transpose(-2, -1) * 0.1, -1) @ value
        x = x + self.result(mixed.transpose(1, 2).reshape(-1, tokens, width))
        return x + functional.dropout(self.down(functional.gelu(self.up(self.between(x)))), 0.1)


def wide_linear(draw: random.Random) -> nn.Sequential:
    """Returns linear layers whose weights are larger than caches."""
    sizes = [2048, *(channels(draw, 1024, 8192) for _ in range(3)), 1000]
    layers: list[nn.Module] = []
    for taken, made in itertools.pairwise(sizes):
        layers += [nn.Linear(taken, made), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers)
