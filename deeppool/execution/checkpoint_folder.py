"""Checkpoints of one training: which one to resume from, when to write the next one, how many to keep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppool.errors import InvalidValueError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """Folder of the checkpoints of one training."""

    path: Path | None
    """Path of the folder; None: the training writes no checkpoints."""
    every: int
    """Updates between two checkpoints."""
    keep: int
    """Checkpoints that are kept."""
    model: str
    graph_fingerprint: str
    global_batch: int

    def latest(self) -> Path | None:
        """Returns the checkpoint with the most updates."""
        return None if self.path is None else checkpoint.latest(self.path)

    def status(self) -> str:
        """Returns the part of an error message that says what the training can resume from."""
        found = self.latest()
        return f"; the last checkpoint is {found}" if found else "; there is no checkpoint"

    def next_due(self, updates: int, steps: int) -> int:
        """Returns the update after which the next checkpoint is due, ``steps`` at the latest."""
        return steps if self.path is None else min(steps, updates + self.every - updates % self.every)

    def find_resumable(self) -> tuple[Path, int] | None:
        """Returns the latest checkpoint and its updates; None: there is none.

        Raises:
            InvalidValueError: it is of another training.
        """
        found = self.latest()
        if found is None:
            return None
        written = checkpoint.read(found)
        if (written.graph_fingerprint, written.global_batch) != (self.graph_fingerprint, self.global_batch):
            raise InvalidValueError(
                f"{found} is of {written.model} at global batch {written.global_batch}, this is {self.model} at "
                f"{self.global_batch} (choose another folder for checkpoints)"
            )
        return found, written.updates

    def save(
        self, write: Callable[[Path], Mapping[str, Any]], updates: int, ranks: int, temporary: Path | None = None
    ) -> Path:
        """Writes a checkpoint.

        Args:
            write: has every rank write its part to a folder, and returns what rank 0 reports of it.
            updates: updates made so far.
            ranks: ranks that write.
            temporary: folder to write it to if :attr:`path` is None.
        """
        folder = self.path or temporary
        assert folder is not None
        partial = checkpoint.begin(folder, updates)
        state = write(partial)
        record = Checkpoint(
            model=self.model,
            graph_fingerprint=self.graph_fingerprint,
            updates=updates,
            iterations=state["iterations"],
            global_batch=self.global_batch,
            ranks=ranks,
            loss_scale=state["loss_scale"],
            updates_since_scaled=state["updates_since_scaled"],
        )
        return checkpoint.seal(partial, record, self.keep)

    def discard_partial(self) -> None:
        """Removes checkpoints that were not completed; no rank may be writing one."""
        if self.path is not None:
            checkpoint.discard_partial(self.path)
