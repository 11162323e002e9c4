"""A rank that has its device and has joined the other ranks: the start of those that are not ranks of a plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.execution.communicator import Communicator, join_process_group
from deeppool.execution.failure_report import RENDEZVOUS
from deeppool.execution.rank import Command, take_device
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.profiling.network.measure import measure_joined
from deeppool.profiling.network.patterns import RankContext


class JoinedRank:
    """One rank, whose commands :func:`deeppool.execution.worker.serve` executes."""

    communicator: Communicator
    """All ranks."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Pins the process, and joins the other ranks."""
        heartbeat.enter("its start")
        self.setup, self.folder = setup, Path(setup["folder"])
        self.device, self.stream, self.place = take_device(setup, setup["device"])
        heartbeat.enter(RENDEZVOUS, waits=True)
        self.rank, self.ranks = setup["rank"], setup["ranks"]
        self.communicator = join_process_group(
            self.device, self.rank, self.ranks, setup["rendezvous"], setup["interface"]
        )

    @property
    def ready(self) -> Mapping[str, Any]:
        """What the launcher wants to know."""
        return {"device_name": self.device.name}

    @property
    def commands(self) -> Mapping[str, Command]:
        """All commands by name."""
        return {"network": Command("measuring the network", self.network)}

    def network(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Measures the network between the ranks; rank 0 returns it."""
        context = RankContext(self.rank, self.ranks, self.setup.get("per_node") or self.ranks)
        found = measure_joined(context, self.device, message["sizes"], seconds=message["seconds"], schedules=True)
        return {"cluster": found and serialization.to_json(found)}
