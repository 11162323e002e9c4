"""Pieces of a step train as the whole does, however the model is cut."""

import itertools

import pytest
import torch
from torch import nn

from deeppool.collocation.captured_step import CapturedStep
from deeppool.device.common import Device, find_device
from deeppool.device.cuda import cuda_problem
from deeppool.graph.capture import CapturedModel, capture
from tests.execution.training_rank import Model, Rule

ON_A_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_problem() is not None, reason=f"needs a CUDA device: {cuda_problem()}"),
)
RULE = Rule("pieces", batch_norm=True, dtype=torch.float64)
STEPS, BATCH = 4, 6


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def device(request: pytest.FixtureRequest) -> Device:
    return find_device(request.param)


def model(device: Device) -> CapturedModel:
    """Two branches, a tied parameter, BatchNorm."""
    torch.manual_seed(0)
    return capture(Model(RULE).double().to(device.torch_device()), (3, 6, 6), input_dtype=torch.float64)


def optimizer_of(captured: CapturedModel) -> torch.optim.Optimizer:
    return torch.optim.SGD(captured.program.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def batches(device: Device) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    place = device.torch_device()
    return [
        (
            torch.randn(BATCH, 3, 6, 6, generator=generator, dtype=torch.float64).to(place),
            torch.randint(10, (BATCH,), generator=generator).to(place),
        )
        for _ in range(STEPS)
    ]


def whole(device: Device) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The oracle: one program, one autograd graph, PyTorch's own loop."""
    captured = model(device)
    optimizer = optimizer_of(captured)
    losses = []
    for data in batches(device):
        loss = captured.program(*data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return losses, captured.source.state_dict()


@pytest.mark.parametrize("seed", range(3))
def test_pieces_train_as_the_whole_does(device: Device, seed: int) -> None:
    captured = model(device)
    count = len(captured.graph.layers)
    generator = torch.Generator().manual_seed(seed)
    chosen = (torch.randperm(count - 1, generator=generator)[: 2 * seed] + 1).tolist()
    cuts = [range(a, b) for a, b in itertools.pairwise([0, *sorted(chosen), count])]
    data = batches(device)
    step = CapturedStep(captured, cuts, data[0], optimizer_of(captured))
    with device.stream("low").current():
        pieces = step.capture(device)
        assert len(pieces) == 2 * len(cuts) + 1
        losses = []
        for batch in data:
            step.feed(batch)
            for piece in pieces:
                piece()
            losses.append(float(step.loss()))
    expected, state = whole(device)
    assert losses == pytest.approx(expected, rel=1e-12)
    for name, value in captured.source.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-10, atol=1e-12)


def test_a_piece_without_anything_to_train_has_no_backward() -> None:
    torch.manual_seed(0)
    captured = capture(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (2, 2))
    optimizer = torch.optim.SGD(captured.program.parameters(), lr=0.1)
    data = torch.randn(3, 2, 2), torch.tensor([0, 1, 0])
    captured.program(*data).backward()
    expected = captured.source.get_parameter("1.weight").grad
    step = CapturedStep(captured, [range(1), range(1, 2)], data, optimizer)
    for work in step.works[:-1]:
        work()
    torch.testing.assert_close(captured.source.get_parameter("1.weight").grad, expected)


def test_warming_up_leaves_no_trace(device: Device) -> None:
    """What a GPU's capture does, done by hand: some steps, then all is as before."""

    class Warming:
        def repeatable(self, *works):
            for _ in range(3):
                for work in works:
                    work()
            return works

    captured = model(device)
    data = batches(device)
    step = CapturedStep(captured, [range(len(captured.graph.layers))], data[0], optimizer_of(captured))
    pieces = step.capture(Warming())
    for batch in data:
        step.feed(batch)
        for piece in pieces:
            piece()
    _, state = whole(device)
    for name, value in captured.source.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-10, atol=1e-12)
