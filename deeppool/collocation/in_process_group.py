"""Background jobs in the ranks' own processes: the counterpart of :mod:`deeppool.collocation.background_group`.

A background job that fails is recorded and left out; the foreground continues, unless the device itself is lost.
"""

import time
from collections.abc import Mapping
from typing import Any

from deeppool.base.timeline import Span
from deeppool.collocation.background_group import SWITCH_SECONDS, BackgroundReport, WorkDone
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.execution.ranks import START_SECONDS, Ranks
from deeppool.processes.managed_process import Message, ProcessDiedError

PROGRAM = "deeppool.collocation.collocated_rank"
"""Module that the processes of such ranks run."""


class InProcessGroup:
    """Background jobs in the ranks' own processes. They end with the ranks."""

    step_seconds = 0.0
    """Time that the end of a phase waits for a step: none, as only pieces in flight are awaited."""

    def __init__(self, job: BackgroundJob, ranks: Ranks, job_setup: Mapping[str, Any]) -> None:
        """Starts nothing.

        Args:
            job: job of each rank's background.
            ranks: they run :data:`PROGRAM`.
            job_setup: result of :func:`deeppool.collocation.job_queue.save_background_job`.
        """
        self.job = job
        self.priority = "unknown"
        self.ended = "stopped"
        self.reports: dict[int, BackgroundReport] = {}
        """Progress by rank, as of the end of the last phase."""
        self._ranks, self._job_setup = ranks, job_setup
        self._first_loss: float | None = None

    def wait_until_ready(self) -> None:
        """Creates the job in every rank's process, and returns when each has taken its first step.

        Raises:
            ProcessDiedError: no job could be created.
        """
        answers = self._ranks.execute(
            "start_background", START_SECONDS, "while it made the background job", **self._job_setup
        )
        self._update_reports(answers)
        started = [answer for answer in answers if answer["error"] is None]
        if not started:
            raise ProcessDiedError(f"the background job {self.job.name} cannot start: {self.ended}")
        self.priority, self._first_loss = started[-1]["priority"], started[0]["loss"]

    def poll(self) -> None:
        """Does nothing: within a phase the ranks are not asked, so reports change at its end only."""

    def split(self, work: WorkDone) -> None:
        """Does nothing: a run of this placement refuses new bounds, for which a phase would be split."""

    def begin(self) -> None:
        """Starts a training phase of all running jobs."""
        self._ranks.execute("begin", SWITCH_SECONDS, "while it let the background begin")

    def measure(self, work: WorkDone, started: float) -> None:
        """Ends a training phase and adds what was done in it to ``work``; each rank timed its own."""
        answers = self._ranks.execute("rest", SWITCH_SECONDS, "while it waited for the background")
        self._update_reports(answers)
        if self._first_loss is not None:
            work.losses.append(self._first_loss)
            self._first_loss = None
        work.steps += sum(answer["steps"] for answer in answers)
        work.seconds += max(answer["seconds"] for answer in answers)
        work.losses += [answer["loss"] for answer in answers if answer["loss"] is not None]
        work.spans[:] = [
            Span(rank, "background", f"{self.job.name}: {answer['steps']:.1f} steps", began, began + answer["seconds"])
            for rank, answer in enumerate(answers)
            if answer["steps"] and (began := answer["began"])
        ]

    def _update_reports(self, answers: list[Message]) -> None:
        for rank, answer in enumerate(answers):
            steps = self.reports.get(rank, BackgroundReport()).steps + round(answer.get("steps", 0))
            ended = None if answer["error"] is None else f"background job of rank {rank} {answer['error']}"
            self.reports[rank] = BackgroundReport(time.perf_counter(), steps, steps * self.job.batch, ended)
            self.ended = ended or self.ended
