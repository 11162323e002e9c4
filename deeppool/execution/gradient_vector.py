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
        self._reached = [False] * len(self.parameters)
        """Whether this process has had a gradient of each."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(self._sizes)

    def take(self) -> torch.Tensor:
        """Returns the gradients, 0 where there is none, and clears them."""
        self._reached = [
            reached or parameter.grad is not None
            for reached, parameter in zip(self._reached, self.parameters, strict=True)
        ]
        parts = [torch.zeros_like(x).flatten() if x.grad is None else x.grad.flatten() for x in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return torch.cat(parts)

    def put(self, vector: torch.Tensor) -> None:
        """Sets the gradients, as parts of a vector; those that no process has had stay none, as weights would decay."""
        for parameter, reached, part in zip(self.parameters, self._reached, vector.split(self._sizes), strict=True):
            parameter.grad = part.view_as(parameter) if reached or bool(part.any()) else None
