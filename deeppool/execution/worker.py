"""Entry point of a rank's process: creates the rank, then executes the launcher's commands until ``exit``.

Commands: ``setup`` (once), ``train`` with a number of steps, ``find`` with a file, ``save`` and ``load`` with a
checkpoint's folder, ``switch`` with another plan, ``exit``, and those of a background job in the same process.
Answers: ``ready``; ``step`` after each update of rank 0, or of every rank on request; ``done`` with the measurements.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

# Every rank reads its plan and captures its model; a fork server loads what that needs once for all of them.
import cloudpickle  # noqa: F401
import torch._export.non_strict_utils
import torch.export._trace  # noqa: F401

from deeppool.base import serialization
from deeppool.execution.failure_report import report_failure
from deeppool.execution.joined_rank import JoinedRank
from deeppool.execution.rank import Command, Rank
from deeppool.graph.capture.warm_up import warm_up
from deeppool.planning.plan import Plan
from deeppool.processes import before_forks
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message

serialization.adapter(Plan)
before_forks.register(warm_up)
WAITING = "waiting for a command"
RankType = TypeVar("RankType", bound=Rank | JoinedRank)


def main(extra_commands: Callable[[Rank], Mapping[str, Command]] = lambda rank: {}) -> None:
    """Executes the launcher's commands until ``exit``.

    Args:
        extra_commands: commands of a background job in this process.
    """
    serve(Rank, extra_commands)


def serve(
    make: Callable[[Message, Heartbeat], RankType],
    extra_commands: Callable[[RankType], Mapping[str, Command]] = lambda rank: {},
) -> None:
    """Makes a rank from the command ``setup``, and executes the launcher's commands until ``exit``.

    Args:
        make: makes the rank.
        extra_commands: returns commands beside its own.
    """
    commands = CommandChannel()
    heartbeat = Heartbeat(commands)
    try:
        rank = make(commands.next(), heartbeat)
        commands.answer("ready", **rank.ready)
        known = {**rank.commands, **extra_commands(rank)}
        with rank.stream.current():
            heartbeat.enter(WAITING, waits=True)
            while (message := commands.next())["command"] != "exit":
                command = known[message["command"]]
                heartbeat.enter(command.activity)
                commands.answer("done", **command.run(message, commands))
                heartbeat.enter(WAITING, waits=True)
        rank.communicator.close()
    except Exception as error:
        report_failure(commands, error, heartbeat.doing.what)
        sys.exit(1)


if __name__ == "__main__":
    main()
