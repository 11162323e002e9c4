"""One training of a comparison on a virtual clock: gradients are computed, times are those of the injected delays.

What a mode does to accuracy then depends on the delays alone, not on what else the machine does, and takes no longer
than the gradients of all ranks.
"""

from statistics import fmean
from typing import Any

import torch
from numpy.typing import NDArray

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.load_imbalance import Delays, step_times
from deeppool.device.threads import torch_threads
from deeppool.execution.gradient_vector import GradientVector
from deeppool.runs.mode_comparison.record import ModePoint, ModeTraining
from deeppool.runs.mode_comparison.tasks import ComparedTask
from deeppool.simulation.eager_training import simulate_eager_training


class VirtualTraining:
    """The replica of all ranks, which are equal as every rank applies every round."""

    def __init__(self, task: ComparedTask, ranks: int, every: int) -> None:
        """Takes the task, the number of ranks, and the updates from one point to the next."""
        self._task, self._ranks, self._every = task, ranks, every
        self._vector = GradientVector(list(task.model.parameters()))
        self.elements = self._vector.elements
        self._losses: list[float] = []
        self._updates = 0
        self.points: list[ModePoint] = []

    def gradient(self, rank: int, update: int) -> NDArray[Any]:
        """Returns the gradient of a rank's share."""
        loss = self._task.loss(update, rank, self._ranks)
        loss.backward()
        self._losses.append(float(loss.detach()))
        return self._vector.take().numpy()

    def update(self, total: NDArray[Any], seconds: float) -> None:
        """Updates the parameters by the mean over ranks, and measures now and then."""
        self._vector.put(torch.from_numpy(total / self._ranks))
        self._task.optimizer.step()
        if self._task.schedule is not None:
            self._task.schedule.step()
        self._task.optimizer.zero_grad()
        self._updates += 1
        if self._updates % self._every == 0:
            self.point(seconds)

    def point(self, seconds: float) -> None:
        """Measures loss and accuracy; replaces what an earlier point says of the same instant."""
        loss, accuracy = self._task.score()
        batch_loss = fmean(self._losses) if self._losses else self.points[-1].batch_loss
        self.points = [point for point in self.points if point.seconds < seconds]
        self.points.append(ModePoint(seconds, self._updates, batch_loss, loss, accuracy))
        self._losses.clear()


def train_on_virtual_clock(
    task: ComparedTask, rule: FiringRule, delays: Delays, *, updates: int, step: float, every: int
) -> ModeTraining:
    """Trains one task by one rule; its seed is the rule's."""
    training = VirtualTraining(task, rule.ranks, every)
    # A rank's share is a few samples: threads would wait for each other, and on a busy machine for a core.
    with torch_threads(1):
        found = simulate_eager_training(rule, step_times(step, delays), updates, training=training)
        training.point(found.seconds)
    return ModeTraining(rule.mode, rule.seed, found.gradients, tuple(training.points))
