"""The gradients of a transfer in one buffer.

Behind the gradients stands, for each of them, how many ranks have it. One that no rank has stays without a gradient
after the sum, as in one process: momentum and weight decay would otherwise change a parameter that is not used.
"""

from collections.abc import Sequence

import torch
from torch import nn

from deeppool.errors import InvalidValueError


class FlatBatch:
    """Buffer of the gradients of some parameters of one type."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Takes the memory for gradients and counts."""
        self.parameters = tuple(parameters)
        count = len(self.parameters)
        sizes = [parameter.numel() for parameter in self.parameters]
        self.flat = self.parameters[0].new_zeros(sum(sizes) + count)
        *parts, self._counts = self.flat.split([*sizes, count])
        self._views = [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]

    def pack(self) -> None:
        """Moves this rank's gradients into the buffer: the parameters have none until :meth:`unpack`.

        Raises:
            InvalidValueError: a gradient is sparse.
        """
        gradients = [parameter.grad for parameter in self.parameters]
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise InvalidValueError("a gradient is sparse: only dense ones are summed (use sparse=False in embeddings)")
        self._counts.copy_(torch.tensor([float(gradient is not None) for gradient in gradients]))
        for view, gradient in zip(self._views, gradients, strict=True):
            if gradient is None:
                view.zero_()
        present = [(view, each) for view, each in zip(self._views, gradients, strict=True) if each is not None]
        if present:
            views, found = zip(*present, strict=True)
            torch._foreach_copy_(views, found)
        for parameter in self.parameters:
            parameter.grad = None

    def unpack(self, ranks: int) -> None:
        """Gives the parameters the mean over ranks of what the buffer holds the sum of, until :meth:`pack`."""
        counts = self._counts.tolist()
        self.flat.div_(ranks)
        for parameter, view, count in zip(self.parameters, self._views, counts, strict=True):
            parameter.grad = view if count else None
