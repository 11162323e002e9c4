"""Process of a rank that :func:`compare_modes` starts.

Commands: ``setup`` (once), ``train``, ``exit``. Answers: ``ready``, ``point`` of rank 0, and ``done`` with all points.
"""

import os
import sys
import time
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from deeppool.collectives.perform.process_group import init_process_group
from deeppool.device.find import find_device
from deeppool.errors import DeeppoolError
from deeppool.execution.eager_replica import EagerReplica
from deeppool.execution.eager_sgd import EagerSGD
from deeppool.execution.load_imbalance import load_delay
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.runs.mode_comparison.record import ModePoint
from deeppool.runs.mode_comparison.tasks import ComparedTask, make_task


class RankTraining:
    """One training on one rank."""

    def __init__(self, command: Message, rank: int, ranks: int, commands: CommandChannel) -> None:
        """Makes the task."""
        self._rank, self._ranks, self._commands = rank, ranks, commands
        self._updates, self._step, self._every = command["updates"], command["step"], command["every"]
        self._task: ComparedTask = make_task(command["task"], command["seed"], command["sizes"])
        self._eager = EagerSGD(mode=command["mode"], seed=command["seed"])
        self._folder = Path(command["folder"])
        self._points: list[tuple[ModePoint, Any]] = []
        """Points of rank 0, with the parameters at each."""

    def run(self) -> dict[str, Any]:
        """Trains; returns the gradients of this rank, and rank 0's points."""
        with self._eager.wrap(self._task.model, self._task.optimizer) as replica:
            delay = load_delay(self._folder, self._rank, lambda: replica.updates)
            dist.barrier()
            began, losses = time.perf_counter(), []
            while replica.updates < self._updates:
                started = time.perf_counter()
                loss = self._task.loss(replica.updates, self._rank, self._ranks)
                loss.backward()
                time.sleep(max(0.0, self._step - (time.perf_counter() - started)))
                delay()
                replica.step()
                losses.append(float(loss.detach()))
                if self._is_point(replica):
                    self._note(time.perf_counter() - began, replica.updates, losses)
            seconds = time.perf_counter() - began
        if self._rank == 0:
            # What is drained after the last update is part of the training.
            self._note(seconds, replica.updates, losses or [self._points[-1][0].batch_loss])
        return {"gradients": replica.gradients, "points": [asdict(self._scored(*each)) for each in self._points]}

    def _is_point(self, replica: EagerReplica) -> bool:
        last = self._points[-1][0].updates if self._points else 0
        return self._rank == 0 and self._updates > replica.updates >= last + self._every

    def _note(self, seconds: float, updates: int, losses: list[float]) -> None:
        point = ModePoint(seconds, updates, fmean(losses))
        self._points.append((point, deepcopy(self._task.model.state_dict())))
        self._commands.answer("point", seconds=seconds, updates=updates, batch_loss=point.batch_loss)
        losses.clear()

    def _scored(self, point: ModePoint, parameters: Any) -> ModePoint:
        """Adds loss and accuracy, which are computed after the training so that they cost it no time."""
        self._task.model.load_state_dict(parameters)
        loss, accuracy = self._task.score()
        return replace(point, loss=loss, accuracy=accuracy)


def main() -> None:
    """Serves one comparison."""
    commands = CommandChannel()
    heartbeat = Heartbeat(commands)
    try:
        setup = commands.next()
        rank, ranks = setup["rank"], setup["ranks"]
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        heartbeat.enter("joining the other ranks", waits=True)
        init_process_group(find_device("cpu"), init_method=setup["rendezvous"], rank=rank, world_size=ranks)
        commands.answer("ready")
        while (command := commands.next())["command"] == "train":
            heartbeat.enter("training")
            commands.answer("done", **RankTraining(command, rank, ranks, commands).run())
            heartbeat.enter("waiting", waits=True)
        dist.destroy_process_group()
    except DeeppoolError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
