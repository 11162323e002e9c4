"""Parts of a model as graphs of the device: at small batches a GPU waits for its launches longer than for arithmetic.

    forward 0 … forward n │ backward n … backward 0

Each part's forward and backward are captured once, at the priority of the stream that is then current, and read and
write memory at fixed addresses: a replay copies the inputs there. All share one pool, in the order in which they run.
Transfers, all-reduces and the update stay outside. On a CPU nothing is captured: the same code runs kernel by kernel.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from deeppool.device.protocol import Device
from deeppool.graph.capture.extract import Segment
from deeppool.training.segment_run import SegmentRun


class GraphReplay:
    """A part of a model whose forward and backward are replayed, with the methods of its :class:`SegmentRun`."""

    def __init__(self, run: SegmentRun, samples: Sequence[torch.Tensor], *, accumulates: bool) -> None:
        """Captures nothing yet.

        Args:
            run: the part, kernel by kernel.
            samples: inputs in the shapes of a run, whose memory the graphs will read.
            accumulates: whether several backwards add to a gradient before it is used.
        """
        self._run, self._inputs, self._accumulates = run, samples, accumulates
        self._parameters = [parameter for parameter in run.segment.module.parameters() if parameter.requires_grad]
        self._outputs: dict[fx.Node, torch.Tensor] = {}
        self._seeds: dict[fx.Node, torch.Tensor] = {}
        """Gradients of outputs, at the addresses that the graph of the backward reads."""
        self._input_gradients: dict[fx.Node, torch.Tensor] = {}
        self._gradients: list[torch.Tensor | None] = []
        self.replay_forward = self.compute_forward
        self.replay_backward = self.compute_backward

    def compute_forward(self) -> None:
        """Computes the forward on the memory of the samples; captured as one graph."""
        self._outputs = self._run.forward(self._inputs)
        if not self._seeds:
            self._seeds = {node: torch.zeros_like(value) for node, value in self._outputs.items() if _real(value)}

    def compute_backward(self) -> None:
        """Computes the backward on the memory of the seeds; captured as one graph."""
        # A missing gradient is written, and an existing one would be added to.
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._input_gradients = self._run.backward(self._seeds)
        self._gradients = [parameter.grad for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, before, strict=True):
            parameter.grad = gradient

    def forward(self, inputs: Sequence[torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
        """Copies the inputs and replays; the outputs hold until the next forward."""
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given, non_blocking=True)
        self.replay_forward()
        return self._outputs

    def backward(self, gradients: Mapping[fx.Node, torch.Tensor]) -> dict[fx.Node, torch.Tensor]:
        """Copies the gradients of outputs and replays; the result holds until the next backward."""
        for node, seed in self._seeds.items():
            if node in gradients:
                seed.copy_(gradients[node], non_blocking=True)
            else:
                seed.zero_()
        self.replay_backward()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if gradient is not None and parameter.grad is not None:
                parameter.grad = parameter.grad + gradient
            elif gradient is not None:
                # The next replay overwrites it.
                parameter.grad = gradient.clone() if self._accumulates else gradient
        return self._input_gradients


def replayed(
    runs: Sequence[SegmentRun], samples: Sequence[Sequence[torch.Tensor]], device: Device, *, accumulates: bool
) -> list[GraphReplay]:
    """Captures parts of a model, in the order in which they run; the model does not change.

    Args:
        runs: the parts.
        samples: inputs of each, in the shapes of a run.
        device: device that repeats them.
        accumulates: as for :class:`GraphReplay`.
    """
    found = [GraphReplay(run, given, accumulates=accumulates) for run, given in zip(runs, samples, strict=True)]
    # Warming up and capturing run the layers, and BatchNorm's statistics would include samples that are none.
    buffers = {buffer: buffer.clone() for run in runs for buffer in run.segment.module.buffers()}
    works = [replay.compute_forward for replay in found] + [replay.compute_backward for replay in reversed(found)]
    graphs = device.repeatable(*works)
    for buffer, before in buffers.items():
        buffer.copy_(before)
    for index, replay in enumerate(found):
        replay.replay_forward, replay.replay_backward = graphs[index], graphs[-1 - index]
    return found


def fixed_inputs(
    segment: Segment, batch: int, types: Mapping[fx.Node, torch.dtype], device: torch.device
) -> list[torch.Tensor]:
    """Returns zeros in the shapes of a part's inputs; ``types`` are those of values between parts."""
    found = []
    for node in segment.inputs:
        value = node.meta["val"]
        dtype = value.dtype if node.op == "placeholder" else types[node]
        found.append(torch.zeros((batch, *map(int, value.shape[1:])), dtype=dtype, device=device))
    return found


def _real(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()
