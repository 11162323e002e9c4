"""Forward and backward of a part of a model, on inputs that are detached from the parts before it.

Each part has an autograd graph of its own, so the backwards of the parts run in an order that their caller chooses.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from deeppool.device.profiler_ranges import profiler_on
from deeppool.device.protocol import Precision
from deeppool.graph.capture.extract import Segment
from deeppool.training.layer_ranges import LayerRanges
from deeppool.training.precision import autocast


class SegmentRun:
    """A part of a model at one batch, run kernel by kernel."""

    def __init__(self, segment: Segment, batch: int, device: torch.device, precision: Precision) -> None:
        """Runs nothing yet.

        Args:
            segment: sub-program of the part.
            batch: samples of this process.
            device: device of the model.
            precision: precision of products and convolutions.
        """
        self.segment = segment
        self._batch, self._device, self._precision = batch, device, precision
        self._leaves: dict[fx.Node, torch.Tensor] = {}
        self.outputs: tuple[torch.Tensor, ...] = ()

    def forward(self, inputs: Sequence[torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
        """Computes the part's outputs from its inputs, in the order of the segment's; keeps what backward needs."""
        self._leaves = {
            node: value.detach().requires_grad_(has_gradient(node, value))
            for node, value in zip(self.segment.inputs, inputs, strict=True)
        }
        with autocast(self._device.type, self._precision):
            run = LayerRanges(self.segment.module).run if profiler_on() else self.segment.module
            self.outputs = run(self._batch, *self._leaves.values())
        return {node: value.detach() for node, value in zip(self.segment.outputs, self.outputs, strict=True)}

    def backward(self, gradients: Mapping[fx.Node, torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
        """Adds the gradients of parameters to theirs; returns those of inputs that have one. Releases the activations.

        Args:
            gradients: gradients of outputs; one that is missing is zero.
        """
        outputs = zip(self.segment.outputs, self.outputs, strict=True)
        roots = [(node, value) for node, value in outputs if value.requires_grad]
        self.outputs = ()
        leaves, self._leaves = self._leaves, {}
        if roots:
            seeds = [gradients[node] if node in gradients else torch.zeros_like(value) for node, value in roots]
            torch.autograd.backward([value for _, value in roots], seeds)
        return {
            node: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for node, leaf in leaves.items()
            if leaf.requires_grad
        }


def has_gradient(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether an input of a part gets a gradient: the outputs of other parts do, data and targets do not."""
    return value.is_floating_point() and node.op != "placeholder"
