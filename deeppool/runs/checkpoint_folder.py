"""Checkpoints of a training: when to write the next one, which one to resume from."""

from dataclasses import dataclass
from pathlib import Path

from deeppool.errors import InvalidValueError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint import Checkpoint
from deeppool.execution.ranks import Ranks
from deeppool.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """Folder of a training's checkpoints."""

    path: Path | None
    """None: the training writes no checkpoints."""
    every: int
    """Updates between two checkpoints."""
    keep: int
    """Checkpoints that are kept."""

    def latest(self) -> Path | None:
        """The checkpoint with the most updates."""
        return None if self.path is None else checkpoint.latest(self.path)

    def status(self) -> str:
        """Says in an error message what a training can resume from."""
        found = self.latest()
        return f"; the last checkpoint is {found}" if found else "; there is no checkpoint"

    def next_due(self, updates: int, steps: int) -> int:
        """The update after which the next checkpoint is due, ``steps`` at the latest."""
        return steps if self.path is None else min(steps, updates + self.every - updates % self.every)

    def find_resumable(self, plan: Plan, steps: int) -> tuple[Path, int] | None:
        """The latest checkpoint and its updates.

        Raises:
            InvalidValueError: it is of another training, or has made ``steps`` updates already.
        """
        found = self.latest()
        if found is None:
            return None
        written = checkpoint.read(found)
        if (written.graph_fingerprint, written.global_batch) != (plan.graph_fingerprint, plan.global_batch):
            raise InvalidValueError(
                f"{found} is of {written.model} at global batch {written.global_batch}, this is {plan.model} at "
                f"{plan.global_batch} (choose another folder for checkpoints)"
            )
        if written.updates >= steps:
            raise InvalidValueError(
                f"{found} has made {written.updates} updates already, steps is {steps} (ask for more steps, or "
                "choose another folder for checkpoints)"
            )
        return found, written.updates

    def save(self, ranks: Ranks, plan: Plan, updates: int, temporary: Path | None = None) -> Path:
        """Has the ranks write a checkpoint of their last update.

        Args:
            ranks: the ranks.
            plan: their plan.
            updates: updates made so far.
            temporary: folder for it where :attr:`path` is None.
        """
        folder = self.path or temporary
        assert folder is not None
        partial = checkpoint.begin(folder, updates)
        (state, *_) = ranks.save(partial)
        record = Checkpoint(
            model=plan.model,
            graph_fingerprint=plan.graph_fingerprint,
            updates=updates,
            iterations=state["iterations"],
            global_batch=plan.global_batch,
            ranks=plan.gpus,
            loss_scale=state["loss_scale"],
            updates_since_scaled=state["updates_since_scaled"],
        )
        return checkpoint.seal(partial, record, self.keep)

    def discard_partial(self) -> None:
        """Removes checkpoints that were not completed; no rank may be writing one."""
        if self.path is not None:
            checkpoint.discard_partial(self.path)
