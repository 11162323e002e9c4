"""Dropout whose masks depend on the sample and not on the plan.

Each element of a mask is drawn from a generator that is seeded by the run's seed, the iteration, the operator and
the sample's position in the global batch. A sample then loses the same activations on every rank, so a
burst-parallel run trains as one process does with the same seed. Other random operators (dropout inside fused
attention, stochastic depth) draw on each rank, as in DDP.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import fx, nn

from deeppool.graph.capture.extract import Segment


@dataclass(slots=True)
class DropoutSeed:
    """Seed of the masks of an iteration; the trainer sets it before each stage runs."""

    seed: int
    iteration: int = 0
    samples: range = range(0)
    """Positions of the current samples in the global batch."""


class SampleDropout(nn.Module):
    """Replacement of one dropout operator."""

    def __init__(self, name: str, probability: float, draw: DropoutSeed) -> None:
        """Sets the operator's name in the model, which is the same for every plan."""
        super().__init__()
        self.name, self.probability, self.draw = name, probability, draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zeroes elements, and scales the others up by 1 / (1 - probability)."""
        mask = torch.empty_like(x)
        generator = torch.Generator(x.device)
        # If an earlier layer made several rows of each sample, a sample's rows are adjacent.
        rows = mask.unflatten(0, (len(self.draw.samples), -1))
        for sample, row in zip(self.draw.samples, rows, strict=True):
            generator.manual_seed(_seed(self.draw.seed, self.draw.iteration, self.name, sample))
            row.bernoulli_(1 - self.probability, generator=generator)
        return x * mask / (1 - self.probability) if self.probability < 1 else x * 0


def replace_dropout(segment: Segment, draw: DropoutSeed) -> None:
    """Replaces every active dropout operator of a stage by a :class:`SampleDropout`."""
    graph = segment.module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.dropout.default and node.args[1] > 0 and node.args[2]:
            name = f"sample_{node.name}"
            segment.module.add_submodule(name, SampleDropout(node.name, float(node.args[1]), draw))
            with graph.inserting_before(node):
                replacement = graph.call_module(name, (node.args[0],))
            _replace(graph, node, replacement)
    segment.module.recompile()


def _replace(graph: fx.Graph, node: fx.Node, replacement: fx.Node) -> None:
    replacement.meta.update(node.meta)
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
