"""A rank that has its device and has joined the other ranks: the start of those that are not ranks of a plan."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deeppool.device.cpu import pin_to_core
from deeppool.device.find import find_device
from deeppool.execution.communicator import Communicator, join_process_group
from deeppool.execution.failure_report import RENDEZVOUS
from deeppool.execution.rank import Command
from deeppool.execution.ranks import RENDEZVOUS_SECONDS, START_SECONDS
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import RankGroup


class JoinedRank:
    """One rank, whose commands :func:`deeppool.execution.worker.serve` executes."""

    communicator: Communicator
    """All ranks."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Pins the process, and joins the other ranks."""
        heartbeat.enter("its start")
        self.setup, self.folder = setup, Path(setup["folder"])
        device = self.device = find_device(setup["device"])
        device.select(setup["index"])
        self.stream = device.stream("high")
        if setup["core"] is not None:
            pin_to_core(setup["core"])
        self.place = device.torch_device(setup["index"])
        heartbeat.enter(RENDEZVOUS, waits=True)
        self.rank, self.ranks = setup["rank"], setup["ranks"]
        self.communicator = join_process_group(device, self.rank, self.ranks, setup["rendezvous"], setup["interface"])

    @property
    def ready(self) -> Mapping[str, Any]:
        """What the launcher wants to know."""
        return {"device_name": self.device.name}

    @property
    def commands(self) -> Mapping[str, Command]:
        """All commands by name; this one has none."""
        return {}


def start_ranks(group: RankGroup, launcher: Launcher, program: str, ranks: int, **setup: Any) -> None:
    """Starts a process per rank; :func:`wait_until_joined` waits for them.

    Args:
        group: the group that they are added to.
        launcher: starts them; the files of the run are distributed.
        program: module that each process runs.
        ranks: number of ranks.
        setup: fields of the command ``setup`` beside the rank's place.
    """
    for rank in range(ranks):
        place = {"rank": rank, "ranks": ranks, **asdict(launcher.worker_spec(rank))}
        group.start(program).send("setup", **place, **setup)


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
