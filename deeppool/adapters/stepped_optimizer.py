"""An optimizer whose step is the step of a scheduled training."""

from collections.abc import Callable
from typing import Any

import torch

from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining


class SteppedOptimizer:
    """Stands for an optimizer in a library's loop; all but ``step`` is the optimizer's own."""

    def __init__(self, optimizer: torch.optim.Optimizer, training: ScheduledTraining) -> None:
        """Takes the optimizer that the training updates with."""
        self.replaced, self._training = optimizer, training

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluates the closure, and makes an update, whose end may be left for the next forward."""
        result = None if closure is None else closure()
        self._training.step()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replaced, name)
