"""Process of a rank that :func:`compare_modes` starts; rank 0 also answers ``point`` while it trains."""

import time
from copy import deepcopy
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import torch.distributed as dist

from deeppool.execution.comparison.ways import Way, Ways
from deeppool.execution.eager_replica import EagerReplica
from deeppool.execution.eager_sgd import EagerSGD
from deeppool.execution.joined_rank import JoinedRank
from deeppool.execution.load_imbalance import load_delay
from deeppool.execution.worker import serve
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.runs.mode_comparison.record import ModePoint
from deeppool.runs.mode_comparison.tasks import ComparedTask, make_task


class RankTraining:
    """One training on one rank."""

    def __init__(self, command: Message, rank: JoinedRank, commands: CommandChannel) -> None:
        """Makes the task."""
        self._rank, self._ranks, self._commands = rank.rank, rank.ranks, commands
        self._updates: int = command["rounds"]
        self._step, self._every = command["step"], command["every"]
        self._task: ComparedTask = make_task(command["task"], command["seed"], command["sizes"])
        self._eager = EagerSGD(mode=command["mode"], seed=command["seed"])
        self._folder = rank.folder
        self._points: list[tuple[ModePoint, Any]] = []
        """Points of rank 0, with the parameters at each."""

    def run(self) -> dict[str, Any]:
        """Trains; returns the gradients of this rank, and rank 0's points."""
        with self._eager.wrap(self._task.model, self._task.optimizer, schedule=self._task.schedule) as replica:
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
            seconds, updates = time.perf_counter() - began, replica.updates
        if self._rank == 0:
            # The parameters hold what was drained after that instant, too.
            self._note(seconds, updates, losses or [self._points[-1][0].batch_loss])
        return {"gradients": replica.gradients, "points": [asdict(self._scored(*each)) for each in self._points]}

    def _is_point(self, replica: EagerReplica) -> bool:
        last = self._points[-1][0].updates if self._points else 0
        return bool(self._rank == 0 and self._updates > replica.updates >= last + self._every)

    def _note(self, seconds: float, updates: int, losses: list[float]) -> None:
        point = ModePoint(seconds, updates, fmean(losses))
        self._points.append((point, deepcopy(self._task.model.state_dict())))
        share = min(1.0, updates / self._updates)
        self._commands.answer("point", share=share, seconds=seconds, updates=updates, batch_loss=point.batch_loss)
        losses.clear()

    def _scored(self, point: ModePoint, parameters: Any) -> ModePoint:
        """Adds loss and accuracy, which are computed after the training so that they cost it no time."""
        self._task.model.load_state_dict(parameters)
        loss, accuracy = self._task.score()
        return replace(point, loss=loss, accuracy=accuracy)


class ModeOnRank(Way):
    """One mode, as a way of training; each training has replicas of its own."""

    def __init__(self, mode: str, rank: JoinedRank) -> None:
        """Takes the rank."""
        self._mode, self._rank = mode, rank

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains ``message["rounds"]`` updates of a new replica."""
        # Ranks outnumber cores, and which of them is late changes: each runs where there is room.
        with self._rank.device.unbound():
            return RankTraining(message | {"mode": self._mode}, self._rank, commands).run()


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(JoinedRank, lambda rank: Ways(lambda message: (ModeOnRank(message["way"], rank), {})).commands)


if __name__ == "__main__":
    main()
