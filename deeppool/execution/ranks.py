"""Starts, commands and ends the ranks of a live run."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from deeppool import documents
from deeppool.child import Message
from deeppool.device.cpu import usable_cores
from deeppool.errors import RunError
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.rank_group import RankGroup
from deeppool.units import format_bytes

START_SECONDS = 300.0
"""For importing torch, building and capturing the model, and meeting the others."""
SILENCE_SECONDS = 180.0
"""A running rank that reports nothing for so long hangs."""
RUNTIME_BYTES = 300 * 2**20
"""Memory of a rank before its model: the interpreter and torch."""

OnStep = Callable[[int], None]
"""Called with the number of an iteration when rank 0 has done it."""


class Ranks:
    """All ranks of a foreground. Leaving its ``with`` block ends every process, whatever happened."""

    def __init__(self, plan: Plan, job: Job, folder: Path) -> None:
        """Starts a process per rank of the plan; :meth:`wait_until_ready` says when they have met.

        Args:
            plan: what to run.
            job: the model and its training.
            folder: private and empty, for the plan and the rendezvous of this run.

        Raises:
            RunError: the plan needs more than this machine has.
        """
        check_capacity(plan)
        self.group = RankGroup()
        plan_file = documents.write(plan, folder / "plan.json")
        cores = usable_cores()
        try:
            for rank in range(plan.gpus):
                self.group.start("deeppool.execution.worker").send(
                    "setup",
                    rank=rank,
                    ranks=plan.gpus,
                    job=asdict(job),
                    plan=str(plan_file),
                    rendezvous=str(folder / "rendezvous"),
                    core=cores[rank % len(cores)] if plan.device == "cpu" else None,
                )
        except BaseException:
            self.group.close()
            raise

    def wait_until_ready(self) -> None:
        """Returns when every rank has captured the model and met the others."""
        self.group.collect("ready", START_SECONDS, "while it started")

    def train(self, steps: int, on_step: OnStep | None = None) -> list[Message]:
        """Trains some iterations on all ranks; returns each rank's measurements."""

        def on_message(message: Message) -> None:
            if message["event"] == "step" and on_step is not None:
                on_step(message["step"])

        self.group.send("train", steps=steps)
        return self.group.collect("done", SILENCE_SECONDS, "while it trained", on_message)

    def rest(self, seconds: float) -> None:
        """Lets the ranks wait; one that dies meanwhile is noticed at once."""
        self.group.watch(seconds, "while it rested")

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.group.__exit__(kind)


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
