"""SGD with momentum, as runs of models by name and measurements of the update use it."""

from collections.abc import Sequence
from typing import Any

import torch

from deeppool.device.kinds import kind_of_type


def momentum_sgd(
    parameters: Sequence[tuple[str, torch.nn.Parameter]], learning_rate: float, momentum: float
) -> torch.optim.SGD:
    """Makes the optimizer; on an NVIDIA GPU it updates many parameters in one kernel.

    Args:
        parameters: at least one, with their names.
        learning_rate: learning rate.
        momentum: momentum.
    """
    fused: Any = all(kind_of_type(parameter.device.type).on_gpus for _, parameter in parameters) or None
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum, fused=fused)
