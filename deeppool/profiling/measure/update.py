"""Measurement of the optimizer's update: SGD with momentum on all parameters, as runs do.

    step  step │ step  step … until enough │ mean of the faster half

The learning rate is 0, so the parameters stay as they are.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from deeppool.device.protocol import Device
from deeppool.profiling.measure.sampling import MAXIMUM_RUNS, MINIMUM_RUNS, minimum_seconds, typical
from deeppool.training.momentum_sgd import momentum_sgd

MOMENTUM = 0.9
WARM_UP = 2
"""Steps before the measured ones; the first one allocates the momentum."""


class UpdateBench:
    """An optimizer of parameters that have gradients, and its measured steps."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        device: Device,
        concurrent: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Creates the optimizer, and its momentum by the first steps.

        Args:
            parameters: those without a gradient are left out.
            device: device of the parameters.
            concurrent: context in which other ranks take a step, too.
        """
        self._parameters = [parameter for parameter in parameters if parameter.grad is not None]
        self._device, self._concurrent = device, concurrent
        named = [(str(number), parameter) for number, parameter in enumerate(self._parameters)]
        self._optimizer = momentum_sgd(named, 0.0, MOMENTUM) if named else None
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> float:
        """Returns the seconds of one step."""
        if self._optimizer is None:
            return 0.0
        self._device.synchronize()
        with self._concurrent():
            before = self._device.stamp()
            self._optimizer.step()
            after = self._device.stamp()
            self._device.synchronize()
        return self._device.seconds(before, after)

    def seconds_per_byte(self) -> float:
        """Returns the typical seconds of a step per byte of parameters."""
        size = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)
        least = minimum_seconds(self._device.kind)
        times: list[float] = []
        while len(times) < MINIMUM_RUNS or (len(times) < MAXIMUM_RUNS and sum(times) < least):
            times.append(self.step())
        return typical(times) / size if size else 0.0
