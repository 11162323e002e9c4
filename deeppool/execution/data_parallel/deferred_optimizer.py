"""Updates of some parameters at a time by any optimizer, with the settings of the moment at which they were due."""

from collections.abc import Sequence

import torch
from torch import nn

from deeppool.errors import InvalidValueError
from deeppool.training.group_state import StepsOfSome, Values, changed_since, group_values, set_group_values


class DeferredOptimizer:
    """An optimizer whose update of one step may be made in parts, and later."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the optimizer.

        Raises:
            InvalidValueError: it evaluates the loss several times in a step.
        """
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidValueError("LBFGS evaluates all gradients several times in a step (take another optimizer)")
        self._optimizer = optimizer
        self._steps = StepsOfSome(optimizer)
        self._settings: Values = []
        self.clears = True
        """Whether an update clears the gradients. Else the caller does, when the update is complete."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that train."""
        return [each for group in self._optimizer.param_groups for each in group["params"] if each.requires_grad]

    def keep_settings(self) -> None:
        """Keeps learning rates and the like: a schedule may change them before the update is complete."""
        self._settings = group_values(self._optimizer)
        self._steps.begin()

    def update(self, chosen: Sequence[nn.Parameter]) -> None:
        """Updates some parameters by the kept settings.

        Raises:
            InvalidValueError: the optimizer needs the gradients of all parameters in one step.
        """
        current = group_values(self._optimizer)
        try:
            set_group_values(self._optimizer, self._settings)
            counts = self._steps.step(chosen)
            current = [{key: value for key, value in group.items() if key not in counts} for group in current]
        finally:
            set_group_values(self._optimizer, changed_since(self._settings, current))
        for parameter in chosen if self.clears else ():
            parameter.grad = None
