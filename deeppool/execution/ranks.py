"""Starts, commands and ends the ranks of a live run."""

import platform
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.errors import DocumentError
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import CONTROL, Message
from deeppool.processes.rank_group import RankGroup
from deeppool.training.training_job import TrainingJob, save_job

START_SECONDS = 300.0
"""For importing torch, building and capturing the model, and meeting the others."""
RENDEZVOUS_SECONDS = 30.0
"""Ranks that all wait for one another for so long cannot reach one another."""
FIRST_UPDATE_SECONDS = 120.0
"""In which a rank must get on before it is known how long an update takes."""
MIN_TIMEOUT = 30.0
"""The same when it is known; a disk or a network may well be slow once in a while."""
TIMEOUT_UPDATES = 10.0
"""Times the slowest update so far: the patience, where that is more."""
DISK_SECONDS = 60.0
SLOW_DISK = 10e6
"""Bytes per second that a checkpoint is written and read with at least."""
RUNTIME_BYTES = 300 * 2**20
"""Memory of a rank before its model: the interpreter and torch."""

PLAN = "plan.json"
"""File of a run, in its private folder."""

OnStep = Callable[[Message], None]
"""Called with what a rank tells of a step that it has done."""


class Ranks:
    """All ranks of a foreground. Leaving its ``with`` block ends every process, whatever happened."""

    def __init__(
        self,
        plan: Plan,
        job: Job | TrainingJob,
        folder: Path,
        launcher: Launcher,
        sharing: Sharing | None = None,
        boards: Path | None = None,
        emulate: int | None = None,
        program: str = "deeppool.execution.worker",
    ) -> None:
        """Starts a process per rank of the plan; :meth:`wait_until_ready` says when they have met.

        Args:
            plan: what to run.
            job: the model and its training.
            folder: private, for the plan and the job of this run; a pickled model of the job lies in it already.
            launcher: where the ranks shall be.
            sharing: how a background shares a device with each of them; None: there is none.
            boards: folder in which ranks and background meet, where that is not the one of the run: a background
                that outlives a rank finds the next one there.
            emulate: the one rank that shall run, as if all others did too; None: all of them do.
            program: module that each rank's process runs.

        Raises:
            RunError: the plan needs more than there is.
        """
        # Weights, gradients and momentum.
        state = 3 * plan.parameter_bytes
        launcher.check(plan.model, RUNTIME_BYTES + state)
        self._disk_seconds = DISK_SECONDS + state / SLOW_DISK
        self._slowest: float | None = None
        self._emulated = emulate is not None
        self.group = RankGroup(launcher)
        serialization.write(plan, folder / PLAN)
        work: dict[str, Any] = {} if isinstance(job, TrainingJob) else {"job": asdict(job)}
        if isinstance(job, TrainingJob):
            save_job(job, folder)
        work["sharing"] = None if sharing is None else asdict(sharing)
        work["boards"] = None if boards is None else str(boards)
        launcher.distribute_files(folder)
        try:
            for position, rank in enumerate(range(plan.gpus) if emulate is None else [emulate]):
                self.group.start(program).send(
                    "setup",
                    rank=rank,
                    ranks=plan.gpus,
                    position=position,
                    emulated=emulate is not None,
                    **work,
                    **asdict(launcher.worker_spec(position)),
                )
        except BaseException:
            self.group.close()
            raise

    def wait_until_ready(self) -> None:
        """Returns when every rank has captured the model and met the others."""
        self.group.collect("ready", START_SECONDS, "while it started", rendezvous_timeout=RENDEZVOUS_SECONDS)

    def train(
        self,
        steps: int,
        on_step: OnStep | None = None,
        *,
        told: bool = False,
        beside: bool = False,
        awake: bool = False,
    ) -> list[Message]:
        """Trains some updates on all ranks; returns each rank's measurements.

        Args:
            steps: updates.
            on_step: see :data:`OnStep`.
            told: whether every rank tells of every step, not rank 0 alone.
            beside: whether the background runs meanwhile, so that it must be governed.
            awake: whether it does not, but cores are kept awake as beside it, so that its governors may learn.
        """

        def on_message(message: Message) -> None:
            if message["event"] == "step":
                self._slowest = max(self._slowest or 0.0, message["seconds"])
                if on_step is not None:
                    on_step(message)

        # Rank 0 tells of its steps unasked; it may not be the one that is there.
        self.group.send("train", steps=steps, told=told or self._emulated, beside=beside, awake=awake)
        return self.group.collect("done", self._timeout, "while it trained", on_message)

    def change_bound(self, bound: float, number: int) -> None:
        """Has the governor of every rank hold another bound, from its next iteration beside the background on.

        Args:
            bound: on the foreground's mean slowdown.
            number: by which the ranks say under which bound they made an iteration; that of the start is 0.
        """
        self.group.send(CONTROL, bound=bound, number=number)

    def _timeout(self) -> float:
        """Seconds in which a training rank must get on."""
        if self._slowest is None:
            return FIRST_UPDATE_SECONDS
        return max(MIN_TIMEOUT, TIMEOUT_UPDATES * self._slowest)

    def share(self, folder: Path) -> None:
        """Makes sure that every rank sees what is written into a folder, which is made if it is not there.

        Raises:
            DocumentError: it cannot be written here.
            RankFailedError: a rank does not see it.
        """
        probe = folder / f".seen-by-all-{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            raise DocumentError(f"cannot write {folder}: {error.strerror} (choose another folder)") from error
        try:
            self.group.send("find", path=str(probe.absolute()), host=platform.node())
            self.group.collect("done", self._disk_seconds, "while it looked for the folder of checkpoints")
        finally:
            probe.unlink(missing_ok=True)

    def save(self, folder: Path) -> list[Message]:
        """Lets every rank write its part of a checkpoint."""
        self.group.send("save", folder=str(folder.absolute()))
        return self.group.collect("done", self._disk_seconds, "while it wrote a checkpoint")

    def load(self, folder: Path, updates: int) -> None:
        """Brings every rank to the state of a checkpoint."""
        self.group.send("load", folder=str(folder.absolute()), updates=updates)
        self.group.collect("done", self._disk_seconds, "while it read a checkpoint")

    def switch(self, plan: Plan, folder: Path) -> None:
        """Lets every rank go on by another plan for as many ranks, from a checkpoint that they have just written."""
        self.group.send("switch", plan=serialization.to_json(plan), folder=str(folder.absolute()))
        self.group.collect("done", self._disk_seconds, "while it changed its plan")

    def tell(self, command: str, patience: float, when: str, **arguments: Any) -> list[Message]:
        """A command of who lives in the ranks' processes too; returns each one's answer."""
        self.group.send(command, **arguments)
        return self.group.collect("done", patience, when)

    def rest(self, seconds: float) -> None:
        """Lets the ranks wait; one that dies meanwhile is noticed at once."""
        self.group.watch(seconds, "while it rested")

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.group.__exit__(kind)
