"""Collectives of an emulated device: gloo reads and writes its memory, once the host has waited for the stream.

Until a transfer has been waited for, an operator that touches its memory is a hazard.
"""

from collections.abc import Sequence

import torch

from deeppool.device.emulated.memory import PendingTransfer
from deeppool.device.emulated.runtime import DeviceRuntime
from deeppool.device.emulated.tensor import EmulatedTensor, region_of
from deeppool.device.transfer import PendingWork, TransferBuffers


class HostTransfer(TransferBuffers):
    """Tensors of a communication, in the memory of the host."""

    def __init__(self, runtime: DeviceRuntime, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
        """Waits for the current stream."""
        runtime.synchronize(runtime.stream)
        self._tensors = [(tensor, True) for tensor in received] + [(tensor, False) for tensor in sent]
        self._runtime = runtime
        super().__init__([_on_host(tensor) for tensor in received], [_on_host(tensor) for tensor in sent])

    def started(self, works: Sequence[PendingWork]) -> Sequence[PendingWork]:
        """Marks the memory as in transfer until its work was waited for."""
        pending = [
            (tensor, self._runtime.hazards.begin_transfer(region_of(tensor), writes=writes))
            for tensor, writes in self._tensors
            if isinstance(tensor, EmulatedTensor)
        ]
        if len(works) == len(pending):
            return [_Waited(self._runtime, work, [own]) for work, own in zip(works, pending, strict=True)]
        return [_Waited(self._runtime, work, pending) for work in works]


class _Waited:
    """PendingWork after whose end its tensors may be used again."""

    def __init__(
        self, runtime: DeviceRuntime, work: PendingWork, pending: Sequence[tuple[EmulatedTensor, PendingTransfer]]
    ) -> None:
        self._runtime, self._work, self._pending = runtime, work, pending

    def wait(self) -> object:
        result = self._work.wait()
        for tensor, transfer in self._pending:
            self._runtime.hazards.end_transfer(region_of(tensor), transfer)
        self._pending = ()
        return result


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.backing if isinstance(tensor, EmulatedTensor) else tensor
