"""Starts, commands and ends the ranks of a live run."""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deeppool import documents
from deeppool.child import Child, Message, close_all
from deeppool.device.cpu import usable_cores
from deeppool.errors import RankFailedError, RunError
from deeppool.execution.training import TrainingJob, save_job
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.units import format_bytes

START_SECONDS = 300.0
"""For importing torch, building and capturing the model, and meeting the others."""
SILENCE_SECONDS = 180.0
"""A running rank that reports nothing for so long hangs."""
RUNTIME_BYTES = 300 * 2**20
"""Memory of a rank before its model: the interpreter and torch."""

OnStep = Callable[[Message], None]
"""Called with what a rank tells of a step that it has done."""


class Ranks:
    """All ranks of a foreground. Leaving its ``with`` block ends every process, whatever happened."""

    def __init__(self, plan: Plan, job: Job | TrainingJob, folder: Path) -> None:
        """Starts a process per rank of the plan; :meth:`wait_until_ready` says when they have met.

        Args:
            plan: what to run.
            job: the model and its training.
            folder: private and empty, for the plan, the job and the rendezvous of this run.

        Raises:
            RunError: the plan needs more than this machine has.
        """
        check_capacity(plan)
        self._inbox: queue.SimpleQueue[tuple[Child, Message | None]] = queue.SimpleQueue()
        self.children: list[Child] = []
        plan_file = documents.write(plan, folder / "plan.json")
        work = {"training": str(save_job(job, folder))} if isinstance(job, TrainingJob) else {"job": asdict(job)}
        cores = usable_cores()
        try:
            for rank in range(plan.gpus):
                child = Child("deeppool.execution.worker", f"rank {rank}", self._inbox)
                self.children.append(child)
                child.send(
                    "setup",
                    rank=rank,
                    ranks=plan.gpus,
                    **work,
                    plan=str(plan_file),
                    rendezvous=str(folder / "rendezvous"),
                    core=cores[rank % len(cores)] if plan.device == "cpu" else None,
                )
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Returns when every rank has captured the model and met the others."""
        self._collect("ready", START_SECONDS, "while it started", None)

    def train(self, steps: int, on_step: OnStep | None = None, *, told: bool = False) -> list[Message]:
        """Trains some updates on all ranks; returns each rank's measurements.

        Args:
            steps: updates.
            on_step: see :data:`OnStep`.
            told: whether every rank tells of every step, not rank 0 alone.
        """
        return self._command("train", "while it trained", on_step, steps=steps, told=told)

    def save(self, folder: Path) -> list[Message]:
        """Lets every rank write its part of a checkpoint."""
        return self._command("save", "while it wrote a checkpoint", folder=str(folder))

    def load(self, folder: Path, updates: int) -> None:
        """Brings every rank to the state of a checkpoint."""
        self._command("load", "while it read a checkpoint", folder=str(folder), updates=updates)

    def switch(self, plan: Plan, folder: Path) -> None:
        """Lets every rank go on by another plan for as many ranks, from a checkpoint that they have just written."""
        plan_file = documents.write(plan, folder.parent / "plan.json")
        self._command("switch", "while it changed its plan", plan=str(plan_file), folder=str(folder))

    def _command(self, command: str, when: str, on_step: OnStep | None = None, **arguments: Any) -> list[Message]:
        for child in self.children:
            child.send(command, **arguments)
        return self._collect("done", SILENCE_SECONDS, when, on_step)

    def rest(self, seconds: float) -> None:
        """Lets the ranks wait; one that dies meanwhile is noticed at once."""
        with contextlib.suppress(queue.Empty):
            child, _ = self._inbox.get(timeout=seconds)
            self._fail(child, "while it rested")

    def _collect(self, event: str, patience: float, when: str, on_step: OnStep | None) -> list[Message]:
        """One answer of each rank, in the order of ranks.

        Raises:
            RankFailedError: a rank died, or all were silent for too long; all are ended by then.
        """
        answers: dict[Child, Message] = {}
        while len(answers) < len(self.children):
            try:
                child, message = self._inbox.get(timeout=patience)
            except queue.Empty:
                silent = ", ".join(child.name for child in self.children if child not in answers)
                self.close(grace=0)
                raise RankFailedError(
                    f"{silent} said nothing for {patience:.0f} s {when}; all ranks were stopped "
                    "(a rank hangs: is memory short?)"
                ) from None
            if message is None:
                self._fail(child, when)
            elif message["event"] == event:
                answers[child] = message
            elif message["event"] == "step" and on_step is not None:
                on_step(message)
        return [answers[child] for child in self.children]

    def _fail(self, first: Child, when: str) -> None:
        """Ends all ranks and blames the one that did not die of another's death."""
        culprit = first
        deadline = time.monotonic() + 1.0
        # A killed rank breaks its peers' connections, and theirs may be the first end that is noticed.
        while time.monotonic() < deadline:
            killed = [child for child in self.children if (child.process.poll() or 0) < 0]
            if killed:
                culprit = killed[0]
                break
            time.sleep(0.05)
        fate = culprit.fate()
        self.close(grace=0)
        raise RankFailedError(
            f"{culprit.name} {fate} {when}; the other ranks were stopped (run again, or see its last words)"
        )

    def close(self, grace: float = 2.0) -> None:
        """Ends every rank."""
        if grace == 0:
            for child in self.children:
                child.process.kill()
        close_all(self.children, grace)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(grace=2.0 if kind is None else 0)


def check_capacity(plan: Plan) -> None:
    """Raises RunError where the plan needs more ranks than can start here."""
    import psutil

    if plan.device == "cuda":
        import torch

        present = torch.cuda.device_count()
        if plan.gpus > present:
            raise RunError(f"the plan needs {plan.gpus} GPUs, this machine has {present} (plan with --gpus {present})")
        return
    cores, memory = len(usable_cores()), psutil.virtual_memory().available
    # Weights, gradients and momentum.
    needed = plan.gpus * (RUNTIME_BYTES + 3 * plan.parameter_bytes)
    if needed > memory:
        raise RunError(
            f"the plan needs {plan.gpus} ranks of {plan.model}, about {format_bytes(needed)} of memory; this machine "
            f"has {format_bytes(memory)} available and {cores} cores (plan with --gpus {cores})"
        )


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder that only this user can enter (mode 0700, as tempfile makes them)."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="deeppool-") as name:
        yield Path(name)
