"""Background jobs in processes of their own, one beside each rank: started, switched between training and resting.

A background job whose process ends is recorded and left out; the foreground continues.
"""

import contextlib
import itertools
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import Span
from deeppool.collocation.background_placement import BackgroundSetup
from deeppool.processes.launcher import Launcher, WorkerSpec
from deeppool.processes.managed_process import Message, ProcessDiedError, ProcessHandle, close_all, receive

START_SECONDS = 300.0
SWITCH_SECONDS = 60.0
"""Time-out for a job to rest: its step ends first, and at the lowest priority that may wait for the core."""


@dataclass(slots=True)
class WorkDone:
    """Work of all background jobs in the training phases of one kind."""

    steps: float = 0.0
    """Steps of all jobs; one cut by the end of a phase counts by its share of CPU time."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Steps of the last phase, on the clock of ``time.perf_counter``."""
    phases: list[tuple[float, float]] = field(default_factory=list)
    """Steps and seconds of each phase."""


@dataclass(frozen=True, slots=True)
class BackgroundReport:
    """Progress of one background job, as it last reported it."""

    clock: float = 0.0
    """Time of the report, by ``time.perf_counter``."""
    steps: int = 0
    samples: int = 0
    ended: str | None = None
    """Why the job ended; None while it runs."""


class HelperProcesses:
    """Helper processes of a run, one beside each rank. Leaving its ``with`` block ends them."""

    def __init__(self, launcher: Launcher, ranks: int, module: str, name: str) -> None:
        """Starts a process beside each rank; one that cannot start ends the others.

        Args:
            launcher: starts them where the ranks are.
            ranks: number of ranks.
            module: module that each process runs.
            name: name in messages, before "of rank 0".
        """
        self._processes: dict[int, ProcessHandle] = {}
        try:
            for rank in range(ranks):
                process = launcher.start(rank, module, f"{name} of rank {rank}")
                self._processes[rank] = process
                slot = launcher.worker_spec(rank)
                process.send("setup", core=slot.core, rank=rank, **self._setup(slot))
        except BaseException:
            self.close()
            raise

    def _setup(self, slot: WorkerSpec) -> dict[str, Any]:
        """Returns further fields of the ``setup`` command."""
        raise NotImplementedError

    def _send(self, command: str, **arguments: Any) -> None:
        for process in self._processes.values():
            process.send(command, **arguments)

    def close(self) -> None:
        """Ends every process."""
        close_all(list(self._processes.values()), grace=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BackgroundGroup(HelperProcesses):
    """Background jobs in processes of their own, one beside each rank. Leaving its ``with`` block ends them."""

    def __init__(
        self,
        setup: BackgroundSetup,
        launcher: Launcher,
        ranks: int,
        job_setup: Mapping[str, Any],
        *,
        device: str = "cpu",
        reports_progress: bool = False,
    ) -> None:
        """Starts a process beside each rank.

        Args:
            setup: job of each of them, and the mechanisms by which they share devices with the ranks.
            launcher: launcher of the ranks; it has the files of the job.
            ranks: number of ranks.
            job_setup: result of :func:`deeppool.collocation.job_queue.save_background_job`.
            device: ``cpu`` or ``cuda``.
            reports_progress: whether they report their progress while they train; see :meth:`poll`.
        """
        self.job = setup.job
        self.priority = "unknown"
        self.ended = "stopped"
        self.step_seconds = 0.0
        """Time that a step of the slowest job holds its core or GPU, alone."""
        self.reports = dict.fromkeys(range(ranks), BackgroundReport(time.perf_counter()))
        """Progress by rank, as of the last :meth:`poll`."""
        self._reports_progress = reports_progress
        self._parts: list[tuple[WorkDone, float, dict[int, float]]] = []
        """Completed parts of the current phase: where their work is added, when they ended, and CPU seconds by then."""
        self._job_setup = {**job_setup, "device": device, "sharing": asdict(setup.sharing)}
        super().__init__(launcher, ranks, "deeppool.collocation.background_process", "background job")

    def _setup(self, slot: WorkerSpec) -> dict[str, Any]:
        return {**self._job_setup, "saved_job": slot.folder, "index": slot.index, "folder": slot.folder}

    def wait_until_ready(self) -> None:
        """Returns when every running job has taken its first step.

        Raises:
            ProcessDiedError: no job could start.
        """
        for rank in list(self._processes):
            message = self._receive(rank, START_SECONDS)
            if message is not None:
                self.priority = message["priority"]
                self.step_seconds = max(self.step_seconds, message["step"])
        if not self._processes:
            raise ProcessDiedError(f"the background job {self.job.name} cannot start: {self.ended}")

    def begin(self) -> None:
        """Starts a training phase of all running jobs."""
        self._send("train", reports_progress=self._reports_progress)

    def poll(self) -> None:
        """Reads the progress reports that have arrived, and removes jobs whose processes have ended."""
        for rank, process in list(self._processes.items()):
            with contextlib.suppress(queue.Empty):
                while True:
                    _, message = process.inbox.get_nowait()
                    if message is None:
                        self._remove(rank, f"{process.name} {process.exit_reason()}")
                        break
                    self._update_report(rank, message)

    def _update_report(self, rank: int, message: Message) -> None:
        if message["event"] == "progress":
            self.reports[rank] = BackgroundReport(message["clock"], message["updates"], message["samples"])

    def _remove(self, rank: int, reason: str) -> None:
        self.ended = reason
        self.reports[rank] = replace(self.reports[rank], clock=time.perf_counter(), ended=reason)
        self._processes.pop(rank).kill()

    def split(self, work: WorkDone) -> None:
        """Splits the training phase here: its work since the last split is added to ``work`` when the phase ends."""
        self._parts.append((work, time.perf_counter(), self._cpu_seconds()))

    def measure(self, work: WorkDone, started: float) -> None:
        """Ends the training phase that began at ``started``; its work since the last split is added to ``work``."""
        self.split(work)
        parts, self._parts = self._parts, []
        self._send("rest")
        spans: list[Span] = []
        for rank in list(self._processes):
            trained = self._receive(rank, SWITCH_SECONDS)
            if trained is None or self._receive(rank, SWITCH_SECONDS) is None or rank not in parts[-1][2]:
                continue
            log = trained["log"]
            add_work(log, [(part, until, cpu[rank]) for part, until, cpu in parts])
            spans += [
                Span(rank, "background", f"{self.job.name} step", before, after)
                for (before, *_), (after, *_) in itertools.pairwise(log)
                if before < parts[-1][1]
            ]
        for part, until, _ in parts:
            part.seconds += until - started
            part.spans, started = spans, until

    def _receive(self, rank: int, timeout: float) -> Message | None:
        process = self._processes[rank]
        try:
            while (message := receive(process, timeout))["event"] == "progress":
                self._update_report(rank, message)
            # It reports why it failed, and then exits with the same text.
            return receive(process, timeout) if message["event"] == "failed" else message
        except ProcessDiedError as error:
            self._remove(rank, str(error))
            return None

    def _cpu_seconds(self) -> dict[int, float]:
        used = {rank: process.cpu_seconds() for rank, process in self._processes.items()}
        return {rank: seconds for rank, seconds in used.items() if seconds is not None}


class Spinners(HelperProcesses):
    """One idle-priority spinner per core. Leaving its ``with`` block ends them."""

    def __init__(self, launcher: Launcher, ranks: int, sharing: Sharing, device: str) -> None:
        """Starts one beside each rank, on ``cpu`` or ``cuda``; they spin inside :meth:`spinning` only."""
        self._in_control_group = sharing.share is not None and device == "cpu"
        super().__init__(launcher, ranks, "deeppool.collocation.spinner", "spinner")

    def _setup(self, slot: WorkerSpec) -> dict[str, Any]:
        # The lowest priority is the lowest only within the control group of the rank.
        return {"run": Path(slot.folder).name if self._in_control_group else None}

    def wait_until_ready(self) -> None:
        """Returns when all have taken their priority."""
        self._receive_all(START_SECONDS)

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """Keeps the cores active during the block."""
        self._send("spin")
        yield
        self._send("rest")
        self._receive_all(SWITCH_SECONDS)

    def _receive_all(self, timeout: float) -> None:
        for process in self._processes.values():
            receive(process, timeout)


def add_work(log: Sequence[Sequence[float]], parts: Sequence[tuple[WorkDone, float, float]]) -> None:
    """Adds the steps of one job to the parts of its phase.

    Args:
        log: as for :func:`steps_done`.
        parts: where the work of each part is added, when it ended, and the job's CPU seconds by then.
    """
    before = 0.0
    for work, until, cpu in parts:
        done = steps_done(log, until, cpu)
        work.steps += done - before
        before = done
    for clock, _, loss in log[1:]:
        # A step in progress at the end belongs to the last part.
        work = next((work for work, until, _ in parts if clock <= until), parts[-1][0])
        work.losses.append(loss)


def steps_done(log: Sequence[Sequence[float]], ended: float, cpu: float) -> float:
    """Counts the steps finished by ``ended``, and of the one in progress the share of its CPU seconds used by then.

    Args:
        log: (clock, CPU seconds, loss) at the start of the phase and at the end of each step.
        ended: clock at the end of the phase.
        cpu: CPU seconds that the process had used by then.
    """
    finished = sum(1 for clock, *_ in log[1:] if clock <= ended)
    if finished == len(log) - 1:
        return float(finished)
    before, after = log[finished][1], log[finished + 1][1]
    return finished + float(np.clip((cpu - before) / (after - before), 0.0, 1.0)) if after > before else float(finished)
