"""Gradients of several parameters as one vector."""

import torch
from torch import nn

from deeppool.execution.gradient_vector import GradientVector


def test_what_no_process_has_a_gradient_of_has_none() -> None:
    """A gradient of zeros would let weights decay; one that was none only in some iterations, or here, is one."""
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    vector = GradientVector(parameters)
    parameters[0].grad = torch.zeros(2)
    assert torch.equal(vector.take(), torch.zeros(6))
    assert torch.equal(vector.take(), torch.zeros(6))
    vector.put(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]))
    assert [None if each.grad is None else each.grad.tolist() for each in parameters] == [[0, 0], None, [0, 1]]
