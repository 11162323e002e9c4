"""What a background job has done, and its stay beside a rank: one process of it."""

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
    """A job, and what it has done so far in all its processes."""

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
        """As a record."""
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
    """One process of a job beside a rank."""

    story: JobHistory
    process: ManagedProcess
    watch: ResourceWatch
    memory: float = 0.0
    heard: float | None = None
    """When it last told how far it is, on ``time.monotonic``."""
    samples: int = 0
    """That it has told of."""
    failure: Message | None = None
    leaving: str | None = None
    """Why it was told to leave."""
    deadline: float = 0.0
    kin: "set[psutil.Process]" = field(default_factory=set)
    """Processes below it, those that left its group too."""

    def note(self, told: Message, clock: float) -> None:
        """How far it is, by its own account; ``clock`` is the watch's."""
        story, now = self.story, time.monotonic()
        self.watch.got_on(clock, told["cpu"], told["slowest"])
        story.seconds += 0.0 if self.heard is None else now - self.heard
        story.samples += told["samples"] - self.samples
        self.heard, self.samples = now, told["samples"]
        story.steps, story.last_loss = told["updates"], told["last_loss"]
        story.first_loss = told["first_loss"] if story.first_loss is None else story.first_loss

    def find_kin(self) -> None:
        """Looks for processes below it."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            self.kin |= set(psutil.Process(self.process.process.pid).children(recursive=True))

    def end(self) -> None:
        """Ends the process and all that it started, now."""
        self.find_kin()
        self.process.kill()
        for process in self.kin:
            with contextlib.suppress(Exception):  # gone
                process.kill()
