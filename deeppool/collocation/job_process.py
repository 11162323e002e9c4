"""The history of a background job, and one process of it."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deeppool.collocation.containment import ResourceWatch
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.execution import checkpoint
from deeppool.processes.managed_process import ManagedProcess, Message
from deeppool.records.training_record import BackgroundOutcome

if TYPE_CHECKING:
    import psutil


@dataclass
class JobHistory:
    """Record of what a background job has done so far, in all its processes."""

    job: BackgroundJob
    rank: int | None = None
    priority: str | None = None
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    first_loss: float | None = None
    last_loss: float | None = None
    faults: list[str] = field(default_factory=list)
    restarts: int = 0
    ended: str = "waiting"

    def outcome(self) -> BackgroundOutcome:
        """Builds the record of the job."""
        folder = self.job.checkpoints
        found = None if folder is None else checkpoint.latest(Path(folder))
        return BackgroundOutcome(
            name=self.job.name,
            rank=self.rank,
            priority=self.priority,
            steps=self.steps,
            samples=self.samples,
            throughput=self.samples / self.seconds if self.seconds else 0.0,
            first_loss=self.first_loss,
            last_loss=self.last_loss,
            checkpoint=None if found is None else str(found),
            restarts=self.restarts,
            faults=tuple(self.faults),
            ended=self.ended,
        )


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
    failure: Message | None = None
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
        history.samples += message["samples"] - self.samples
        self.reported_at, self.samples = clock, message["samples"]
        history.steps, history.last_loss = message["updates"], message["last_loss"]
        history.first_loss = message["first_loss"] if history.first_loss is None else history.first_loss

    def find_descendants(self) -> None:
        """Adds the descendants that it has now."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            self.descendants |= set(psutil.Process(self.pid).children(recursive=True))

    def kill(self) -> None:
        """Kills the process and its descendants."""
        self.find_descendants()
        self.handle.kill()
        for process in self.descendants:
            with contextlib.suppress(Exception):  # gone
                process.kill()
