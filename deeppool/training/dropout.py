"""Dropout whose masks depend on the sample and not on the plan, and which graphs of a device can hold.

Whether an element is kept is a hash of the run's seed, the iteration, the operator, the sample's position in the global
batch and the element's position in the sample. A sample then loses the same activations on every rank, so a
burst-parallel run trains as one process does with the same seed. The hash is computed on the device from the iteration
there: a replay of a graph draws the masks of its own iteration. Other random operators (dropout inside fused attention,
stochastic depth) draw on each rank, as in DDP.

Counters hashed to random numbers: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. The hash is
lowbias32 of Wellons, "Prospecting for Hash Functions", 2018.
"""

import hashlib

import torch
from torch import fx, nn

from deeppool.graph.capture.extract import Segment

WORDS = 2**32
FACTORS = (0x7FEB352D, 0x846CA68B - WORDS)
"""Of the hash."""
STEP = 0x9E3779B9 - WORDS
"""Odd factor that spreads consecutive numbers over all words: the golden ratio's."""


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

    def __init__(self, name: str, probability: float, draw: DropoutSeed, samples: range) -> None:
        """Creates the keys of its samples.

        Args:
            name: name of the operator in the model, which is the same for every plan.
            probability: part of the elements that are zeroed.
            draw: seed and iteration.
            samples: positions of this process's samples in the global batch.
        """
        super().__init__()
        self.probability, self.draw = probability, draw
        words = [[_word(draw.seed, name, sample, part) for part in range(2)] for sample in samples]
        # In a list, as it is no buffer of the model.
        self.keys = [torch.tensor(words, dtype=torch.int32).reshape(-1, 2).to(draw.iteration.device)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zeroes elements, and scales the others up by 1 / (1 - probability)."""
        if self.probability == 1:
            return x * 0
        elements, iterations = self.keys[0].unsqueeze(2).unbind(1)
        # If an earlier layer made several rows of each sample, a sample's rows are adjacent.
        positions = torch.arange(x.numel() // len(elements), dtype=torch.int32, device=x.device)
        words = _hash(_hash(positions * STEP ^ elements) ^ _hash(self.draw.iteration * STEP ^ iterations))
        bound = min(round((1 - self.probability) * WORDS), WORDS - 1) - WORDS // 2
        return x * (words < bound).reshape(x.shape) / (1 - self.probability)


def replace_dropout(segment: Segment, draw: DropoutSeed, samples: range) -> None:
    """Replaces every active dropout operator of a stage by a :class:`SampleDropout` for some samples."""
    graph = segment.module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.dropout.default and node.args[1] > 0 and node.args[2]:
            name = f"sample_{node.name}"
            segment.module.add_submodule(name, SampleDropout(node.name, float(node.args[1]), draw, samples))
            with graph.inserting_before(node):
                replacement = graph.call_module(name, (node.args[0],))
            _replace(graph, node, replacement)
    segment.module.recompile()


def _replace(graph: fx.Graph, node: fx.Node, replacement: fx.Node) -> None:
    replacement.meta.update(node.meta)
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)


def _word(*parts: object) -> int:
    """Returns 32 bits as a signed number."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big", signed=True)


def _hash(words: torch.Tensor) -> torch.Tensor:
    """Returns a permutation of the words in which each bit depends on all bits."""
    # A right shift of a signed number repeats its sign, which the mask removes.
    words = (words ^ (words >> 16 & 0xFFFF)) * FACTORS[0]
    words = (words ^ (words >> 15 & 0x1FFFF)) * FACTORS[1]
    return words ^ (words >> 16 & 0xFFFF)
