"""The history of a background job, and one process of it."""

import contextlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.collocation.containment import ResourceWatch
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.execution import checkpoint
from deeppool.processes.end_of_processes import wait_until_ended
from deeppool.processes.managed_process import ManagedProcess, Message
from deeppool.records.training_record import BackgroundOutcome

if TYPE_CHECKING:
    import psutil

KILL_SECONDS = 2.0
"""Most seconds for which descendants that were killed are waited for: one in a call to a driver does not end."""


class JobHistory:
    """Record of what a background job has done so far, in all its processes."""

    def __init__(self, job: BackgroundJob, rank: int | None = None) -> None:
        """The job waits."""
        self.job, self.seconds = job, 0.0
        self.record = BackgroundOutcome(
            name=job.name,
            rank=rank,
            priority=None,
            steps=0,
            samples=0,
            throughput=0.0,
            first_loss=None,
            last_loss=None,
            checkpoint=None,
            restarts=0,
            faults=(),
            ended="waiting",
        )

    def update(self, **changes: Any) -> None:
        """Changes fields of the record."""
        self.record = replace(self.record, **changes)

    def outcome(self) -> BackgroundOutcome:
        """Returns the record, with the throughput and the last checkpoint."""
        folder = self.job.checkpoints
        found = None if folder is None else checkpoint.latest(Path(folder))
        throughput = self.record.samples / self.seconds if self.seconds else 0.0
        return replace(self.record, throughput=throughput, checkpoint=None if found is None else str(found))


@dataclass(eq=False)
class JobProcess:
    """One process of a background job."""

    history: JobHistory
    handle: ManagedProcess
    watch: ResourceWatch
    memory: float = 0.0
    reported_at: float | None = None
    """Time of its last progress report, by ``time.monotonic``."""
    samples: int = 0
    """Samples that it has reported."""
    stop_reason: str | None = None
    """Reason for which it was asked to stop."""
    deadline: float = 0.0
    """Time at which it is killed if it has not stopped, on the clock of the watch."""
    descendants: "set[psutil.Process]" = field(default_factory=set)
    """Processes that it started, directly or not, including those that left its process group."""

    @property
    def pid(self) -> int:
        """Process ID, which is that of its process group too."""
        return self.handle.process.pid

    def record_progress(self, message: Message, now: float) -> None:
        """Records a progress report; ``now`` is on the clock of the watch."""
        history, clock = self.history, time.monotonic()
        self.watch.record_progress(now, message["cpu"], message["slowest"])
        history.seconds += 0.0 if self.reported_at is None else clock - self.reported_at
        done = history.record
        history.update(
            steps=message["updates"],
            samples=done.samples + message["samples"] - self.samples,
            first_loss=message["first_loss"] if done.first_loss is None else done.first_loss,
            # None before the first step of a restart, and where it is no number.
            last_loss=message["last_loss"] if message["samples"] else done.last_loss,
            final_loss=done.final_loss if message["final_loss"] is None else message["final_loss"],
        )
        self.reported_at, self.samples = clock, message["samples"]

    def find_descendants(self) -> None:
        """Adds the descendants that it has now."""
        import psutil

        # It has ended; or nothing can be read, as where this process may open no more files.
        with contextlib.suppress(psutil.Error, OSError):
            self.descendants |= set(psutil.Process(self.pid).children(recursive=True))

    def kill_descendants(self) -> None:
        """Kills the descendants that were found, and waits until they have ended."""
        for process in self.descendants:
            with contextlib.suppress(Exception):  # gone
                process.kill()
        wait_until_ended(self.descendants, KILL_SECONDS)
