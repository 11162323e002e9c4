"""All gradients of some parameters as one vector."""

from collections.abc import Sequence

import torch

from deeppool.errors import InvalidValueError


class GradientVector:
    """Parameters of one type, whose gradients travel together."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Takes the parameters, whose order is the vector's."""
        types = {parameter.dtype for parameter in parameters}
        if len(types) != 1:
            raise InvalidValueError(f"the parameters of a model have one type, got {sorted(map(str, types))}")
        self.parameters, self.dtype = tuple(parameters), types.pop()
        self._sizes = [parameter.numel() for parameter in parameters]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(self._sizes)

    def take(self) -> torch.Tensor:
        """Returns the gradients, 0 where there is none, and clears them."""
        parts = [torch.zeros_like(x).flatten() if x.grad is None else x.grad.flatten() for x in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return torch.cat(parts)

    def put(self, vector: torch.Tensor) -> None:
        """Sets the gradients, as parts of a vector."""
        for parameter, part in zip(self.parameters, vector.split(self._sizes), strict=True):
            parameter.grad = part.view_as(parameter)
