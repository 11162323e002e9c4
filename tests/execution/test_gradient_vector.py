"""Gradients of several parameters as one vector."""

import torch
from torch import nn

from deeppool.execution.gradient_vector import GradientVector

REACHED = ([(0, 1), (0,), (0, 1)], [(0,), (0,), (0, 2)])
"""By rank and update: the parameters with gradients."""


def test_ranks_stay_equal_where_only_some_have_a_gradient() -> None:
    """A parameter that no rank has reached in an update keeps its value, as in one process, whatever its momentum."""

    def parameters_and_optimizer() -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        made = [nn.Parameter(torch.ones(2)) for _ in range(4)]
        return made, torch.optim.SGD(made, lr=0.1, momentum=0.9, weight_decay=0.1)

    alone, optimizer = parameters_and_optimizer()
    ranks = [parameters_and_optimizer() for _ in REACHED]
    vectors = [GradientVector(parameters) for parameters, _ in ranks]
    for update in range(3):
        for (parameters, _), reached in zip(ranks, REACHED, strict=True):
            for position in reached[update]:
                (parameters[position] * (position + 1)).sum().backward()
                (alone[position] * (position + 1) / len(ranks)).sum().backward()
        total = sum(vector.take() for vector in vectors)
        for vector, (_, each) in zip(vectors, ranks, strict=True):
            vector.put(total / len(ranks))
            each.step()
            each.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        for parameters, _ in ranks:
            torch.testing.assert_close(parameters, alone)


def test_a_gradient_of_zeros_is_one() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    vector = GradientVector(parameters)
    parameters[0].grad = torch.zeros(2)
    taken = vector.take()
    assert (taken.tolist(), vector.elements) == ([0.0] * 6 + [1.0, 0.0, 0.0], 9)
    vector.put(taken + torch.tensor([0.0] * 5 + [1.0, 0.0, 0.0, 1.0]))
    assert [None if each.grad is None else each.grad.tolist() for each in parameters] == [[0, 0], None, [0, 1]]
