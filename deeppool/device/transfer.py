"""Tensors that the library of a device's collectives reads and writes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class PendingWork(Protocol):
    """Communication in progress."""

    def wait(self) -> object:
        """Returns when it is done; on CUDA, when it is ordered before later work on the current stream."""


class TransferBuffers(Protocol):
    """Tensors of a communication, as the library takes them."""

    @property
    def received(self) -> "Sequence[torch.Tensor]":
        """Those that it writes."""

    @property
    def sent(self) -> "Sequence[torch.Tensor]":
        """Those that it only reads."""

    def started(self, works: Sequence[PendingWork]) -> Sequence[PendingWork]:
        """Returns the works to wait for.

        Args:
            works: one for each tensor, received ones first, or one for all of them.
        """


class DirectTransfer:
    """The library takes the device's own tensors."""

    def __init__(self, received: "Sequence[torch.Tensor]", sent: "Sequence[torch.Tensor]") -> None:
        """Takes the tensors."""
        self.received, self.sent = received, sent

    def started(self, works: Sequence[PendingWork]) -> Sequence[PendingWork]:
        """Returns the works unchanged."""
        return works
