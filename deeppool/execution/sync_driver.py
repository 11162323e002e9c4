"""The order of a rank's training steps: compute, sums and updates in one iteration, unless a method has another one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deeppool.records.transfer_plan import TransferPlan
from deeppool.training.step import Batch

if TYPE_CHECKING:
    from deeppool.execution.trainer import Trainer


class SyncDriver:
    """Orders the parts of a rank's training steps; this one completes each update in the iteration that begins it."""

    transfers: TransferPlan | None = None
    """Plan of the transfers, once there is one."""

    def __init__(self, trainer: "Trainer") -> None:
        """Takes the trainer of this rank."""
        self._trainer = trainer

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs one update on some global batches, or begins it; returns this rank's part of their mean loss."""
        loss = self._trainer.gradients(batches)
        self._trainer.step.update()
        return loss

    def drain(self) -> None:
        """Completes the updates of all iterations, as parameters may be those of an earlier one; all ranks call it."""

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beside parameters and optimizer, as tensors and plain values by name.

        All ranks call it. Replicas that differ by the method's own doing are equal after it.
        """
        return {}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores what :meth:`state` returned on each rank of an earlier run, whatever their number."""

    def close(self) -> None:
        """Ends it; all ranks call it after the same iteration."""
