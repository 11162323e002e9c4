"""Pieces of a step train as the whole does, however the model is cut."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from deeppool.collocation.captured_step import CapturedStep
from deeppool.device.cuda import cuda_problem
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.graph.capture.capture import CapturedModel, capture
from tests.execution.training_rank import Model, Rule

ON_A_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_problem() is not None, reason=f"needs a CUDA device: {cuda_problem()}"),
)
RULE = Rule("pieces", batch_norm=True, dtype=torch.float64)
STEPS, BATCH = 4, 6
Data = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Oracle:
    """A model, some batches, and what PyTorch's own loop makes of them: one program, one autograd graph."""

    device: Device
    captured: CapturedModel
    fresh: dict[str, torch.Tensor]
    batches: list[Data]
    losses: list[float]
    trained: dict[str, torch.Tensor]

    def optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.captured)

    def check(self, step: CapturedStep, pieces: tuple) -> None:
        """Trains by the pieces, from where the model is."""
        losses = []
        for batch in self.batches:
            step.load_batch(batch)
            for piece in pieces:
                piece()
            losses.append(float(step.loss()))
        assert losses == pytest.approx(self.losses, rel=1e-12)
        for name, value in self.captured.source.state_dict().items():
            torch.testing.assert_close(value, self.trained[name], rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def trained(request: pytest.FixtureRequest) -> Oracle:
    """Two branches, a tied parameter, BatchNorm."""
    device = find_device(request.param)
    place = device.torch_device()
    torch.manual_seed(0)
    captured = capture(Model(RULE).double().to(place), (3, 6, 6), input_dtype=torch.float64)
    fresh = {name: value.clone() for name, value in captured.source.state_dict().items()}
    batches = [
        (torch.randn(BATCH, 3, 6, 6, dtype=torch.float64).to(place), torch.randint(10, (BATCH,)).to(place))
        for _ in range(STEPS)
    ]
    optimizer, losses = make_optimizer(captured), []
    for data in batches:
        loss = captured.program(*data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    state = {name: value.clone() for name, value in captured.source.state_dict().items()}
    return Oracle(device, captured, fresh, batches, losses, state)


@pytest.fixture
def oracle(trained: Oracle) -> Oracle:
    """With the model as it was."""
    trained.captured.source.load_state_dict(trained.fresh)
    return trained


def make_optimizer(captured: CapturedModel) -> torch.optim.Optimizer:
    return torch.optim.SGD(captured.program.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_train_as_the_whole_does(oracle: Oracle, seed: int) -> None:
    count = len(oracle.captured.graph.layers)
    generator = torch.Generator().manual_seed(seed)
    edges = (torch.randperm(count - 1, generator=generator)[: 2 * seed] + 1).tolist()
    cuts = [range(first, last) for first, last in itertools.pairwise([0, *sorted(edges), count])]
    step = CapturedStep(oracle.captured, cuts, oracle.batches[0], oracle.optimizer())
    with oracle.device.stream("low").current():
        pieces = step.capture(oracle.device)
        assert len(pieces) == 2 * len(cuts) + 1
        oracle.check(step, pieces)


def test_warming_up_leaves_the_model_unchanged(oracle: Oracle) -> None:
    """What a GPU's capture does, done by hand: some steps, then all is as before."""

    class Warming:
        def repeatable(self, *works):
            for _ in range(3):
                for work in works:
                    work()
            return works

    whole = [range(len(oracle.captured.graph.layers))]
    step = CapturedStep(oracle.captured, whole, oracle.batches[0], oracle.optimizer())
    oracle.check(step, step.capture(Warming()))


def test_a_piece_without_anything_to_train_has_no_backward() -> None:
    torch.manual_seed(0)
    captured = capture(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (2, 2))
    optimizer = torch.optim.SGD(captured.program.parameters(), lr=0.1)
    data = torch.randn(3, 2, 2), torch.tensor([0, 1, 0])
    captured.program(*data).backward()
    expected = captured.source.get_parameter("1.weight").grad
    step = CapturedStep(captured, [range(1), range(1, 2)], data, optimizer)
    for work in step.pieces[:-1]:
        work()
    torch.testing.assert_close(captured.source.get_parameter("1.weight").grad, expected)
