"""The process of a rank with a background job in it: the rank's commands, and three more.

``start_background``, once, with what the job trains, answered with its first loss; ``begin``: it trains beside the
rank's own work; ``rest``, answered with the work that it did. A job that cannot be created, or fails, is reported and
left out: the rank continues.
"""

import time
from collections.abc import Mapping
from typing import Any

from deeppool.collocation.foreground_phases import ForegroundPhases
from deeppool.collocation.in_process_background import InProcessBackground
from deeppool.execution import worker
from deeppool.execution.failure_report import describe_failure
from deeppool.execution.rank import Command, Rank
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import BackgroundLimits, Operator


class CollocatedRank:
    """Adds a background job to the process of one rank."""

    def __init__(self, rank: Rank) -> None:
        """Sets up the rank to share its device; the job comes with :meth:`start_background`."""
        self._rank = rank
        self._phases = ForegroundPhases(rank.device)
        setup = rank.setup
        self._page = SharedPage(setup["shared_pages"] or setup["folder"], setup["position"])
        self._background: InProcessBackground | None = None
        if rank.foreground_control is not None:
            rank.foreground_control.use_device_times(self._phases)
        if rank.device.kind == "cuda":
            # CPU time does not measure work on a GPU, so stamps are made without a background, too.
            rank.watcher, rank.device_seconds = self._phases, self._phases.busy
        else:
            rank.device_seconds = self._foreground_cpu_seconds

    @property
    def commands(self) -> Mapping[str, Command]:
        """The additional commands by name."""
        return {
            "start_background": Command("making the background job", self.start_background),
            "begin": Command("letting the background job train", self.begin),
            "rest": Command("waiting for the background job's pieces", self.rest),
        }

    def start_background(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Creates the job."""
        setup = self._rank.setup
        job_setup = {"saved_job": setup["folder"], **message, "folder": setup["folder"], "sharing": setup["sharing"]}
        try:
            self._background = InProcessBackground(
                job_setup, self._rank.device, self._rank.torch_device, self._read_foreground
            )
        except Exception as error:
            return {"priority": None, "error": describe_failure(error, "its start")["text"]}
        return {"priority": self._background.priority, "loss": self._background.loss, "error": None}

    def begin(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Lets the job train."""
        if self._background is not None:
            self._background.begin()
        return {}

    def rest(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Lets the job rest."""
        if self._background is None:
            return {"steps": 0.0, "seconds": 0.0, "began": 0.0, "loss": None, "error": None}
        done = self._background.rest()
        return {**done, "began": done["began"] + message.get("clock", 0.0)}

    def _read_foreground(self) -> tuple[BackgroundLimits, Operator | None]:
        return BackgroundLimits(*self._page.limits), self._phases.doing

    def _foreground_cpu_seconds(self) -> float:
        """Returns the CPU seconds of this process without those of the background."""
        return time.process_time() - (0.0 if self._background is None else self._background.launcher.cpu_seconds())


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    worker.main(lambda rank: CollocatedRank(rank).commands)


if __name__ == "__main__":
    main()
