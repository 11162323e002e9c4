"""Updates of some parameters at a time by any optimizer, with the settings of the moment at which they were due."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from deeppool.errors import InvalidValueError


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
        self._settings: list[dict[str, Any]] = []

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that train."""
        return [each for group in self._optimizer.param_groups for each in group["params"] if each.requires_grad]

    def keep_settings(self) -> None:
        """Keeps learning rates and the like: a schedule may change them before the update is complete."""
        self._settings = [
            {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
            for group in self._optimizer.param_groups
        ]

    def update(self, chosen: Sequence[nn.Parameter]) -> None:
        """Updates some parameters by the kept settings, and clears their gradients."""
        # An optimizer leaves out what has no gradient.
        kept = [(each, each.grad) for each in set(self.parameters).difference(chosen) if each.grad is not None]
        for parameter, _ in kept:
            parameter.grad = None
        with self._kept_settings():
            self._optimizer.step()
        for parameter in chosen:
            parameter.grad = None
        for parameter, gradient in kept:
            parameter.grad = gradient

    @contextmanager
    def _kept_settings(self) -> Iterator[None]:
        """Gives the groups the kept settings for a while."""
        groups = self._optimizer.param_groups
        current = [dict(group) for group in groups]
        # A group that was added since has no update that is due.
        for group, kept in zip(groups, self._settings, strict=False):
            group.update({key: value for key, value in kept.items() if key != "params"})
        try:
            yield
        finally:
            for group, now in zip(groups, current, strict=True):
                group.update(now)
