"""When the modules of a model compute, and when each gradient is ready: measured by hooks.

A part is a module with trainable parameters of its own. It lasts until the next one begins, so that the parts of a
forward add up to all of it; the backward of a part ends when the last of its gradients is ready. The loss belongs to
the backward of the last part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from deeppool.device.protocol import Device
from deeppool.execution.span_clock import SpanClock

Interval = tuple[float, float]
"""Start and end on the clock of ``time.perf_counter``."""


@dataclass(slots=True)
class Moments:
    """Marks of a :class:`SpanClock` in a forward, and in its backward."""

    began: Any
    ended: Any = None
    used: dict[nn.Module, Any] = field(default_factory=dict)
    """First use of each module, in their order."""
    ready: dict[torch.Tensor, Any] = field(default_factory=dict)
    """When the gradient of each parameter was ready."""


class IterationTimes:
    """Moments of the forwards and backwards of a model; forwards without gradients do not count."""

    def __init__(self, model: nn.Module, device: Device) -> None:
        """Adds hooks to the model."""
        self._model, self._device, self._clock = model, device, SpanClock(device)
        self.modules = [
            module
            for module in model.modules()
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        ]
        """Parts, in the order of the model's definition."""
        self.last = Moments(None)
        """Moments of the last forward and its backward."""
        self._before: list[RemovableHandle] = []
        self.come_first()
        self._hooks = [
            model.register_forward_hook(self._end_forward),
            *(
                parameter.register_post_accumulate_grad_hook(self._gradient_ready)
                for parameter in model.parameters()
                if parameter.requires_grad
            ),
        ]

    def come_first(self) -> None:
        """Moves its hooks before the other ones that modules have before their forwards: these count as theirs."""
        for hook in self._before:
            hook.remove()
        self._before = [
            *(module.register_forward_pre_hook(self._begin_part, prepend=True) for module in self.modules),
            self._model.register_forward_pre_hook(self._begin_forward, prepend=True),
        ]

    def order(self) -> list[int]:
        """Returns the positions of the parts in the order of the last forward; those that it did not call are first.

        The parameters of a module that no forward calls are read by others, so they may be needed from the start.
        """
        used = {module: place for place, module in enumerate(self.last.used, start=1)}
        return sorted(range(len(self.modules)), key=lambda index: used.get(self.modules[index], 0))

    def forwards(self, moments: Moments, parts: Sequence[nn.Module]) -> list[Interval]:
        """Returns when each part ran in a forward; waits until the device has computed it."""
        self._device.synchronize_stream()
        found, end = [], self._clock.seconds(moments.ended)
        for part in reversed(parts):
            # One that was not called takes no time, and neither does one that was called in another order.
            start = min(end, self._clock.seconds(moments.used.get(part, moments.began)))
            found.append((start, end))
            end = start
        return found[::-1]

    def backwards(self, moments: Moments, owned: Sequence[Sequence[nn.Parameter]]) -> list[Interval]:
        """Returns when each part ran in a backward; waits until the device has computed it.

        Args:
            moments: of a forward and its backward.
            owned: parameters of each part, in the order of the forward; tied ones with the first part.
        """
        self._device.synchronize_stream()
        found, now = [], self._clock.seconds(moments.ended)
        for parameters in reversed(owned):
            marks = [moments.ready[parameter] for parameter in parameters if parameter in moments.ready]
            end = max([now, *map(self._clock.seconds, marks)])
            found.append((now, end))
            now = end
        return found[::-1]

    def close(self) -> None:
        """Removes the hooks."""
        for hook in (*self._before, *self._hooks):
            hook.remove()

    def __deepcopy__(self, memo: object) -> "IterationTimes":
        # Hooks of a copy of the model call it: what that computes is none of the training's.
        other = object.__new__(IterationTimes)
        other._clock, other.last = self._clock, Moments(None)
        return other

    def _begin_forward(self, model: nn.Module, inputs: object) -> None:
        if torch.is_grad_enabled():
            self.last = Moments(self._clock.now())

    def _begin_part(self, module: nn.Module, inputs: object) -> None:
        if torch.is_grad_enabled() and module not in self.last.used:
            self.last.used[module] = self._clock.now()

    def _end_forward(self, model: nn.Module, inputs: object, outputs: object) -> None:
        if torch.is_grad_enabled():
            self.last.ended = self._clock.now()

    def _gradient_ready(self, parameter: torch.Tensor) -> None:
        self.last.ready[parameter] = self._clock.now()
