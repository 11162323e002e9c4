"""The process of a background job: trains or rests, as it is told.

Commands: ``setup`` (once), ``train``, which goes on until the next command or for as many steps as it says,
``rest``, ``exit``. Answers: ``ready`` with the priority that the operating system granted; after ``train`` the
log of its steps, when the last step is done, or the next command has come and the step under way is done;
``resting`` after ``rest``.
"""

import math
import sys
import time

import torch

from deeppool.child import Commands
from deeppool.device.cpu import lower_priority, pin_to_core
from deeppool.errors import DeeppoolError
from deeppool.graph.capture import capture
from deeppool.graph.synthetic import SyntheticTask
from deeppool.job import Job


class Background:
    """One background job in this process."""

    def __init__(self, job: Job) -> None:
        """Builds the model and its data, and takes one step to warm up."""
        torch.set_num_threads(1)
        # The captured program computes the loss that fits the model, and knows how many tokens and classes there are.
        captured = capture(job.model, job.input_shape or None, seed=job.seed)
        self.program = captured.program
        self.task = SyntheticTask(captured, job.batch, job.seed)
        self.optimizer = torch.optim.SGD(self.program.parameters(), lr=job.learning_rate, momentum=job.momentum)
        self.batch = job.batch
        self.steps = 0
        self.step()

    def step(self) -> float:
        """One forward, backward and update."""
        loss = self.program(*self.task.shard(self.steps, 0, self.batch))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return float(loss.detach())


def train(background: Background, commands: Commands, steps: float, ahead: float) -> None:
    """Steps until the next command, but so many at most; then tells when each step ended, its CPU time and its loss.

    ``ahead`` is what the launcher's clock shows more than this machine's.
    """
    log = [(time.perf_counter() + ahead, time.process_time(), 0.0)]
    while not commands.pending() and len(log) <= steps:
        loss = background.step()
        log.append((time.perf_counter() + ahead, time.process_time(), loss))
    commands.answer("trained", log=log)


def main() -> None:
    """Obeys the launcher until it is told to exit."""
    commands = Commands()
    setup = commands.next()
    if setup["core"] is not None:
        pin_to_core(setup["core"])
    try:
        background = Background(Job(**{**setup["job"], "input_shape": tuple(setup["job"]["input_shape"])}))
    except DeeppoolError as error:
        sys.exit(str(error))
    # Only now: a job that starts at the lowest priority beside a busy core may never be ready.
    commands.answer("ready", priority=lower_priority(setup["policy"]))
    while (message := commands.next())["command"] != "exit":
        if message["command"] == "train":
            train(background, commands, message.get("steps", math.inf), message.get("clock", 0.0))
        else:
            commands.answer("resting")


if __name__ == "__main__":
    main()
