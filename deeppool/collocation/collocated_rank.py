"""The process of a rank with a background job in it: the rank's commands, and three more.

``start_background``, once, with what the job trains; ``train_background``: it trains beside the rank's own work;
``rest_background``, answered with the work that it did. A job that cannot be created, or fails, is reported and left
out, and what it held is free again: the rank continues.
"""

import gc
import time
from collections.abc import Mapping
from typing import Any

from deeppool.collocation.background_training import BackgroundTraining
from deeppool.collocation.foreground_memory import ForegroundMemory
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
        self._memory = ForegroundMemory(rank.device, rank.torch_device)
        setup = rank.setup
        self._page = SharedPage(setup["shared_pages"] or setup["folder"], setup["position"])
        self._background: InProcessBackground | None = None
        if rank.foreground_control is not None:
            rank.foreground_control.publishes = False
        rank.core_seconds = self._foreground_cpu_seconds

    @property
    def commands(self) -> Mapping[str, Command]:
        """The additional commands by name."""
        return {
            "start_background": Command("making the background job", self.start_background),
            "train_background": Command("letting the background job train", self.begin),
            "rest_background": Command("waiting for the background job's pieces", self.rest),
        }

    def start_background(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Creates the job, in memory that the rank's iterations so far did not need."""
        setup = self._rank.setup
        job_setup = {**message, "folder": setup["folder"]}
        try:
            # What the rank draws must not depend on the job beside it.
            with self._rank.device.own_random_numbers(), self._memory.held():
                training = BackgroundTraining(job_setup, self._rank.device, self._rank.torch_device, paced=True)
                background = InProcessBackground(training, self._rank.device, self._read_foreground)
        except Exception as error:
            failure = describe_failure(error, "its start")
            # Its model lies in memory of the rank's stream, and its own stream may still use that.
            self._rank.device.synchronize()
        else:
            self._background = background
            # The end of a phase waits for pieces in flight only.
            return {"priority": background.priority, "step": 0.0, **training.progress(message.get("clock", 0.0))}
        gc.collect()  # captured models refer to themselves
        return {"why": failure["text"], "refused": failure["kind"] == "refusal"}

    def begin(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Lets the job train."""
        if self._background is not None:
            self._background.begin()
        return {}

    def rest(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Lets the job rest."""
        if self._background is None:
            return {"why": "could not be started"}
        return self._background.rest(message.get("clock", 0.0), message["until"])

    def _read_foreground(self) -> tuple[BackgroundLimits, Operator | None]:
        return BackgroundLimits(*self._page.limits), self._rank.trainer.running

    def _foreground_cpu_seconds(self) -> float:
        """Returns the CPU seconds of this process without those of the background."""
        return time.process_time() - (0.0 if self._background is None else self._background.cpu_seconds())


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    worker.main(lambda rank: CollocatedRank(rank).commands)


if __name__ == "__main__":
    main()
