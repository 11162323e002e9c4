"""Stages as CUDA graphs: at small batches a GPU waits for its launches longer than for its arithmetic.

Each stage's forward and backward are captured once, by ``torch.cuda.make_graphed_callables``, for the shapes that the
rank runs it with, at the priority of the stream that is then current. Transfers and all-reduces stay outside. A stage
is not captured

- whose dropout draws a mask per sample, seeded by the host in every iteration;
- whose BatchNorm is synchronised, since it would wait for other ranks inside a graph;

and none is where gradients accumulate: autograd would add the second batch's gradient to a buffer that the graph has
just overwritten with it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import fx, nn

from deeppool.device.cuda import captures_as_current
from deeppool.device.protocol import Precision
from deeppool.execution.batch_norm import BatchNormOfGroup
from deeppool.graph.capture.extract import Segment
from deeppool.training.dropout import SampleDropout
from deeppool.training.precision import autocast

Forward = Callable[..., tuple[torch.Tensor, ...]]
"""A stage's inputs → its outputs."""
UNCAPTURABLE = (SampleDropout, BatchNormOfGroup)


class _FixedBatchStage(nn.Module):
    """A segment at one batch: what is captured takes tensors only."""

    def __init__(self, segment: Segment, batch: int) -> None:
        super().__init__()
        self.segment, self.batch = segment.module, batch

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs: tuple[torch.Tensor, ...] = self.segment(self.batch, *inputs)
        return outputs


def stage_forwards(
    segments: Sequence[Segment],
    batches: Sequence[int],
    types: Mapping[fx.Node, torch.dtype],
    device: torch.device,
    precision: Precision,
    accumulation: int,
) -> list[Forward]:
    """Returns what runs each stage on this rank: a CUDA graph where there can be one, the segment itself elsewhere.

    Args:
        segments: segments of all stages, in the order in which they run.
        batches: samples of each on this rank; 0 where it does not run it.
        types: dtypes of the values between stages.
        device: device that runs them.
        precision: under which they run.
        accumulation: batches whose gradients add up in an update.
    """
    run: list[Forward] = [partial(segment.module, batch) for segment, batch in zip(segments, batches, strict=True)]
    if device.type != "cuda" or accumulation > 1:
        return run
    captured = {
        index: _FixedBatchStage(segment, batch)
        for index, (segment, batch) in enumerate(zip(segments, batches, strict=True))
        if batch and not any(isinstance(module, UNCAPTURABLE) for module in segment.module.modules())
    }
    samples = tuple(_samples(segments[index], batches[index], types, device) for index in captured)
    # Warming up and capturing run the layers, and BatchNorm's statistics would include samples that are none.
    buffers = {buffer: buffer.clone() for stage in captured.values() for buffer in stage.buffers()}
    # For all of the process. torch keeps the last stage's last warm-up, so that gradients go by the stream of that one:
    # backward has the caller's stream wait for it, but warns.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    with captures_as_current(), autocast(device.type, precision, cache_enabled=False):
        # Together: their memory is shared in the order of all forwards, then all backwards.
        graphs = torch.cuda.make_graphed_callables(tuple(captured.values()), samples, allow_unused_input=True)
    for buffer, before in buffers.items():
        buffer.copy_(before)
    captured_as = dict(zip(captured, graphs, strict=True))
    return [cast(Forward, captured_as.get(index, eager)) for index, eager in enumerate(run)]


def _samples(
    segment: Segment, batch: int, types: Mapping[fx.Node, torch.dtype], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Returns zeros in the shapes of a stage's inputs; those that get a gradient in a run require one here too."""
    found = []
    for node in segment.inputs:
        value = node.meta["val"]
        dtype = value.dtype if node.op == "placeholder" else types[node]
        sample = torch.zeros((batch, *map(int, value.shape[1:])), dtype=dtype, device=device)
        found.append(sample.requires_grad_(dtype.is_floating_point and node.op != "placeholder"))
    return tuple(found)
