"""Mixed precision: autocast, and the types of transferred tensors."""

from collections.abc import Sequence

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from deeppool.device.protocol import Precision
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.export import EXAMPLE_BATCH
from deeppool.graph.capture.extract import Segment

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: str, precision: Precision, *, cache_enabled: bool = True) -> torch.autocast:
    """Returns the autocast context for forwards on a kind of device; ``cache_enabled`` keeps cast weights."""
    dtype = AUTOCAST.get(precision, torch.bfloat16)
    # The kernels of an emulated device are the CPU's.
    kind = "cuda" if device == "cuda" else "cpu"
    return torch.autocast(kind, dtype, enabled=precision in AUTOCAST, cache_enabled=cache_enabled)


def boundary_types(
    captured: CapturedModel, segments: Sequence[Segment], precision: Precision
) -> dict[fx.Node, torch.dtype]:
    """Returns the type of every value between stages, on every rank, also on those that only receive it.

    Under autocast it is the type of the operators' outputs, found by a run on fake tensors, which compute nothing.
    """
    if precision not in AUTOCAST:
        return {node: node.meta["val"].dtype for segment in segments for node in segment.outputs}
    place = next((parameter.device for parameter in captured.program.parameters()), torch.device("cpu"))
    values: dict[fx.Node, torch.Tensor] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), autocast(place.type, precision):
        for segment in segments:
            for node in segment.inputs:
                if node.op == "placeholder":
                    value = node.meta["val"]
                    shape = [EXAMPLE_BATCH, *map(int, value.shape[1:])]
                    values[node] = torch.empty(shape, dtype=value.dtype, device=place)
            outputs = segment.module(EXAMPLE_BATCH, *(values[node] for node in segment.inputs))
            values.update(zip(segment.outputs, outputs, strict=True))
    return {node: value.dtype for node, value in values.items()}
