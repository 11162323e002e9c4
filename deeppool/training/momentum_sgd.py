"""SGD with momentum, as runs of models by name and measurements of the update use it."""

from collections.abc import Sequence
from typing import Any

import torch


def momentum_sgd(
    parameters: Sequence[tuple[str, torch.nn.Parameter]], learning_rate: float, momentum: float
) -> torch.optim.SGD:
    """Makes the optimizer; on an NVIDIA GPU it updates many parameters in one kernel.

    Args:
        parameters: at least one, with their names.
        learning_rate: learning rate.
        momentum: momentum.
    """
    fused: Any = all(parameter.is_cuda for _, parameter in parameters) or None
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum, fused=fused)
