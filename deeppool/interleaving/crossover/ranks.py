"""Starts, commands and ends the ranks of jobs that cross over."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deeppool.device.protocol import Precision
from deeppool.errors import RunError
from deeppool.execution.ranks import (
    DISK_SECONDS,
    RUNTIME_BYTES,
    START_SECONDS,
    TimedRanks,
    start_ranks,
    wait_until_joined,
)
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Message
from deeppool.training.training_job import TrainingJob, save_job

WORKER = "deeppool.interleaving.crossover.worker"


class CrossoverRanks(TimedRanks):
    """All ranks."""

    def __init__(
        self,
        jobs: Mapping[str, tuple[TrainingJob, int]],
        ranks: int,
        folder: Path,
        launcher: Launcher,
        *,
        device: str,
        precision: Precision,
        all_reduce: str,
        program: str = WORKER,
    ) -> None:
        """Starts a process per rank; :meth:`wait_until_ready` waits for them.

        Args:
            jobs: the first jobs, and their global batches, by name.
            ranks: number of ranks.
            folder: private folder of the run.
            launcher: starts the processes.
            device: kind of device.
            precision: precision of products and convolutions.
            all_reduce: name of the pattern that sums gradients.
            program: module that each rank's process runs.

        Raises:
            RunError: the launcher has fewer GPUs than ranks.
        """
        launcher.check(" and ".join(jobs), RUNTIME_BYTES)
        self._folder, self._launcher = folder, launcher
        super().__init__(launcher)
        for name, (job, _) in jobs.items():
            self._store(name, job)
        launcher.distribute_files(folder)
        start_ranks(
            self.group,
            launcher,
            program,
            ranks,
            device=device,
            precision=precision,
            all_reduce=all_reduce,
            jobs=[{"name": name, "batch": batch} for name, (_, batch) in jobs.items()],
        )

    def wait_until_ready(self, on_wait: Callable[[str], None] | None = None) -> tuple[str, list[dict[str, Any]]]:
        """Waits until every rank has made all jobs and joined the others; returns the device's name, and each job's.

        Args:
            on_wait: called with the ranks that are waited for and what they do, as text.

        Raises:
            RankFailedError: a rank failed, did not join the others in time, or has too little memory.
            RunError: the ranks order a job's samples differently.
        """
        answers = wait_until_joined(self.group, on_wait)
        return answers[0]["device_name"], [
            _same_order(job) for job in zip(*(answer["jobs"] for answer in answers), strict=True)
        ]

    def add(self, name: str, job: TrainingJob, batch: int) -> dict[str, Any]:
        """Makes another job on every rank.

        Raises:
            RunError: the ranks do not see this machine's files, or order the samples differently.
            RankFailedError: it cannot be captured, or does not fit.
        """
        if not self._launcher.same_files:
            raise RunError("a job can join only where the ranks see this machine's files (start with all jobs)")
        self._store(name, job)
        self.group.send("add", name=name, batch=batch)
        return _same_order(self.group.collect("done", START_SECONDS, f"while it made {name}"))

    def remove(self, name: str) -> None:
        """Settles a job on every rank, and forgets it."""
        self.group.send("remove", name=name)
        self.group.collect("done", self._timeout(), f"while it ended {name}")

    def train(self, steps: Mapping[str, int], *, drains: bool) -> list[Message]:
        """Takes turns on all ranks; returns each rank's."""
        self.group.send("train", steps=dict(steps), drains=drains)
        answers = self.group.collect("done", self._timeout(), "while it trained")
        turns = [turn["end"] - turn["turn"] for answer in answers for turn in answer["turns"]]
        self._note(*turns)
        return answers

    def save(self, name: str, folder: Path) -> list[Message]:
        """Writes a checkpoint of a job: every rank its part."""
        self.group.send("save", name=name, folder=str(folder.absolute()))
        return self.group.collect("done", self._disk_timeout(), "while it wrote a checkpoint")

    def load(self, name: str, folder: Path, updates: int) -> None:
        """Restores a job on every rank from a checkpoint."""
        self.group.send("load", name=name, folder=str(folder.absolute()), updates=updates)
        self.group.collect("done", self._disk_timeout(), "while it read a checkpoint")

    def _store(self, name: str, job: TrainingJob) -> None:
        (self._folder / name).mkdir()
        save_job(job, self._folder / name)

    def _disk_timeout(self) -> float:
        return DISK_SECONDS + self._timeout()


def _same_order(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the first rank's answer about a job; raises if another orders its samples otherwise."""
    if any(answer["order"] != answers[0]["order"] for answer in answers):
        raise RunError(
            f"the ranks order the samples of {answers[0]['name']} differently: shards of a batch would overlap (make "
            "the dataset the same in each process)"
        )
    return dict(answers[0])
