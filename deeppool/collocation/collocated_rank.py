"""The process of a rank in which a background job lodges: the rank's commands, and three more.

``lodge`` with what the job trains, once, answered with its first loss; ``begin``, and it trains beside whatever the
rank does; ``rest``, answered with what it got done. A job that cannot be made, or fails, is told of and left behind:
the rank goes on.
"""

import time
from collections.abc import Mapping
from typing import Any

from deeppool.collocation.foreground_phases import ForegroundPhases
from deeppool.collocation.in_process_background import InProcessBackground
from deeppool.execution import worker
from deeppool.execution.failure_report import describe
from deeppool.execution.worker import Command, Rank
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import BackgroundLimits, Operator


class CollocatedRank:
    """The place beside one rank."""

    def __init__(self, rank: Rank) -> None:
        """Nobody is there yet."""
        self._rank = rank
        self._phases = ForegroundPhases(rank.device)
        setup = rank.setup
        self._board = SharedPage(setup["boards"] or setup["folder"], setup["position"])
        self._lodger: InProcessBackground | None = None
        if rank.governing is not None:
            rank.governing.trust(self._phases)
        if rank.device.kind == "cuda":
            # CPU time says nothing of a GPU, so the stamps are made beside nobody, too.
            rank.watcher, rank.used = self._phases, self._phases.busy
        else:
            rank.used = self._used

    @property
    def commands(self) -> Mapping[str, Command]:
        """By name."""
        return {
            "lodge": Command("making the background job", self.lodge),
            "begin": Command("letting the background job train", self.begin),
            "rest": Command("waiting for the background job's pieces", self.rest),
        }

    def lodge(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Makes the job."""
        rank = self._rank
        setup = {"own": rank.setup["folder"], **message, "folder": rank.setup["folder"]}
        setup["sharing"] = rank.setup["sharing"]
        try:
            self._lodger = InProcessBackground(setup, rank.device, rank.place, self._look)
        except Exception as error:
            return {"priority": None, "error": describe(error, "its start")["text"]}
        return {"priority": self._lodger.priority, "loss": self._lodger.loss, "error": None}

    def begin(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Lets it train."""
        if self._lodger is not None:
            self._lodger.begin()
        return {}

    def rest(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Lets it rest."""
        if self._lodger is None:
            return {"steps": 0.0, "seconds": 0.0, "began": 0.0, "loss": None, "error": None}
        done = self._lodger.rest()
        return {**done, "began": done["began"] + message.get("clock", 0.0)}

    def _look(self) -> tuple[BackgroundLimits, Operator | None]:
        return BackgroundLimits(*self._board.orders), self._phases.doing

    def _used(self) -> float:
        """CPU seconds of this process but for the lodger's."""
        return time.process_time() - (0.0 if self._lodger is None else self._lodger.lane.cpu_seconds())


def main() -> None:
    """Obeys the launcher until it is told to exit."""
    worker.main(lambda rank: CollocatedRank(rank).commands)


if __name__ == "__main__":
    main()
