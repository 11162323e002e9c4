"""Tensors that the library of a device's collectives reads and writes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class PendingWork(Protocol):
    """Communication in progress."""

    def wait(self) -> object:
        """Returns when it is done; on CUDA, when it is ordered before later work on the current stream."""


class TransferBuffers:
    """Tensors of a communication, as the library takes them: here the device's own."""

    def __init__(self, received: "Sequence[torch.Tensor]", sent: "Sequence[torch.Tensor]") -> None:
        """Takes the tensors that the library writes, and those that it only reads."""
        self.received, self.sent = received, sent

    def started(self, works: Sequence[PendingWork]) -> Sequence[PendingWork]:
        """Returns the works to wait for.

        Args:
            works: one for each tensor, received ones first, or one for all of them.
        """
        return works
