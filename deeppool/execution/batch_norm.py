"""BatchNorm over all shards of a batch.

Each rank sends the others the count, mean and sum of squared deviations of its shard; the statistics of all
follow from these exactly (T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample
variance", The American Statistician 37, 1983). torch's own SyncBatchNorm does the same on CUDA only.

An InstanceNorm normalises each sample alone, but its running statistics are of the mean over the samples.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from deeppool.errors import InvalidValueError
from deeppool.execution.communicator import Group
from deeppool.graph.capture.batch_sizes import multiple_of_batch
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import Segment

BATCH_NORM = torch.ops.aten.batch_norm.default
INSTANCE_NORM = torch.ops.aten.instance_norm.default


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) with the statistics of all ranks of a group."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, eps: float, group: Group
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        dims = [0, *range(2, x.dim())]
        count = x.numel() // x.shape[1]
        mean = x.mean(dims)
        squares = (x - _column(mean, x)).square().sum(dims)
        mine = torch.cat([mean.new_full((1,), count), mean, squares])
        gathered = torch.stack(group.gather(mine))
        counts, (means, deviations) = gathered[:, :1], gathered[:, 1:].chunk(2, dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (deviations + counts * (means - mean).square()).sum(0) / total
        scale = torch.rsqrt(variance + eps)
        normal = (x - _column(mean, x)) * _column(scale, x)
        ctx.save_for_backward(normal, scale, total)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, total)
        return normal, mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None, None]:
        normal, scale, total = ctx.saved_tensors
        dims = [0, *range(2, normal.dim())]
        sums = torch.cat([gradient.sum(dims), (gradient * normal).sum(dims)])
        ctx.group.all_reduce(sums).wait()
        mean, along = (sums / total).chunk(2)
        return (gradient - _column(mean, normal) - normal * _column(along, normal)) * _column(scale, normal), None, None


class BatchNormOfGroup(nn.Module):
    """Replaces one BatchNorm operator in training."""

    def __init__(self, momentum: float, eps: float, group: Group) -> None:
        """Takes the operator's constants and the ranks that hold shards of its batch."""
        super().__init__()
        self.momentum, self.eps, self.group = momentum, eps, group

    def forward(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
    ) -> torch.Tensor:
        """Normalises as ``torch.nn.functional.batch_norm`` does in training, over the samples of all ranks."""
        # Sums over a batch need more than 16 bits, as in torch's own kernels.
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        normal, mean, variance, total = _Normalise.apply(wide, self.eps, self.group)  # type: ignore[no-untyped-call]
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), self.momentum)
                # Running statistics hold the unbiased variance, as torch's do.
                running_var.lerp_((variance * total / (total - 1).clamp_min(1)).to(running_var.dtype), self.momentum)
        if weight is not None:
            normal = normal * _column(weight, x)
        result: torch.Tensor = normal if bias is None else normal + _column(bias, x)
        return result.to(x.dtype)


class InstanceNormOfGroup(nn.Module):
    """Replaces one InstanceNorm operator with running statistics in training."""

    def __init__(self, constants: Sequence[Any], group: Group, share: float) -> None:
        """Takes the operator's constants, the ranks that hold shards of its batch, and this one's share of it."""
        super().__init__()
        self.constants, self.group, self.share = constants, group, share

    def forward(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
    ) -> torch.Tensor:
        """Normalises as ``torch.nn.functional.instance_norm``; running statistics are of the samples of all ranks."""
        result: torch.Tensor = INSTANCE_NORM(x, weight, bias, running_mean, running_var, *self.constants)
        with torch.no_grad():
            # Ranks start from the same statistics: the mean of theirs, weighted by samples, is that of the batch.
            statistics = torch.stack([running_mean, running_var])
            wide = statistics.to(torch.promote_types(statistics.dtype, torch.float32)) * self.share
            self.group.all_reduce(wide).wait()
            running_mean.copy_(wide[0])
            running_var.copy_(wide[1])
        return result


def synchronise_batch_norm(segment: Segment, group: Group, share: float) -> None:
    """Replaces the operators of a stage whose statistics in training are of all samples.

    Args:
        segment: the stage.
        group: ranks that hold shards of its batch.
        share: this rank's share of the samples.
    """
    for node in list(segment.module.graph.nodes):
        if node.target is BATCH_NORM and node.args[5]:
            *tensors, _, momentum, eps, _ = node.args
            replaced: nn.Module = BatchNormOfGroup(momentum, eps, group)
        elif node.target is INSTANCE_NORM and node.args[3] is not None and node.args[5]:
            tensors, constants = list(node.args[:5]), node.args[5:]
            replaced = InstanceNormOfGroup(constants, group, share)
        else:
            continue
        segment.replace(node, f"synchronised_{node.name}", replaced, tuple(tensors))
    segment.module.recompile()


def check_statistics(captured: CapturedModel, samples: Sequence[int]) -> None:
    """Checks that every BatchNorm has a variance, as torch's modules do in training.

    Args:
        captured: the model.
        samples: of each layer, the fewest samples whose statistics are taken together.

    Raises:
        InvalidValueError: one has a single value per channel: its outputs would be 0, its running variance NaN.
    """
    for layer, nodes, count in zip(captured.graph.layers, captured.nodes, samples, strict=True):
        for node in nodes:
            if node.target is not BATCH_NORM or not node.args[5]:
                continue
            batch, _, *others = node.meta["val"].shape
            if count * (multiple_of_batch(batch, captured.batch_symbols) or 1) * math.prod(map(int, others)) == 1:
                raise InvalidValueError(
                    f"BatchNorm in {layer.name} has one value per channel on a rank with one sample, and so no "
                    "variance (synchronise_batch_norm=True, a larger global batch, or a plan for fewer GPUs)"
                )


def _column(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshapes values per channel to broadcast over (samples, channels, …)."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))
