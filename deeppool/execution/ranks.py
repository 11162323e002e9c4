"""Starts, commands and ends the ranks of a live run."""

import platform
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from deeppool.base import serialization
from deeppool.base.pickling import save_pickled
from deeppool.base.sharing import Sharing
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.errors import DocumentError, RunError
from deeppool.execution.load_imbalance import save_delays
from deeppool.execution.sync_method import METHOD, GradientSyncMethod
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import CONTROL, Message
from deeppool.processes.rank_group import RankGroup
from deeppool.training.training_job import TrainingJob, save_job

START_SECONDS = 300.0
"""Limit for importing torch, building and capturing the model, and joining the other ranks."""
RENDEZVOUS_SECONDS = 30.0
"""Limit for a state in which all ranks wait for one another: they cannot reach each other."""
FIRST_UPDATE_SECONDS = 120.0
"""Limit without progress until the time of an update is known."""
MIN_TIMEOUT = 30.0
"""Least limit after that; a disk or a network may be slow once in a while."""
TIMEOUT_UPDATES = 10.0
"""Limit in multiples of the slowest update so far, where that is more."""
DISK_SECONDS = 60.0
SLOW_DISK = 10e6
"""Least bytes per second at which a checkpoint is written and read."""
RUNTIME_BYTES = 300 * 2**20
"""Memory of a rank before its model: the interpreter and torch."""

PLAN = "plan.json"
"""File of the plan in a run's private folder."""

OnStep = Callable[[Message], None]
"""Callback with a rank's ``step`` message."""


def start_ranks(
    group: RankGroup, launcher: Launcher, program: str, ranks: int, *, only: int | None = None, **setup: Any
) -> None:
    """Starts a process per rank; :func:`wait_until_joined` waits for them.

    Args:
        group: the group that they are added to; it ends where one cannot start.
        launcher: starts them; the files of the run are distributed.
        program: module that each process runs.
        ranks: number of ranks.
        only: the only rank to start; None: all.
        setup: fields of the command ``setup`` beside the rank's place.
    """
    try:
        for position, rank in enumerate(range(ranks) if only is None else [only]):
            place = {"rank": rank, "ranks": ranks, "position": position, **asdict(launcher.worker_spec(position))}
            group.start(program).send("setup", **place, **setup)
    except BaseException:
        group.close()
        raise


def wait_until_joined(group: RankGroup, on_wait: Callable[[str], None] | None = None) -> list[Message]:
    """Waits until every rank is ready and has joined the others; returns their answers.

    Args:
        group: the ranks.
        on_wait: called with the ranks that are waited for and what they do, as text.

    Raises:
        RankFailedError: a rank failed, or did not join the others in time.
    """
    return group.collect(
        "ready", START_SECONDS, "while it started", rendezvous_timeout=RENDEZVOUS_SECONDS, on_wait=on_wait
    )


class TimedRanks:
    """Ranks whose updates are timed. Leaving its ``with`` block ends every process, whatever happened."""

    def __init__(self, launcher: Launcher) -> None:
        """Starts no process."""
        self.group = RankGroup(launcher)
        self._slowest: float | None = None

    def _note(self, *updates: float) -> None:
        """Notes the seconds of updates."""
        self._slowest = max([self._slowest or 0.0, *updates])

    def _timeout(self) -> float:
        """Returns the seconds after which a training rank without progress counts as hung."""
        if self._slowest is None:
            return FIRST_UPDATE_SECONDS
        return max(MIN_TIMEOUT, TIMEOUT_UPDATES * self._slowest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.group.__exit__(kind)


class Ranks(TimedRanks):
    """All ranks of a foreground."""

    def __init__(
        self,
        plan: Plan,
        job: Job | TrainingJob,
        folder: Path,
        launcher: Launcher,
        *,
        sharing: Sharing | None = None,
        shared_pages: Path | None = None,
        emulate: int | None = None,
        gradient_sync: GradientSyncMethod | None = None,
        load_imbalance: Delays | None = None,
        program: str = "deeppool.execution.worker",
    ) -> None:
        """Starts a process per rank of the plan; :meth:`wait_until_ready` waits for them.

        Args:
            plan: plan to run.
            job: the model and its training.
            folder: private folder of the run, for the plan and the job; it already holds a pickled model of the job.
            launcher: starts the processes.
            sharing: mechanisms by which a background shares the device of each rank; None: there is no background.
            shared_pages: folder of the pages that ranks share with the background, if not the folder of the run: a
                background that outlives a rank finds the next one there.
            emulate: the only rank to run, with all others emulated; None: all ranks run.
            gradient_sync: how ranks sum their gradients; None: as the plan says.
            load_imbalance: delays of the ranks before they compute; None: none.
            program: module that each rank's process runs.

        Raises:
            RunError: the plan needs more GPUs or memory than the launcher has.
        """
        check_ranks(plan, launcher)
        self.device_name = ""
        """Name of rank 0's device once the ranks are ready; the plan's may be of another machine."""
        self._disk_seconds = DISK_SECONDS + _state_bytes(plan) / SLOW_DISK
        self._emulated = emulate is not None
        super().__init__(launcher)
        serialization.write(plan, folder / PLAN)
        job_setup: dict[str, Any] = {} if isinstance(job, TrainingJob) else {"job": asdict(job)}
        if isinstance(job, TrainingJob):
            save_job(job, folder)
        if gradient_sync is not None:
            save_pickled(gradient_sync, "gradient_sync", folder / METHOD)
        if load_imbalance is not None:
            save_delays(load_imbalance, folder)
        job_setup["sharing"] = None if sharing is None else asdict(sharing)
        job_setup["shared_pages"] = None if shared_pages is None else str(shared_pages)
        launcher.distribute_files(folder)
        start_ranks(self.group, launcher, program, plan.gpus, only=emulate, emulated=self._emulated, **job_setup)

    def wait_until_ready(self, on_wait: Callable[[str], None] | None = None) -> None:
        """Waits until every rank has captured the model and joined the others.

        Args:
            on_wait: called with the ranks that are waited for and what they do, as text.

        Raises:
            RankFailedError: a rank failed, or did not join the others in time.
            RunError: the ranks order the samples differently.
        """
        answers = wait_until_joined(self.group, on_wait)
        self.device_name = answers[0]["device_name"]
        orders = [answer["order"] for answer in answers]
        other = next((rank for rank, order in enumerate(orders) if order != orders[0]), None)
        if other is not None:
            raise RunError(
                f"rank 0 and rank {other} order the samples differently: shards of a batch would overlap (make the "
                "dataset the same in each process, and let the sampler depend on it and on torch's, numpy's and "
                "Python's random numbers alone)"
            )

    def train(
        self,
        steps: int,
        on_step: OnStep | None = None,
        *,
        report_all: bool = False,
        collocated: bool = False,
        awake: bool = False,
    ) -> list[Message]:
        """Trains a number of updates on all ranks; returns each rank's measurements.

        Args:
            steps: updates.
            on_step: see :data:`OnStep`.
            report_all: whether every rank reports every step, not rank 0 alone.
            collocated: whether the background runs meanwhile and must be controlled.
            awake: whether cores are kept awake without a background, so that governors may record a baseline.
        """

        def on_message(message: Message) -> None:
            if message["event"] == "step":
                self._note(message["seconds"])
                if on_step is not None:
                    on_step(message)

        # Rank 0 always reports its steps, but may be an emulated one.
        self.group.send(
            "train", steps=steps, report_all=report_all or self._emulated, collocated=collocated, awake=awake
        )
        return self.group.collect("done", self._timeout, "while it trained", on_message)

    def change_bound(self, bound: float, number: int) -> None:
        """Changes the slowdown bound on every rank from its next collocated iteration on.

        Args:
            bound: bound on the foreground's mean slowdown.
            number: identifies the bound in the ranks' answers; the initial bound is 0.
        """
        self.group.send(CONTROL, bound=bound, number=number)

    def check_shared_folder(self, folder: Path) -> None:
        """Creates a folder if necessary, and checks that every rank sees a file in it.

        Raises:
            DocumentError: the folder cannot be written here.
            RankFailedError: a rank does not see the file.
        """
        probe = folder / f".shared-folder-check-{secrets.token_hex(8)}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            raise DocumentError(f"cannot write {folder}: {error.strerror} (choose another folder)") from error
        try:
            self.group.send("find", path=str(probe.absolute()), host=platform.node())
            self.group.collect("done", self._disk_seconds, "while it looked for the folder of checkpoints")
        finally:
            probe.unlink(missing_ok=True)

    def save(self, folder: Path) -> list[Message]:
        """Writes a checkpoint: every rank its part."""
        self.group.send("save", folder=str(folder.absolute()))
        return self.group.collect("done", self._disk_seconds, "while it wrote a checkpoint")

    def load(self, folder: Path, updates: int) -> None:
        """Restores every rank's state from a checkpoint."""
        self.group.send("load", folder=str(folder.absolute()), updates=updates)
        self.group.collect("done", self._disk_seconds, "while it read a checkpoint")

    def switch(self, plan: Plan, folder: Path) -> None:
        """Switches every rank to another plan for the same number of ranks, from a checkpoint just written."""
        self.group.send("switch", plan=serialization.to_json(plan), folder=str(folder.absolute()))
        self.group.collect("done", self._disk_seconds, "while it changed its plan")

    def execute(self, command: str, timeout: float, when: str, **arguments: Any) -> list[Message]:
        """Sends a command of the background job in the ranks' processes; returns each rank's answer."""
        self.group.send(command, **arguments)
        return self.group.collect("done", timeout, when)

    def sleep(self, seconds: float) -> None:
        """Waits; the death of a rank meanwhile raises at once."""
        self.group.watch(seconds, "while it waited")


def check_ranks(plan: Plan, launcher: Launcher) -> None:
    """Checks that the ranks of a plan fit on the launcher's machines.

    Raises:
        RunError: they have too few GPUs, or too little memory.
    """
    launcher.check(plan.model, RUNTIME_BYTES + _state_bytes(plan))


def _state_bytes(plan: Plan) -> int:
    """Returns the bytes of weights, gradients and momentum."""
    return 3 * plan.parameter_bytes
