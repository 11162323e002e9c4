"""Records of jobs and of the cluster's status, and the folder that keeps those of jobs."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from deeppool.base import serialization
from deeppool.base.private_files import make_private_folder
from deeppool.base.serialization import Record
from deeppool.errors import DocumentError
from deeppool.scheduling.placement import Role
from deeppool.units import format_count, format_seconds

State = Literal["queued", "running", "done", "failed", "cancelled"]
SHOWN = 10
"""Number of ended jobs that a printed status shows; JSON has all."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a job."""

    update: int = 0
    """Number of updates made; for a background, that of its slowest process."""
    loss: float | None = None
    """Loss of the last update, or None before it, and where it is not reported or not a number."""
    seconds_per_update: float | None = None
    what: str = "starting"
    """Current activity."""


WAITING = JobProgress(what="waiting for GPUs")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of one job of a coordinator."""

    KIND: ClassVar[str] = "cluster-job"

    job: int
    role: Role
    model: str
    gpu_count: int
    steps: int | None
    """Requested number of updates, or None to train until it is cancelled."""
    submitted: str
    state: State = "queued"
    gpus: tuple[int, ...] = ()
    """GPUs of the cluster, in the order of the job's ranks."""
    machines: tuple[str, ...] = ()
    """Address of each GPU's machine."""
    started: str | None = None
    ended: str | None = None
    progress: JobProgress = WAITING
    error: str | None = None
    """Reason why it failed, or None."""
    result: str | None = None
    """File with the record of the training, or None."""

    @property
    def over(self) -> bool:
        """Whether the job has ended, so that its record is final."""
        return self.state in ("done", "failed", "cancelled")

    def __str__(self) -> str:
        held = f"GPU{'s' * (len(self.gpus) > 1)} {','.join(map(str, self.gpus))}"
        gpus = held if self.gpus else format_count(self.gpu_count, "GPU")
        if 0 < len(self.gpus) < self.gpu_count:
            gpus += f" of {self.gpu_count} planned"
        return f"job {self.job} ({self.role}, {self.model}, {gpus}): {', '.join(self._how())}"

    def _how(self) -> Iterator[str]:
        done = self.progress
        yield done.what if self.state == "running" else self.state
        if self.error is not None:
            yield self.error
            return
        if done.update:
            yield format_count(done.update, "update") if self.steps is None else f"update {done.update} of {self.steps}"
        if done.loss is not None:
            yield f"loss {done.loss:.4f}"
        if done.seconds_per_update is not None:
            yield f"{format_seconds(done.seconds_per_update)} an update"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Use of one GPU of the cluster: its foreground job and its background job."""

    gpu: int
    machine: str
    foreground: int | None
    background: int | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Status of a cluster at one moment."""

    KIND: ClassVar[str] = "cluster-status"

    address: str
    """Address of the cluster's Ray."""
    device: str
    gpus: tuple[GpuUse, ...]
    jobs: tuple[JobRecord, ...]
    """Records of all jobs, ended ones included, in the order of submission."""
    trouble: str | None = None
    """Reason why a record of a job could not be written yet, or None."""

    def job(self, number: int) -> JobRecord:
        """Returns the record of a job."""
        return next(job for job in self.jobs if job.job == number)

    def __str__(self) -> str:
        lines = [f"{format_count(len(self.gpus), 'GPU')} ({self.device}) of the Ray at {self.address}"]
        for use in self.gpus:
            held = [f"{role} job {job}" for role in ("foreground", "background") if (job := getattr(use, role))]
            lines.append(f"GPU {use.gpu} of {use.machine}: {', '.join(held) or 'free'}")
        ended = [job for job in self.jobs if job.over]
        lines += [str(job) for job in (*ended[-SHOWN:], *(job for job in self.jobs if not job.over))]
        if self.trouble is not None:
            lines.append(f"history: {self.trouble}")
        return "\n".join(lines)


class History:
    """Folder of job records, one file each, written atomically, and read again by the next coordinator."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder, private to this user, where it is missing."""
        make_private_folder(folder)
        self.folder = folder
        self._unwritten: dict[Path, Record] = {}

    def read(self) -> list[JobRecord]:
        """Reads all records. Jobs that had not ended when their coordinator did are marked as failed.

        Raises:
            DocumentError: one is unreadable.
        """
        records = []
        for path in sorted(self.folder.glob("job-??????.json")):
            try:
                record = serialization.read(path, JobRecord)
            except DocumentError as damage:
                raise DocumentError(f"{damage} (move this record of an earlier job elsewhere)") from damage
            if not record.over:
                error = f"the coordinator ended while it was {record.state} (submit it again)"
                record = replace(record, state="failed", error=error, ended=now())
                self.write(record)
            records.append(record)
        return records

    def write(self, record: JobRecord) -> None:
        """Writes the current record of a job."""
        self._write(self.folder / f"job-{record.job:06}.json", record)

    def write_result(self, job: int, record: Record) -> str:
        """Writes the record of a job's training; returns the file."""
        file = self.folder / f"job-{job:06}-record.json"
        self._write(file, record)
        return str(file)

    def write_rest(self) -> str | None:
        """Writes the records that could not be written before; returns why one still cannot, or None."""
        trouble = None
        for file, record in list(self._unwritten.items()):
            try:
                serialization.write(record, file)
                del self._unwritten[file]
            except DocumentError as error:
                trouble = str(error)
        return trouble

    def _write(self, file: Path, record: Record) -> None:
        """Writes a record, or keeps it until there is room on the disk."""
        self._unwritten[file] = record
        self.write_rest()


def now() -> str:
    """Returns the local time, to the second."""
    return datetime.datetime.now().isoformat(timespec="seconds")
