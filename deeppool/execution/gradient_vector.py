"""All gradients of some parameters as one vector.

Behind the gradients stands, for each parameter, the number of them. All ranks receive the same sums of these: a
parameter that no rank has a gradient of has none on any of them, as in one process, where momentum and weight decay
would change it.
"""

from collections.abc import Sequence

import torch

from deeppool.errors import InvalidValueError


class GradientVector:
    """Parameters of one type, whose gradients travel together."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Takes the parameters, whose order is the vector's."""
        types = {parameter.dtype for parameter in parameters}
        if len(types) != 1:
            raise InvalidValueError(
                f"the parameters of a model have one type, got {', '.join(sorted(map(str, types))) or 'no parameters'} "
                "(give all that train the same type, such as model.float())"
            )
        self.parameters, self.dtype = tuple(parameters), types.pop()
        self.sizes = [*(parameter.numel() for parameter in parameters), len(self.parameters)]
        """Elements of each gradient, and of the counts."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(self.sizes)

    def take(self) -> torch.Tensor:
        """Returns the gradients, 0 where there is none, with their counts, and clears them."""
        parts = [torch.zeros_like(x).flatten() if x.grad is None else x.grad.flatten() for x in self.parameters]
        counts = [float(parameter.grad is not None) for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return torch.cat([*parts, torch.tensor(counts, dtype=self.dtype).to(parts[0].device)])

    def put(self, vector: torch.Tensor) -> None:
        """Sets the gradients, as parts of a sum of vectors or of a multiple of it."""
        *parts, counts = vector.split(self.sizes)
        for parameter, part, count in zip(self.parameters, parts, counts.tolist(), strict=True):
            parameter.grad = part.view_as(parameter) if count else None
