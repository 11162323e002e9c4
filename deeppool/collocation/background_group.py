"""The background jobs of all ranks: started, switched between training and resting, and counted.

A background job that dies is noted and left behind; the foreground goes on.
"""

import contextlib
import itertools
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import Span
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Message, ProcessDiedError, ProcessHandle, close_all, receive

START_SECONDS = 300.0
SWITCH_SECONDS = 60.0
"""A step under way ends first, and at the lowest priority it may have to wait for the core."""


@dataclass(slots=True)
class WorkDone:
    """What the background jobs got done in the phases of one kind."""

    steps: float = 0.0
    """Over all jobs; a step cut by the end of a phase counts by its share of CPU time."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Steps of the last phase, on the clock of ``time.perf_counter``."""
    phases: list[tuple[float, float]] = field(default_factory=list)
    """Steps and seconds of each."""


@dataclass(frozen=True, slots=True)
class BackgroundReport:
    """What one of the jobs last said of itself."""

    clock: float
    """When, by ``time.perf_counter``."""
    steps: int
    samples: int
    ended: str | None = None
    """How it died."""


class BackgroundGroup:
    """One background process per core. Leaving its ``with`` block ends them all."""

    def __init__(
        self,
        job: BackgroundJob,
        place: Launcher,
        ranks: int,
        sharing: Sharing,
        work: Mapping[str, Any],
        device: str = "cpu",
        home: str = "process",
        *,
        tells: bool = False,
    ) -> None:
        """Starts a process beside each rank.

        Args:
            job: what each of them trains.
            place: where the ranks are; the files of the job were handed over to it.
            ranks: how many there are.
            sharing: how they share the cores with the ranks.
            work: what :func:`deeppool.collocation.job_queue.hand_over` said of the job.
            device: of the ranks, ``cpu`` or ``cuda``.
            home: what kind of process theirs is, for the record.
            tells: whether they tell of themselves while they train; see :meth:`look`.
        """
        self.job, self.home = job, home
        self.priority = "unknown"
        self.ended = "stopped"
        self.step_seconds = 0.0
        """That a step holds its core or GPU, alone; of the slowest job."""
        self.told: dict[int, BackgroundReport] = {
            rank: BackgroundReport(time.perf_counter(), 0, 0) for rank in range(ranks)
        }
        """Per rank, as of the last :meth:`look`."""
        self._tells = tells
        self._cuts: list[tuple[WorkDone, float, dict[int, float]]] = []
        """Parts of the present phase that are over: whose work it was, until when, and CPU seconds by then."""
        self._living: dict[int, ProcessHandle] = {}
        try:
            for rank in range(ranks):
                child = place.start(rank, "deeppool.collocation.background_process", f"background job of rank {rank}")
                self._living[rank] = child
                slot = place.slot(rank)
                child.send(
                    "setup",
                    **work,
                    own=slot.folder,
                    rank=rank,
                    core=slot.core,
                    device=device,
                    index=slot.index,
                    folder=slot.folder,
                    sharing=asdict(sharing),
                )
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Returns when every living job has taken its first step.

        Raises:
            ChildDiedError: none could start.
        """
        for rank in list(self._living):
            message = self._receive(rank, START_SECONDS)
            if message is not None:
                self.priority = message["priority"]
                self.step_seconds = max(self.step_seconds, message["step"])
        if not self._living:
            raise ProcessDiedError(f"the background job {self.job.name} cannot start: {self.ended}")

    def begin(self) -> None:
        """All that live train from now on."""
        self._send("train")

    def _send(self, command: str) -> None:
        for child in self._living.values():
            child.send(command, tells=self._tells)

    def look(self) -> None:
        """Takes note of what the jobs have said, and of those that have died, by now."""
        for rank, child in list(self._living.items()):
            with contextlib.suppress(queue.Empty):
                while True:
                    _, message = child.inbox.get_nowait()
                    if message is None:
                        self._bury(rank, f"{child.name} {child.fate()}")
                        break
                    self._note(rank, message)

    def _note(self, rank: int, message: Message) -> None:
        if message["event"] == "progress":
            self.told[rank] = BackgroundReport(message["clock"], message["updates"], message["samples"])

    def _bury(self, rank: int, how: str) -> None:
        self.ended = how
        self.told[rank] = replace(self.told[rank], clock=time.perf_counter(), ended=how)
        self._living.pop(rank).kill()

    def cut(self, work: WorkDone) -> None:
        """From here on the present training phase counts for something else; up to here, for ``work``."""
        self._cuts.append((work, time.perf_counter(), self._cpu()))

    def measure(self, work: WorkDone, started: float) -> None:
        """Ends a training phase that began at ``started``; adds what was done since the last cut to ``work``."""
        self.cut(work)
        parts, self._cuts = self._cuts, []
        self._send("rest")
        spans: list[Span] = []
        for rank in list(self._living):
            trained = self._receive(rank, SWITCH_SECONDS)
            if trained is None or self._receive(rank, SWITCH_SECONDS) is None or rank not in parts[-1][2]:
                continue
            log = trained["log"]
            _credit(log, [(part, until, cpu[rank]) for part, until, cpu in parts])
            spans += [
                Span(rank, "background", f"{self.job.name} step", before, after)
                for (before, *_), (after, *_) in itertools.pairwise(log)
                if before < parts[-1][1]
            ]
        for part, until, _ in parts:
            part.seconds += until - started
            part.spans, started = spans, until

    def _receive(self, rank: int, timeout: float) -> Message | None:
        child = self._living[rank]
        try:
            while (message := receive(child, timeout))["event"] == "progress":
                self._note(rank, message)
            # It says why it failed, and then ends with the same words.
            return receive(child, timeout) if message["event"] == "failed" else message
        except ProcessDiedError as error:
            self._bury(rank, str(error))
            return None

    def _cpu(self) -> dict[int, float]:
        used = {rank: child.cpu_seconds() for rank, child in self._living.items()}
        return {rank: seconds for rank, seconds in used.items() if seconds is not None}

    def close(self) -> None:
        """Ends all that live."""
        close_all(list(self._living.values()), grace=1.0)

    def __enter__(self) -> "BackgroundGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Spinners:
    """One idle-priority spinner per core. Leaving its ``with`` block ends them all."""

    def __init__(self, place: Launcher, ranks: int, sharing: Sharing, device: str) -> None:
        """Starts one beside each rank, on ``cpu`` or ``cuda``; :meth:`spinning` sets them spinning."""
        self._children: list[ProcessHandle] = []
        try:
            for rank in range(ranks):
                child = place.start(rank, "deeppool.collocation.spinner", f"spinner of rank {rank}")
                self._children.append(child)
                slot = place.slot(rank)
                # Only beside the rank in its control group is the lowest priority the lowest.
                run = None if sharing.share is None or device != "cpu" else Path(slot.folder).name
                child.send("setup", core=slot.core, rank=rank, run=run)
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Returns when all have taken their priority."""
        for child in self._children:
            receive(child, START_SECONDS)

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """Keeps the cores awake for the block."""
        for child in self._children:
            child.send("spin")
        yield
        for child in self._children:
            child.send("rest")
        for child in self._children:
            receive(child, SWITCH_SECONDS)

    def close(self) -> None:
        """Ends them."""
        close_all(self._children, grace=1.0)

    def __enter__(self) -> "Spinners":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _credit(log: Sequence[Sequence[float]], parts: Sequence[tuple[WorkDone, float, float]]) -> None:
    """Adds the steps of one job to the works of its phase, each of which has its end and the CPU seconds by then."""
    before = 0.0
    for work, until, cpu in parts:
        done = steps_done(log, until, cpu)
        work.steps += done - before
        before = done
    for clock, _, loss in log[1:]:
        # A step under way at the end is the last one's.
        work = next((work for work, until, _ in parts if clock <= until), parts[-1][0])
        work.losses.append(loss)


def steps_done(log: Sequence[Sequence[float]], ended: float, cpu: float) -> float:
    """Steps finished by ``ended``, and of the one under way the share of its CPU seconds used by then.

    Args:
        log: (clock, CPU seconds, loss) at the start and at the end of each step.
        ended: clock at the end of the phase.
        cpu: CPU seconds that the process had used by then.
    """
    finished = sum(1 for clock, *_ in log[1:] if clock <= ended)
    if finished == len(log) - 1:
        return float(finished)
    before, after = log[finished][1], log[finished + 1][1]
    return finished + float(np.clip((cpu - before) / (after - before), 0.0, 1.0)) if after > before else float(finished)
