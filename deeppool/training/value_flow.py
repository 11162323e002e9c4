"""Values that pass between the parts of a model, and their gradients."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import fx

Values = Mapping[fx.Node, torch.Tensor]


class ValueFlow(Protocol):
    """Passes values between the parts of one batch, and their gradients back."""

    def send_forward(self, part: int, outputs: Values) -> None:
        """Sends a part's outputs to the parts that read them; called with none where the part is not computed."""

    def inputs(self, part: int) -> dict[fx.Node, torch.Tensor]:
        """Returns a part's inputs from other parts."""

    def send_backward(self, part: int, gradients: Values) -> None:
        """Sends the gradients of a part's inputs to the parts that produced them, as :meth:`send_forward` does."""

    def gradients(self, part: int) -> dict[fx.Node, torch.Tensor]:
        """Returns the gradients of a part's outputs, summed over their readers."""

    def finish(self) -> None:
        """Waits until everything is sent."""


class LocalFlow:
    """Values between parts that one process computes all of."""

    def __init__(self) -> None:
        """Starts before the first part."""
        self._values: dict[fx.Node, torch.Tensor] = {}
        self._gradients: dict[fx.Node, torch.Tensor] = {}

    def send_forward(self, part: int, outputs: Values) -> None:
        """Keeps the outputs."""
        self._values |= outputs

    def inputs(self, part: int) -> dict[fx.Node, torch.Tensor]:
        """Returns the values of all parts so far."""
        return self._values

    def send_backward(self, part: int, gradients: Values) -> None:
        """Adds the gradients."""
        for node, gradient in gradients.items():
            known = self._gradients.get(node)
            self._gradients[node] = gradient if known is None else known + gradient

    def gradients(self, part: int) -> dict[fx.Node, torch.Tensor]:
        """Returns the gradients of all later parts' inputs."""
        return self._gradients

    def finish(self) -> None:
        """Does nothing."""
