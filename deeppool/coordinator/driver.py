"""The actor of one job: trains as on one machine, with its processes on the cluster's GPUs.

It has a process of its own, so that the user's modules are imported anew for every job, and so that killing it
ends the job and nothing else.
"""

import os
import queue
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from deeppool.base.serialization import Record, may_hold
from deeppool.base.sharing import Sharing
from deeppool.coordinator.history import JobProgress
from deeppool.coordinator.ray_connection import find_ray
from deeppool.coordinator.ray_launcher import RayLauncher, RaySlot
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import Inbox, ProcessDiedError, ProcessHandle
from deeppool.processes.rank_group import private_folder
from deeppool.profiling.table import Profile
from deeppool.records.training_record import Metrics

CHUNK_SECONDS = 1.0
"""Seconds between two progress checks of a background process."""


@dataclass(frozen=True, slots=True)
class Foreground:
    """Foreground job: a training by a plan."""

    plan: Plan
    """Plan for as many GPUs as it uses."""
    job: bytes | None
    """Pickled TrainingJob of the user, or None to train the plan's model by name on the synthetic task."""
    steps: int
    checkpoints: str | None
    folder: str
    """Folder from which it was submitted; the user's modules are imported from it."""
    restarts: int = 0
    min_ranks: int | None = None
    profile: Profile | None = None
    """Profile that the plan was made from, to plan for fewer ranks."""


@dataclass(frozen=True, slots=True)
class Background:
    """Background job: independent trainings, one on each of some GPUs."""

    job: Job
    steps: int | None
    """Number of updates of each training, or None to train until it is cancelled."""
    folder: str


Work = Foreground | Background


class Driver:
    """Driver of one job until its end. :meth:`progress` may be called meanwhile."""

    def __init__(self) -> None:
        """Creates the driver with no progress."""
        self._progress = JobProgress()

    def progress(self) -> JobProgress:
        """Returns the progress of the job."""
        return self._progress

    def run(
        self, number: int, work: Work, slots: Sequence[RaySlot], scratch: str, head: Any
    ) -> tuple[JobProgress, Record | None]:
        """Trains, and returns the final progress and the record.

        Args:
            number: number of the job.
            work: job to train.
            slots: GPU of each rank.
            scratch: folder for temporary files; the coordinator removes it after this process has ended.
            head: handle of the coordinator.
        """
        ray = find_ray()
        tempfile.tempdir = scratch
        os.chdir(work.folder)
        sys.path.insert(0, work.folder)
        launcher = RayLauncher(number, slots, work.folder, lambda: ray.get(head.reassign.remote(number)))
        if isinstance(work, Background):
            self._train_background(work, launcher, slots)
            return self._progress, None
        record = self._train(work, launcher) if work.job is not None else self._launch(work, launcher)
        return replace(self._progress, what="done"), record

    def _train(self, work: Foreground, launcher: RayLauncher) -> Record:
        import cloudpickle

        from deeppool.runs.train import train

        assert work.job is not None

        def on_metrics(metrics: Metrics) -> None:
            self._progress = JobProgress(metrics.update, metrics.loss, metrics.seconds, "training")

        return train(
            work.plan,
            cloudpickle.loads(work.job),
            steps=work.steps,
            checkpoints=work.checkpoints,
            restarts=work.restarts,
            min_ranks=work.min_ranks,
            profile=work.profile,
            launcher=launcher,
            on_metrics=on_metrics,
            on_progress=lambda what, share: setattr(self, "_progress", replace(self._progress, what=what)),
        )

    def _launch(self, work: Foreground, launcher: RayLauncher) -> Record:
        from deeppool.runs.launch import launch

        record = launch(
            work.plan,
            steps=work.steps,
            launcher=launcher,
            on_progress=lambda what, share: setattr(self, "_progress", replace(self._progress, what=what)),
        )
        front = record.foreground
        self._progress = JobProgress(work.steps, front.last_loss, front.iteration_time.p50)
        return record

    def _train_background(self, work: Background, launcher: RayLauncher, slots: Sequence[RaySlot]) -> None:
        with private_folder() as folder:
            launcher.distribute_files(folder)
        inbox: Inbox = queue.SimpleQueue()
        done: dict[ProcessHandle, int] = {}
        for rank in range(len(slots)):
            process = launcher.start(rank, "deeppool.collocation.background_process", "the background job", inbox)
            done[process] = 0
            spec = launcher.worker_spec(rank)
            process.send("setup", job=asdict(work.job), core=spec.core, folder=spec.folder, sharing=asdict(Sharing()))
        seconds = dict.fromkeys(done, CHUNK_SECONDS)
        while work.steps is None or min(done.values()) < work.steps:
            process, message = inbox.get()
            if message is None:
                raise ProcessDiedError(f"{process.name} {process.exit_reason()} (submit it again)")
            if message["event"] == "trained":
                clocks, _, losses = zip(*message["log"], strict=True)
                done[process] += len(losses) - 1
                seconds[process] = (clocks[-1] - clocks[0]) / (len(losses) - 1)
                loss = losses[-1] if may_hold(losses[-1]) else None
                self._progress = JobProgress(min(done.values()), loss, statistics.mean(seconds.values()), "training")
            chunk = max(1, int(CHUNK_SECONDS / seconds[process]))
            left = chunk if work.steps is None else min(chunk, work.steps - done[process])
            if left:
                process.send("train", steps=left)
