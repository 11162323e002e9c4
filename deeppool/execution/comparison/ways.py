"""The ways in which one rank trains, by name, each with weights of its own, as only times are compared."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from deeppool.execution.rank import Command
from deeppool.processes.managed_process import CommandChannel, Message


class Way:
    """One way of training on one rank."""

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains ``message["rounds"]`` rounds; returns their ``seconds``, and whatever else was measured.

        A message with the completed ``share`` of them may be sent meanwhile.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends it; every rank calls it."""


WayType = TypeVar("WayType", bound=Way)


class Ways(Generic[WayType]):
    """The ways of one rank."""

    def __init__(self, make: Callable[[Message], tuple[WayType, dict[str, Any]]]) -> None:
        """Takes a function that makes the way of a command ``prepare``, and the fields of its answer."""
        self._make = make
        self._made: dict[str, WayType] = {}

    def __getitem__(self, name: str) -> WayType:
        return self._made[name]

    @property
    def commands(self) -> Mapping[str, Command]:
        """Commands by name: ``prepare`` makes a way, ``train`` trains some rounds by it."""
        return {
            "prepare": Command("making a way to train", self.prepare),
            "train": Command("training by one of several ways", self.train),
        }

    def prepare(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Makes a way, in place of an earlier one of the same name."""
        name = message["way"]
        if name in self._made:
            self._made.pop(name).close()
        self._made[name], answer = self._make(message)
        return answer

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains by a way, once all ranks are there."""
        dist.barrier()
        return self._made[message["way"]].train(message, commands)
