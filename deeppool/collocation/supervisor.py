"""The background jobs beside the ranks of a training: started one after another, watched, and ended.

Whatever a job does, the foreground does not hear of it: a thread of the launcher, which is no rank, looks after
the jobs' processes, and each of them is in a process group of its own, at the lowest priority from its start on.

    waits → runs → finished, or stopped with the foreground
            runs → crashed or hung: starts again from its checkpoint, if it may
            runs → over its budget, or the machine is short of memory: told to write a checkpoint and leave, else killed
            runs → its loss is no number: over
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deeppool.base.sharing import Sharing
from deeppool.collocation import containment
from deeppool.collocation.containment import ResourceWatch, Usage
from deeppool.collocation.job_process import JobHistory, JobProcess
from deeppool.collocation.job_queue import JobQueue, hand_over
from deeppool.execution import checkpoint
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.managed_process import Inbox, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.records.training_record import BackgroundOutcome
from deeppool.units import format_bytes

TICK = 0.5
"""Seconds between two looks at the processes."""
KIN_TICKS = 10
"""Looks between two searches for processes that left their group: they cost more."""
LEAVE_SECONDS = 10.0
"""That a job has for its last checkpoint once it was told to leave."""
SHORT_LEAVE_SECONDS = 2.0
"""The same where it has none to write, or the training has failed."""
STOPPED = "stopped with the foreground"

_LOG = logging.getLogger(__name__)


class Supervisor:
    """Jobs beside all ranks. Leaving its ``with`` block ends them all."""

    def __init__(
        self, jobs: JobQueue, place: LocalLauncher, ranks: int, device: str, sharing: Sharing, folder: Path
    ) -> None:
        """Starts nothing; the jobs are kept as they are now.

        Args:
            jobs: who is next.
            place: where the ranks are.
            ranks: how many there are.
            device: ``cpu`` or ``cuda``.
            sharing: how the jobs share it with the ranks.
            folder: private, for the jobs' code; it must outlive the host.
        """
        self._queue, self._place, self._device, self._folder = jobs, place, device, folder
        self.boards = folder
        """Where jobs and ranks find each other's board."""
        self._setup = {"sharing": asdict(sharing), "serves": True, "device": device}
        self._work: dict[int, dict[str, Any]] = {}
        for number, job in enumerate(jobs.waiting()):
            own = folder / f"job-{number}"
            own.mkdir()
            self._work[id(job)] = {**hand_over(job, own), "own": str(own)}
        self._inbox: Inbox = queue.SimpleQueue()
        self._stays: dict[int, JobProcess | None] = dict.fromkeys(range(ranks))
        self._stories: list[JobHistory] = []
        self._news: deque[str] = deque()
        self._clock, self._looked, self._looks = 0.0, time.monotonic(), 0
        self._closing = threading.Event()
        self._grace = LEAVE_SECONDS
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def foreground_lost(self) -> None:
        """The ranks are gone, and what they ordered last: until others come the jobs do as they like."""
        for rank in self._stays:
            board = SharedPage(self.boards, rank)
            board.withdraw()
            board.close()

    @property
    def under_way(self) -> bool:
        """Whether a job has begun to train; until then nobody could obey the foreground, or be measured beside it."""
        return any(story.priority is not None for story in tuple(self._stories))

    def news(self) -> list[str]:
        """What happened to jobs since the last call, in sentences."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def outcomes(self) -> tuple[BackgroundOutcome, ...]:
        """What each job did, in the order in which they started, then those that still wait."""
        waiting = [JobHistory(job) for job in self._queue.waiting()]
        return tuple(story.outcome() for story in [*self._stories, *waiting])

    # -- the thread -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                self._tick()
            self._leave_all()
        except Exception:
            # The foreground goes on, whatever this is.
            _LOG.exception("the background jobs were given up")
            self._news.append("the background jobs were given up, see the log")
        finally:
            for rank, stay in self._stays.items():
                if stay is not None:
                    self._end(rank, stay, stay.leaving or STOPPED)

    def _tick(self) -> None:
        """Hears one process, or looks at all of them when it is time."""
        with contextlib.suppress(queue.Empty):
            process, message = self._inbox.get(timeout=TICK)
            for rank, stay in self._stays.items():
                if stay is not None and stay.process is process:
                    self._hear(rank, stay, message)
                    break
        if time.monotonic() - self._looked >= TICK:
            self._look()

    def _look(self) -> None:
        import psutil

        now = time.monotonic()
        # While this process was stopped, or slept with the machine, nobody hung.
        self._clock += min(now - self._looked, 2 * TICK)
        self._looked, self._looks = now, self._looks + 1
        present = {rank: stay for rank, stay in self._stays.items() if stay is not None}
        usages = containment.usages(stay.process.process.pid for stay in present.values())
        for rank, stay in present.items():
            usage = usages.get(stay.process.process.pid)
            if usage is not None:
                self._judge(rank, stay, usage)
        memory = psutil.virtual_memory()
        missing = containment.shortage(memory.total, memory.available)
        if missing is not None:
            self._evict_largest(memory.available)
        elif not self._closing.is_set():
            for rank, taken in self._stays.items():
                if taken is None and (job := self._queue.take(rank)) is not None:
                    self._stories.append(JobHistory(job, rank))
                    self._start(rank, self._stories[-1])

    def _judge(self, rank: int, stay: JobProcess, usage: Usage) -> None:
        stay.memory = usage.memory
        if self._looks % KIN_TICKS == 0:
            stay.find_kin()
        if stay.leaving is not None:
            if time.monotonic() > stay.deadline:
                self._end(rank, stay, f"{stay.leaving}; it did not leave by itself, and was killed")
        elif (hung := stay.watch.hangs(self._clock, usage, stay.process.cpu_seconds())) is not None:
            self._fault(rank, stay, f"{hung}, after step {stay.story.steps}", again=True)
        elif (over := stay.watch.over_budget(usage)) is not None:
            self._ask_to_leave(rank, stay, over)

    def _evict_largest(self, available: float) -> None:
        """One at a time: what it leaves may be enough."""
        present = [(rank, stay) for rank, stay in self._stays.items() if stay is not None]
        if present and all(stay.leaving is None for _, stay in present):
            rank, stay = max(present, key=lambda found: found[1].memory)
            held, left = format_bytes(stay.memory), format_bytes(available)
            self._ask_to_leave(rank, stay, f"evicted: the machine had {left} left, it held {held}")

    # -- one process ----------------------------------------------------------------------------------

    def _start(self, rank: int, story: JobHistory) -> None:
        job, slot = story.job, self._place.slot(rank)
        name = f"background job {job.name}"
        try:
            process = self._place.start(rank, "deeppool.collocation.background_process", name, self._inbox)
        except OSError as error:
            story.ended = f"it could not be started: {error.strerror}"
            self._news.append(f"{name} of rank {rank}: {story.ended}")
            return
        self._stays[rank] = JobProcess(story, process, ResourceWatch(job.budget))
        process.send(
            "setup",
            **self._work[id(job)],
            **self._setup,
            folder=str(self._folder),
            rank=rank,
            core=slot.core,
            index=slot.index,
            memory=job.budget,
        )
        checkpoints = None if job.checkpoints is None else str(Path(job.checkpoints).absolute())
        process.send("serve", steps=job.steps, checkpoints=checkpoints, every=job.checkpoint_every)
        story.ended = "running"

    def _hear(self, rank: int, stay: JobProcess, message: Message | None) -> None:
        story = stay.story
        if message is None:
            self._bury(rank, stay)
        elif message["event"] == "ready":
            story.priority = message["priority"]
        elif message["event"] == "progress":
            stay.note(message, self._clock)
        elif message["event"] == "left":
            stay.note(message, self._clock)
            self._part(rank, stay, message["why"])
        elif message["event"] == "failed":
            stay.failure = message

    def _part(self, rank: int, stay: JobProcess, why: str) -> None:
        """It is over, by its own account."""
        if why == "finished":
            self._end(rank, stay, why)
        elif why == "asked":
            self._end(rank, stay, stay.leaving or STOPPED)
        else:
            self._fault(rank, stay, why, again=False)

    def _bury(self, rank: int, stay: JobProcess) -> None:
        """It has died."""
        failure = stay.failure
        what = stay.process.fate() if failure is None else failure["text"]
        if stay.leaving is not None:
            self._end(rank, stay, f"{stay.leaving}; it {what}")
        else:
            self._fault(rank, stay, what, again=failure is None or failure["kind"] != "refusal")

    def _fault(self, rank: int, stay: JobProcess, what: str, *, again: bool) -> None:
        """Tells of it, and starts the job again where it may."""
        story = stay.story
        story.faults.append(what)
        if again and story.restarts < story.job.restarts and not self._closing.is_set():
            self._end(rank, stay, what, news=f"{what}; it starts again")
            story.restarts += 1
            self._start(rank, story)
        else:
            self._end(rank, stay, what)

    def _ask_to_leave(self, rank: int, stay: JobProcess, why: str) -> None:
        if stay.heard is None:
            self._end(rank, stay, f"{why}, before its first step")
            return
        stay.leaving = why
        grace = SHORT_LEAVE_SECONDS if stay.story.job.checkpoints is None else LEAVE_SECONDS
        stay.deadline = time.monotonic() + min(self._grace, grace)
        stay.process.send("rest")

    def _end(self, rank: int, stay: JobProcess, ended: str, news: str | None = None) -> None:
        """Ends a process and all that it started; the place is free."""
        stay.end()
        self._stays[rank] = None
        stay.story.ended = ended
        self._news.append(f"background job {stay.story.job.name} of rank {rank}: {news or ended}")
        if stay.story.job.checkpoints is not None:
            checkpoint.discard_partial(Path(stay.story.job.checkpoints))

    # -- the end --------------------------------------------------------------------------------------

    def _leave_all(self) -> None:
        """Tells all to leave, and waits for their last checkpoints."""
        for rank, stay in self._stays.items():
            if stay is not None and stay.leaving is None:
                self._ask_to_leave(rank, stay, STOPPED)
        while any(stay is not None for stay in self._stays.values()):
            self._tick()

    def __enter__(self) -> "Supervisor":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._grace = SHORT_LEAVE_SECONDS
        self._closing.set()
        self._thread.join()
