"""The order of a rank's training steps, where it is not the default: compute, sums and updates in one iteration."""

from collections.abc import Sequence
from typing import Any, Protocol

from deeppool.records.transfer_plan import TransferPlan
from deeppool.training.step import Batch


class SyncDriver(Protocol):
    """Orders the parts of a rank's training steps."""

    transfers: TransferPlan | None
    """Plan of the transfers, once there is one."""

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs one update on some global batches, or begins it; returns this rank's part of their mean loss."""

    def drain(self) -> None:
        """Completes the updates of all iterations; all ranks call it."""

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beside parameters and optimizer, as tensors and plain values by name.

        All ranks call it. Replicas that differ by the method's own doing are equal after it.
        """

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores what :meth:`state` returned on each rank of an earlier run, whatever their number."""

    def close(self) -> None:
        """Ends it; all ranks call it after the same iteration."""
