"""The background jobs of all ranks where they live in the ranks' processes: what :mod:`neighbours` is for others.

A job that fails is noted and left behind; the foreground goes on, unless the device itself is lost.
"""

import time
from collections.abc import Mapping
from typing import Any

from deeppool.base.timeline import Span
from deeppool.collocation.background_group import SWITCH_SECONDS, BackgroundReport, WorkDone
from deeppool.collocation.background_placement import THREAD
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.execution.ranks import START_SECONDS, Ranks
from deeppool.processes.managed_process import Message, ProcessDiedError

PROGRAM = "deeppool.collocation.collocated_rank"
"""Module that the processes of such ranks run."""

NOTHING = BackgroundReport(0.0, 0, 0)


class InProcessGroup:
    """One background job in each rank's process. They end with the ranks."""

    home = THREAD

    def __init__(self, job: BackgroundJob, ranks: Ranks, work: Mapping[str, Any]) -> None:
        """Starts nothing.

        Args:
            job: what each of them trains.
            ranks: that run :data:`PROGRAM`.
            work: what :func:`deeppool.collocation.job_queue.hand_over` said of the job.
        """
        self.job = job
        self.priority = "unknown"
        self.ended = "stopped"
        self.step_seconds = 0.0
        """That a phase waits for at its end: pieces in flight are over at once."""
        self.told: dict[int, BackgroundReport] = {}
        """Per rank, as of the end of its last phase: within one, nobody asks the ranks."""
        self._ranks, self._work = ranks, work
        self._first: float | None = None

    def wait_until_ready(self) -> None:
        """Makes every job, and returns when each has taken its first step.

        Raises:
            ChildDiedError: none could be made.
        """
        answers = self._ranks.tell("lodge", START_SECONDS, "while it made the background job", **self._work)
        self._note(answers)
        made = [answer for answer in answers if answer["error"] is None]
        if not made:
            raise ProcessDiedError(f"the background job {self.job.name} cannot start: {self.ended}")
        self.priority, self._first = made[-1]["priority"], made[0]["loss"]

    def look(self) -> None:
        """As :meth:`Neighbours.look`; news come at the end of a phase alone."""

    def begin(self) -> None:
        """All that live train from now on."""
        self._ranks.tell("begin", SWITCH_SECONDS, "while it let the background begin")

    def measure(self, work: WorkDone, started: float) -> None:
        """Ends a training phase, and adds what was done in it to ``work``; each rank timed its own."""
        answers = self._ranks.tell("rest", SWITCH_SECONDS, "while it waited for the background")
        self._note(answers)
        if self._first is not None:
            work.losses.append(self._first)
            self._first = None
        work.steps += sum(answer["steps"] for answer in answers)
        work.seconds += max(answer["seconds"] for answer in answers)
        work.losses += [answer["loss"] for answer in answers if answer["loss"] is not None]
        work.spans[:] = [
            Span(rank, "background", f"{self.job.name}: {answer['steps']:.1f} steps", began, began + answer["seconds"])
            for rank, answer in enumerate(answers)
            if answer["steps"] and (began := answer["began"])
        ]

    def _note(self, answers: list[Message]) -> None:
        for rank, answer in enumerate(answers):
            steps = self.told.get(rank, NOTHING).steps + round(answer.get("steps", 0))
            how = None if answer["error"] is None else f"background job of rank {rank} {answer['error']}"
            self.told[rank] = BackgroundReport(time.perf_counter(), steps, steps * self.job.batch, how)
            if answer["error"] is not None:
                self.ended = f"background job of rank {rank} {answer['error']}"
