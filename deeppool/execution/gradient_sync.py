"""Sums each parameter's gradient over the ranks that computed a part of it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

BUCKET_BYTES = 4 * 2**20
"""Gradients smaller than this travel together: latency dominates them, and copying them is cheap."""


class GradientSync:
    """All-reduce groups for sets of ranks; every rank makes the same ones in the same order."""

    def __init__(self, rank_sets: Sequence[tuple[int, ...]]) -> None:
        """Makes a process group for each set of two or more ranks."""
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {
            ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(rank_sets) if len(ranks) > 1
        }

    def group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """Of two or more ranks."""
        return self._groups[ranks]

    def close(self) -> None:
        """Ends the groups."""
        for ranks in list(self._groups):
            dist.destroy_process_group(self._groups.pop(ranks))

    def sum(self, parameters: Sequence[torch.nn.Parameter], ranks: tuple[int, ...]) -> None:
        """Replaces the gradients by their sums over ``ranks``; a rank without one contributes zeros.

        Shards weigh in by their size already, because each rank's loss was scaled by its share of the batch.
        """
        if len(ranks) == 1:
            return
        group = self._groups[ranks]
        small = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.numel() * parameter.grad.element_size() >= BUCKET_BYTES:
                dist.all_reduce(parameter.grad, group=group)
            else:
                small.append(parameter.grad)
        for dtype in dict.fromkeys(gradient.dtype for gradient in small):
            bucket = [gradient for gradient in small if gradient.dtype == dtype]
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=group)
            for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))
