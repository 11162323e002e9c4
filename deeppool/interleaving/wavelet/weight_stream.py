"""Weights of partitions that other ranks have only while they compute with them.

The parameters of a partition are views of one block of memory. Their owner keeps it; the other ranks give it back to
the system between their uses, so that what autograd has saved of the weights is freed and filled again too.
(Rajbhandari et al., "ZeRO", SC 2020, keep parameters in the same way)
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from deeppool.collectives.perform.process_group import new_group
from deeppool.device.protocol import Device
from deeppool.device.transfer import PendingWork


class WeightStream:
    """Parameters of one partition on one rank."""

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], ranks: Sequence[int], rank: int, device: Device
    ) -> None:
        """Moves the parameters into common memory; all ranks call it, in the same order.

        Args:
            parameters: all parameters of the partition.
            ranks: ranks that compute with it, its owner first.
            rank: this rank.
            device: device of the parameters.
        """
        self._owner, self.uses = ranks[0], rank in ranks
        self.owns = rank == ranks[0]
        self._group = new_group(device, ranks) if len(ranks) > 1 else None
        kinds = dict.fromkeys(parameter.dtype for parameter in parameters)
        self._blocks = [_joined([each for each in parameters if each.dtype == kind]) for kind in kinds]
        self._sizes = [block.untyped_storage().nbytes() for block in self._blocks]
        self._coming: list[PendingWork] | None = None
        self._sent = True
        """Whether all ranks have them."""
        self.release()

    def fetch(self) -> None:
        """Starts to send the weights from their owner, unless all have them; all ranks that use them call it."""
        if self._group is None or self._sent or self._coming is not None:
            return
        for block, size in zip(self._blocks, self._sizes, strict=True):
            block.untyped_storage().resize_(size)
        self._coming = [
            work
            for block in self._blocks
            if (work := dist.broadcast(block, self._owner, self._group, async_op=True)) is not None
        ]

    def wait(self) -> None:
        """Waits until they are here."""
        self.fetch()
        for work in self._coming or ():
            work.wait()
        self._coming, self._sent = None, True

    def release(self) -> None:
        """Frees the memory of ranks that do not own them, until the next fetch."""
        self._sent = False
        if not self.owns:
            for block in self._blocks:
                block.untyped_storage().resize_(0)

    def close(self) -> None:
        """Ends the group."""
        if self._group is not None and self.uses:
            dist.destroy_process_group(self._group)


def _joined(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Returns memory of which parameters become views."""
    block = torch.cat([parameter.detach().flatten() for parameter in parameters])
    offset = 0
    for parameter in parameters:
        parameter.data = block[offset : offset + parameter.numel()].view_as(parameter)
        offset += parameter.numel()
    return block
