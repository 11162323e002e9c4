"""Checkpoints of one training: which one to resume from, when to write the next one, how many to keep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppool.base.file_lock import file_lock
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint import Checkpoint

LOCK = ".lock"


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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and holds its lock: two trainings would remove each other's checkpoints.

        Raises:
            RunError: another training holds it.
            DocumentError: the folder cannot be written.
        """
        if self.path is None:
            yield
            return
        try:
            str(self.path).encode()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except UnicodeEncodeError as error:
            # torch would refuse it when it reads the first checkpoint back.
            raise DocumentError(f"cannot write {str(self.path)!a}: it is not UTF-8 (choose another folder)") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise DocumentError(f"cannot write {self.path}: {reason} (choose another folder)") from error
        lock = self.path / LOCK
        refusal = (
            f"another training writes its checkpoints to {self.path} (wait until it is over, stop it, as listed by "
            "deeppool running, or choose another folder)"
        )
        with file_lock(lock, refusal):
            try:
                yield
            finally:
                # While it is held: who has opened the removed file finds out when it gets the lock.
                lock.unlink(missing_ok=True)

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
        self, write: Callable[[Path], Sequence[Mapping[str, Any]]], updates: int, temporary: Path | None = None
    ) -> Path:
        """Writes a checkpoint.

        Args:
            write: has every rank write its part to a folder, and returns the results of
                :func:`deeppool.execution.checkpoint.save_shard` in the order of ranks.
            updates: updates made so far.
            temporary: folder to write it to if :attr:`path` is None.
        """
        folder = self.path or temporary
        assert folder is not None
        partial = checkpoint.begin(folder, updates)
        return self.seal(partial, write(partial), updates)

    def seal(self, partial: Path, shards: Sequence[Mapping[str, Any]], updates: int) -> Path:
        """Completes a checkpoint that the ranks have written; see :meth:`save`."""
        record = Checkpoint(
            model=self.model,
            graph_fingerprint=self.graph_fingerprint,
            updates=updates,
            iterations=shards[0]["iterations"],
            global_batch=self.global_batch,
            ranks=len(shards),
            loss_scale=shards[0]["loss_scale"],
            updates_since_scaled=shards[0]["updates_since_scaled"],
            checksums=tuple(shard["checksum"] for shard in shards),
        )
        return checkpoint.seal(partial, record, self.keep)

    def discard_partial(self) -> None:
        """Removes checkpoints that were not completed; no rank may be writing one."""
        if self.path is not None:
            checkpoint.discard_partial(self.path)
