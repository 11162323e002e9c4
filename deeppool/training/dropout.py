"""Dropout whose masks depend on the sample and not on the plan, and which graphs of a device can hold.

Whether an element is kept is a hash of the run's seed, the iteration, the operator, the sample's position in the global
batch and the element's position in the sample. A sample then loses the same activations on every rank, so a
burst-parallel run trains as one process does with the same seed. The hash is computed on the device from the iteration
there: a replay of a graph draws the masks of its own iteration. Other random operators (dropout inside fused attention
and recurrent layers, stochastic depth) draw on each rank, as in DDP.

Counters hashed to random numbers: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. The hash is
lowbias32 of Wellons, "Prospecting for Hash Functions", 2018.
"""

import hashlib
import math

import torch
from torch import nn

from deeppool.graph.capture.extract import Segment
from deeppool.graph.capture.sample_layout import SAMPLES, Layout, Samples

WORDS = 2**32
FACTORS = (0x7FEB352D, 0x846CA68B - WORDS)
"""Of the hash."""
STEP = 0x9E3779B9 - WORDS
"""Odd factor that spreads consecutive numbers over all words: the golden ratio's."""
SATURATION = 1.7580993408473766
"""Of SELU below zero: what alpha dropout puts in the place of an element, before it restores mean and variance."""

FIRST = Samples(0)
"""Samples in the first dimension, unmerged."""
aten = torch.ops.aten
OF_FEATURES = (aten.feature_dropout.default, aten.feature_alpha_dropout.default)
"""Drop whole channels, which dimension 1 counts."""
ALPHA = (aten.alpha_dropout.default, aten.feature_alpha_dropout.default)
DROPOUT = (aten.dropout.default, *OF_FEATURES, aten.alpha_dropout.default)


class DropoutSeed:
    """Seed of the masks of a training, and the number of its iteration."""

    def __init__(self, seed: int, place: torch.device) -> None:
        """Starts at iteration 0.

        Args:
            seed: seed of the run.
            place: device that computes the masks.
        """
        self.seed = seed
        self.iteration = torch.zeros((), dtype=torch.int32, device=place)
        """On the device, at an address that graphs read."""

    def begin(self, iteration: int) -> None:
        """Starts an iteration, on the current stream."""
        self.iteration.fill_(iteration)


class SampleDropout(nn.Module):
    """Replacement of one dropout operator."""

    def __init__(
        self,
        name: str,
        probability: float,
        draw: DropoutSeed,
        samples: range,
        layout: Layout = FIRST,
        kind: torch._ops.OpOverload = aten.dropout.default,
    ) -> None:
        """Creates the keys of its samples.

        Args:
            name: name of the operator in the model, which is the same for every plan.
            probability: part of the elements that are zeroed.
            draw: seed and iteration.
            samples: positions of this process's samples in the global batch.
            layout: where the operator's tensor counts samples; None: all samples have one mask.
            kind: the operator, of :data:`DROPOUT`.
        """
        super().__init__()
        self.probability, self.draw, self.kind = probability, draw, kind
        # A channel that holds elements of all samples is dropped for all.
        self.layout = None if layout and layout.dim > 1 and kind in OF_FEATURES else layout
        keyed = samples if self.layout else range(1)
        words = [[_word(draw.seed, name, sample, part) for part in range(2)] for sample in keyed]
        # In a list, as it is no buffer of the model.
        self.keys = [torch.tensor(words, dtype=torch.int32).reshape(-1, 2).to(draw.iteration.device)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Drops elements; scales and shifts the others as the operator does."""
        if self.probability == 1:
            return x * 0
        shape = tuple(x.shape)
        kept = self._kept((*shape[:2], *(1 for _ in shape[2:])) if self.kind in OF_FEATURES else shape)
        if self.kind in ALPHA:
            scale = 1 / math.sqrt((1 - self.probability) * (1 + self.probability * SATURATION**2))
            return (torch.where(kept, x, -SATURATION) + SATURATION * self.probability) * scale
        return x * kept / (1 - self.probability)

    def _kept(self, shape: tuple[int, ...]) -> torch.Tensor:
        elements, iterations = self.keys[0].unsqueeze(2).unbind(1)
        count = len(elements)
        positions = torch.arange(math.prod(shape) // count, dtype=torch.int32, device=elements.device)
        words = _hash(_hash(positions * STEP ^ elements) ^ _hash(self.draw.iteration * STEP ^ iterations))
        kept: torch.Tensor = words < min(round((1 - self.probability) * WORDS), WORDS - 1) - WORDS // 2
        if self.layout is None:
            return kept.reshape(shape)
        dim, inner = self.layout
        before, outer, after = shape[:dim], shape[dim] // (count * inner), shape[dim + 1 :]
        return kept.reshape(count, *before, outer, inner, *after).movedim(0, dim + 1).reshape(shape)


def replace_dropout(segment: Segment, draw: DropoutSeed, samples: range) -> None:
    """Replaces every active dropout operator of a stage by a :class:`SampleDropout` for some samples."""
    for node in list(segment.module.graph.nodes):
        if node.target in DROPOUT and node.args[1] > 0 and node.args[2]:
            # Samples are not followed through the loss, which takes outputs with samples first.
            layout = node.meta.get(SAMPLES, FIRST)
            module = SampleDropout(node.name, float(node.args[1]), draw, samples, layout, node.target)
            segment.replace(node, f"sample_{node.name}", module, (node.args[0],))
    segment.module.recompile()


def _word(*parts: object) -> int:
    """Returns 32 bits as a signed number."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big", signed=True)


def _hash(words: torch.Tensor) -> torch.Tensor:
    """Returns a permutation of the words in which each bit depends on all bits."""
    # A right shift of a signed number repeats its sign, which the mask removes.
    words = (words ^ (words >> 16 & 0xFFFF)) * FACTORS[0]
    words = (words ^ (words >> 15 & 0x1FFFF)) * FACTORS[1]
    return words ^ (words >> 16 & 0xFFFF)
