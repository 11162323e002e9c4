"""Mixed precision: autocast, and the types of transferred tensors."""

import itertools
from collections.abc import Sequence

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from deeppool.device.kinds import kind_of_type
from deeppool.device.protocol import Precision
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.export import EXAMPLE_BATCH
from deeppool.graph.capture.extract import Segment

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: str, precision: Precision, *, cache_enabled: bool = True) -> torch.autocast:
    """Returns the autocast context for forwards on a type of torch device; ``cache_enabled`` keeps cast weights."""
    dtype = AUTOCAST.get(precision, torch.bfloat16)
    kernels = kind_of_type(device).kernel_type
    return torch.autocast(kernels, dtype, enabled=precision in AUTOCAST, cache_enabled=cache_enabled)


def boundary_types(
    captured: CapturedModel, segments: Sequence[Segment], precision: Precision
) -> dict[fx.Node, torch.dtype]:
    """Returns the type of every value between stages, on every rank, also on those that only receive it.

    Under autocast it is the type of the operators' outputs, found by a run on fake tensors, which compute nothing.
    """
    if precision not in AUTOCAST:
        return {node: node.meta["val"].dtype for segment in segments for node in segment.outputs}
    place = next((parameter.device for parameter in captured.program.parameters()), torch.device("cpu"))
    kernels = kind_of_type(place.type).kernel_type
    computes = place if place.type == kernels else torch.device(kernels)
    values: dict[fx.Node, torch.Tensor] = {}
    with FakeTensorMode(), torch.no_grad(), autocast(place.type, precision):
        for segment in segments:
            for node in segment.inputs:
                if node.op == "placeholder":
                    value = node.meta["val"]
                    shape = [EXAMPLE_BATCH, *map(int, value.shape[1:])]
                    values[node] = torch.empty(shape, dtype=value.dtype, device=computes)
            kept = itertools.chain(segment.module.named_parameters(), segment.module.named_buffers())
            state = {name: torch.empty(value.shape, dtype=value.dtype, device=computes) for name, value in kept}
            given = (EXAMPLE_BATCH, *(values[node] for node in segment.inputs))
            outputs = torch.func.functional_call(segment.module, state, given)
            values.update(zip(segment.outputs, outputs, strict=True))
    return {node: value.dtype for node, value in values.items()}
