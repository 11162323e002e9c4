"""Starts, watches and stops the background jobs beside the ranks of a training.

A job cannot disturb the foreground: a thread of the launcher, which is no rank, supervises the jobs' processes, and
each of them is in a process group of its own, at the lowest priority from its start. On a GPU it starts once the ranks
have trained, and hold the memory that they need.

    waiting → running → finished, or stopped with the foreground
              running → crashed or hung: started again from its checkpoint, if restarts are left
              running → over its budget, or the machine is short of memory: asked to write a checkpoint and stop,
                        killed if it does not
              running → its loss is no number, or huge: over
"""

import logging
import threading
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

from deeppool.base.sharing import Sharing
from deeppool.collocation import containment
from deeppool.collocation.containment import ResourceWatch, Usage
from deeppool.collocation.helper_processes import BACKGROUND, HelperProcesses
from deeppool.collocation.job_process import JobHistory, JobProcess
from deeppool.collocation.job_queue import BackgroundJob, JobQueue, save_background_job
from deeppool.device.kinds import find_kind
from deeppool.errors import RunError
from deeppool.execution import checkpoint
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.managed_process import ManagedProcess, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.records.training_record import BackgroundOutcome
from deeppool.units import format_bytes

TICK = 0.5
"""Seconds between two checks of the processes."""
DESCENDANT_TICKS = 10
"""Checks between two searches for processes that left their group, which cost more."""
STOP_SECONDS = 10.0
"""Time for the last checkpoint of a job that was asked to stop."""
SHORT_STOP_SECONDS = 2.0
"""Time to stop for a job that writes no checkpoint, or after the training has failed."""
STOPPED = "stopped with the foreground"

_LOG = logging.getLogger(__name__)


class Supervisor:
    """Runs background jobs beside the ranks of a training. Leaving its ``with`` block ends every job."""

    def __init__(
        self, jobs: JobQueue, launcher: LocalLauncher, *, ranks: int, device: str, sharing: Sharing, folder: Path
    ) -> None:
        """Starts nothing; saves the jobs as they are now.

        Args:
            jobs: jobs that wait for a free rank.
            launcher: launcher of the ranks.
            ranks: number of ranks.
            device: ``cpu`` or ``cuda``.
            sharing: mechanisms by which the jobs share it with the ranks.
            folder: private, for the jobs' code and the pages shared with the ranks; it must outlive the supervisor.
        """
        self._queue, self._launcher, self.folder = jobs, launcher, folder
        self._setup = {"sharing": asdict(sharing), "serves": True, "device": device, "folder": str(folder)}
        self._job_setups: dict[int, dict[str, Any]] = {}
        for number, job in enumerate(jobs.waiting()):
            saved_job = folder / f"job-{number}"
            saved_job.mkdir()
            self._job_setups[id(job)] = {**save_background_job(job, saved_job), "saved_job": str(saved_job)}
        self._ranks = range(ranks)
        self._processes = HelperProcesses()
        self._running: dict[int, JobProcess] = {}
        self._histories: list[JobHistory] = []
        self._events: deque[str] = deque()
        self._clock, self._checked, self._checks = 0.0, time.monotonic(), 0
        self._closing = threading.Event()
        self._may_start = not find_kind(device).on_gpus
        self._stop_seconds = STOP_SECONDS
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def foreground_trains(self) -> None:
        """Lets jobs start; called when the ranks have made some updates."""
        self._may_start = True

    def foreground_lost(self) -> None:
        """Clears the limits of ranks that have ended: until new ranks start, the jobs run freely."""
        for rank in self._ranks:
            page = SharedPage(self.folder, rank)
            page.clear()
            page.close()

    @property
    def has_started(self) -> bool:
        """Whether a job has begun to train; before that none follows limits or can be measured."""
        return any(history.record.priority is not None for history in tuple(self._histories))

    def events(self) -> list[str]:
        """Starts, ends and faults of jobs since the last call, in sentences."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def outcomes(self) -> tuple[BackgroundOutcome, ...]:
        """Records of all jobs: those that were started in that order, then those that still wait."""
        waiting = [JobHistory(job) for job in self._queue.waiting()]
        return tuple(history.outcome() for history in [*self._histories, *waiting])

    # -- the thread -----------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            while not self._closing.is_set():
                self._tick()
            self._stop_all()
        except Exception:
            # The foreground continues, whatever went wrong here.
            _LOG.exception("the background jobs were given up")
            self._events.append("the background jobs were given up, see the log")
        finally:
            for rank, process in list(self._running.items()):
                try:
                    self._end(rank, process.stop_reason or STOPPED)
                except Exception:
                    _LOG.exception("the end of the background job of rank %s was not recorded", rank)

    def _tick(self) -> None:
        """Handles one message, and checks all processes when it is time."""
        if (received := self._processes.receive(TICK)) is not None:
            self._handle(*received)
        if time.monotonic() - self._checked >= TICK:
            self._check_processes()

    def _check_processes(self) -> None:
        import psutil

        now = time.monotonic()
        # While this process was stopped, or the machine slept, no job hung.
        self._clock += min(now - self._checked, 2 * TICK)
        self._checked, self._checks = now, self._checks + 1
        usages = containment.group_usages(process.pid for process in self._running.values())
        for rank, process in list(self._running.items()):
            if (usage := usages.get(process.pid)) is not None:
                self._check_process(rank, process, usage)
        memory = psutil.virtual_memory()
        if containment.memory_shortage(memory.total, memory.available) is not None:
            self._evict_largest(memory.available)
        elif self._may_start and not self._closing.is_set():
            for rank in self._ranks:
                if rank not in self._running and (job := self._queue.take(rank)) is not None:
                    self._histories.append(JobHistory(job, rank))
                    self._start(rank, self._histories[-1])

    def _check_process(self, rank: int, process: JobProcess, usage: Usage) -> None:
        process.memory = usage.memory
        if self._checks % DESCENDANT_TICKS == 0:
            process.find_descendants()
        if process.stop_reason is not None:
            if self._clock > process.deadline:
                self._end(rank, f"{process.stop_reason}; it did not leave by itself, and was killed")
        elif (hang := process.watch.find_hang(self._clock, usage, process.handle.cpu_seconds())) is not None:
            self._fault(rank, f"{hang}, after step {process.history.record.steps}", restartable=True)
        elif (excess := process.watch.over_budget(usage)) is not None:
            self._request_stop(rank, process, excess)

    def _evict_largest(self, available: float) -> None:
        """Stops one job at a time: the memory that it frees may be enough."""
        running = self._running
        if running and all(process.stop_reason is None for process in running.values()):
            rank, process = max(running.items(), key=lambda entry: entry[1].memory)
            held, left = format_bytes(process.memory), format_bytes(available)
            self._request_stop(rank, process, f"evicted: the machine had {left} left, it held {held}")

    # -- one process ----------------------------------------------------------------------------------

    def _start(self, rank: int, history: JobHistory) -> None:
        job = history.job
        setup, name = {**self._job_setups[id(job)], **self._setup, "memory": job.budget}, f"background job {job.name}"
        try:
            handle = self._processes.start(self._launcher, rank, BACKGROUND, name, **setup)
        except RunError as error:
            why = str(error).removeprefix(f"{name} of rank {rank} cannot start: ")
            history.update(ended=f"it could not be started: {why}")
            self._report(rank, job, history.record.ended)
            return
        # Of this machine, as its launcher is local.
        self._running[rank] = JobProcess(history, cast(ManagedProcess, handle), ResourceWatch(job.budget))
        checkpoints = None if job.checkpoints is None else str(Path(job.checkpoints).absolute())
        handle.send("serve", steps=job.steps, checkpoints=checkpoints, every=job.checkpoint_every)
        history.update(ended="running")

    def _handle(self, rank: int, message: Message) -> None:
        process = self._running[rank]
        event, why = message["event"], message.get("why")
        if event == "ready":
            process.history.update(priority=message["priority"])
        if event in ("progress", "left"):
            process.record_progress(message, self._clock)
        if event == "ended" and process.stop_reason is not None:
            self._end(rank, f"{process.stop_reason}; it {why}")
        elif event == "ended":
            self._fault(rank, message["why"], restartable=not message["refused"])
        elif why == "asked":
            self._end(rank, process.stop_reason or STOPPED)
        elif why == "finished":
            self._end(rank, why)
        elif why is not None:
            self._fault(rank, why, restartable=False)

    def _fault(self, rank: int, reason: str, *, restartable: bool) -> None:
        """Records a fault, and starts the job again if restarts are left."""
        history = self._running[rank].history
        history.update(faults=(*history.record.faults, reason))
        if restartable and history.record.restarts < history.job.restarts and not self._closing.is_set():
            self._end(rank, reason, event=f"{reason}; it starts again")
            history.update(restarts=history.record.restarts + 1)
            self._start(rank, history)
        else:
            self._end(rank, reason)

    def _request_stop(self, rank: int, process: JobProcess, reason: str) -> None:
        if process.reported_at is None:
            self._end(rank, f"{reason}, before its first step")
            return
        process.stop_reason = reason
        timeout = SHORT_STOP_SECONDS if process.history.job.checkpoints is None else STOP_SECONDS
        process.deadline = self._clock + min(self._stop_seconds, timeout)
        process.handle.send("rest")

    def _end(self, rank: int, ended: str, event: str | None = None) -> None:
        """Kills a process and its descendants; the rank is free for another job."""
        process = self._running.pop(rank)
        process.find_descendants()
        self._processes.end(rank)
        process.kill_descendants()
        job = process.history.job
        process.history.update(ended=ended)
        if event is None and job.on_end is not None:
            event = job.on_end(process.history.outcome())
        self._report(rank, job, event or ended)
        if job.checkpoints is not None:
            checkpoint.discard_partial(Path(job.checkpoints))

    def _report(self, rank: int, job: BackgroundJob, what: str) -> None:
        self._events.append(f"background job {job.name} of rank {rank}: {what}")

    # -- the end --------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Requests all jobs to stop, and waits for their last checkpoints."""
        for rank, process in list(self._running.items()):
            if process.stop_reason is None:
                self._request_stop(rank, process, STOPPED)
        while self._running:
            self._tick()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop_seconds = SHORT_STOP_SECONDS
        self._closing.set()
        self._thread.join()
