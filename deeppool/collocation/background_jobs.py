"""Background jobs of a measured run, one beside each rank: trained in phases, wherever they run.

A job that ends is recorded and left out; the foreground continues, unless the device itself is lost.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deeppool.base.timeline import Span
from deeppool.collocation.helper_processes import START_SECONDS, SWITCH_SECONDS, HelperProcesses
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.collocation.rank_channel import RankChannel
from deeppool.processes.managed_process import Message, ProcessDiedError


@dataclass(slots=True)
class WorkDone:
    """Work of all background jobs in the training phases of one kind."""

    steps: float = 0.0
    """Steps of all jobs; one cut by the end of a phase counts by its share of CPU time."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Pieces computed in the last phase, without the time that they were held back; clock of ``time.perf_counter``."""
    phases: list[tuple[float, float]] = field(default_factory=list)
    """Steps and seconds in each round of the run; none in rounds without such a phase."""
    _counted: tuple[float, float] = (0.0, 0.0)
    """Steps and seconds of those rounds together."""

    def end_round(self, number: int) -> None:
        """Adds the round of a number, with what was done since the last one."""
        self.phases += [(0.0, 0.0)] * (number - len(self.phases))
        steps, seconds = self._counted
        self.phases.append((self.steps - steps, self.seconds - seconds))
        self._counted = self.steps, self.seconds


@dataclass(frozen=True, slots=True)
class BackgroundReport:
    """Progress of one background job, as it last reported it."""

    clock: float = 0.0
    """Time of the report, by ``time.perf_counter``."""
    steps: int = 0
    samples: int = 0
    ended: str | None = None
    """Why the job ended; None while it runs."""


class BackgroundJobs:
    """The background jobs of all ranks, switched between training and resting."""

    def __init__(
        self,
        job: BackgroundJob,
        channel: HelperProcesses | RankChannel,
        *,
        start: Callable[[], None] | None = None,
        reports_progress: bool = False,
        on_cores: bool = True,
    ) -> None:
        """Sends nothing yet.

        Args:
            job: job of each of them.
            channel: to the jobs.
            start: starts the jobs. Default: they are being started.
            reports_progress: whether they report their progress while they train, if they can; see :meth:`poll`.
            on_cores: whether they compute on cores, whose CPU seconds tell how far a step is; on a GPU the clock does.
        """
        self.job = job
        self.priority = "unknown"
        """Priority that was granted."""
        self.ended = "stopped"
        """Why the last of them ended that did; ``stopped`` by the run otherwise."""
        self.step_seconds = 0.0
        """Time that the end of a phase may wait for a step of the slowest job, which has its core or GPU to itself."""
        self.reports: dict[int, BackgroundReport] = {}
        """Progress by rank, as far as it is known."""
        self._channel, self._start, self._ready = channel, start, False
        self._reports_progress, self._on_cores = reports_progress, on_cores
        self._parts: list[tuple[WorkDone, float, Mapping[int, float]]] = []
        """Completed parts of the current phase: where their work is added, when they ended, and CPU seconds by then."""

    def wait_until_ready(self) -> None:
        """Starts the jobs, unless they are ready; returns when every job that could start has taken its first step.

        Raises:
            ProcessDiedError: none could.
        """
        if self._ready:
            return
        if self._start is not None:
            self._start()
        ready = self._record(self._channel.collect("ready", START_SECONDS))
        if not ready:
            raise ProcessDiedError(f"the background job {self.job.name} cannot start: {self.ended}")
        self._ready = True
        self.priority = ready[max(ready)]["priority"]
        self.step_seconds = max(answer["step"] for answer in ready.values())

    def begin(self) -> None:
        """Starts a training phase of all running jobs."""
        self._channel.send("train", reports_progress=self._reports_progress)

    def poll(self) -> None:
        """Updates :attr:`reports`, where jobs report while they train."""
        while (received := self._channel.receive(0.0)) is not None:
            self._record(dict([received]))

    def split(self, work: WorkDone) -> None:
        """Splits the phase here: its work since the last split is added to ``work`` when the phase ends."""
        self._parts.append((work, time.perf_counter(), self._channel.cpu_seconds()))

    def measure(self, work: WorkDone, started: float, ended: float | None = None) -> None:
        """Ends a phase; its work since the last split is added to ``work``.

        Args:
            work: where it is added.
            started: clock at the start of the phase.
            ended: clock at which the foreground had ended its part of it, which this call may notice late; None: now.
        """
        self.split(work)
        parts, self._parts = self._parts, []
        if ended is not None:
            _, noticed, cpu = parts[-1]
            until = max(ended, *(until for _, until, _ in parts[:-1]), started)
            # Since then a job had its core to itself.
            late = max(0.0, noticed - until)
            parts[-1] = work, noticed - late, {rank: seconds - late for rank, seconds in cpu.items()}
        self._channel.send("rest", until=parts[-1][1])
        spans: list[Span] = []
        for rank, answer in self._record(self._channel.collect("trained", SWITCH_SECONDS)).items():
            cuts = [(until, cpu.get(rank, math.inf) if self._on_cores else until) for _, until, cpu in parts]
            # In a rank's process it counts by itself, and there is one part: such a run refuses new bounds.
            counted = answer["parts"] if "parts" in answer else split_log(answer["log"], cuts)
            for (part, *_), (steps, losses) in zip(parts, counted, strict=True):
                part.steps += steps
                part.losses += losses
            spans += [
                Span(rank, "background", f"{self.job.name}: {kind}", began, ended)
                for kind, began, ended in answer["pieces"]
                if began < parts[-1][1]
            ]
        for part, until, _ in parts:
            part.seconds += until - started
            part.spans, started = spans, until

    def _record(self, answers: Mapping[int, Message]) -> dict[int, Message]:
        """Records the progress of jobs, and the ends; returns the answers of those that have not ended."""
        for rank, answer in answers.items():
            if answer.get("why") is None:
                self.reports[rank] = BackgroundReport(answer["clock"], answer["updates"], answer["samples"])
            else:
                colon = ":" if answer.get("refused") else ""
                self.ended = f"background job of rank {rank}{colon} {answer['why']}"
                known = self.reports.get(rank, BackgroundReport())
                self.reports[rank] = replace(known, clock=time.perf_counter(), ended=self.ended)
        return {rank: answer for rank, answer in answers.items() if answer.get("why") is None}


def split_log(log: Sequence[Sequence[float]], cuts: Sequence[tuple[float, float]]) -> list[tuple[float, list[float]]]:
    """Splits the work of one job in a phase into its parts; returns steps and losses of each.

    Args:
        log: (clock, seconds used, loss) at the start of the phase and at the end of each step: CPU seconds, or on a
            GPU the clock again.
        cuts: (clock, seconds that the process had used) at the end of each part.
    """
    done = [0.0]
    for cut in cuts:
        # What a job used after the foreground had ended is estimated, and so may be too much.
        done.append(max(done[-1], steps_done(log, *cut)))
    losses: list[list[float]] = [[] for _ in cuts]
    for clock, _, loss in log[1:]:
        # A step in progress at the end belongs to the last part.
        losses[next((part for part, (until, _) in enumerate(cuts) if clock <= until), -1)].append(loss)
    return [(after - before, own) for before, after, own in zip(done, done[1:], losses, strict=False)]


def steps_done(log: Sequence[Sequence[float]], ended: float, cpu: float) -> float:
    """Counts the steps finished by ``ended``, and of the one in progress the share of its CPU seconds used by then.

    Args:
        log: as for :func:`split_log`.
        ended: clock at the end of the phase.
        cpu: CPU seconds that the process had used by then.
    """
    finished = sum(1 for clock, *_ in log[1:] if clock <= ended)
    if finished == len(log) - 1:
        return float(finished)
    before, after = log[finished][1], log[finished + 1][1]
    return finished + float(np.clip((cpu - before) / (after - before), 0.0, 1.0)) if after > before else float(finished)
