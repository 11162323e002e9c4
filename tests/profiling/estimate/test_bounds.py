"""No estimate is below what FLOPs and memory bandwidth allow, as PyTorch counts FLOPs and the model its parameters."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.capture.architectures import architectures
from benchmarks.capture.comparison import capture as capture_architecture
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.fake_tensors import FakeTensorRun, ShapesMode
from deeppool.profiling.estimate.estimate import estimate
from tests.graph.capture.test_architectures import REFUSED

BATCH, PEAK, BANDWIDTH = 4, 156e12, 1.555e12
"""Of an A100 (40 GB), in TF32, as in its data sheet."""
NOT_ESTIMATED = {*REFUSED, "FourierOperator"}
"""Of products of complex numbers no data sheet gives a rate."""


def bounds(captured):
    """Returns the least seconds of both passes by FLOPs, and by reads of parameters and writes of their gradients."""
    mode = ShapesMode()
    run = FakeTensorRun(captured.program, mode)
    with mode, FlopCounterMode(display=False) as counter:
        data = [
            torch.zeros([BATCH, *map(int, node.meta["val"].shape[1:])], dtype=node.meta["val"].dtype)
            for node in captured.program.graph.nodes
            if node.op == "placeholder"
        ]
        run.run(*data).backward()
    # Of an embedding only some rows are read.
    read = [x for x in run.attributes.values() if x.grad is not None and x.dim() != 2]
    return counter.get_total_flops() / PEAK, 2 * sum(x.numel() * x.element_size() for x in read) / BANDWIDTH


@pytest.mark.stress
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "architecture",
    [x for x in architectures() if x.name not in NOT_ESTIMATED],
    ids=lambda architecture: architecture.name,
)
def test_no_architecture_is_estimated_below_its_bounds(architecture):
    if architecture.library in ("timm", "transformers"):
        pytest.importorskip(architecture.library)
    captured = capture_architecture(architecture.build(), architecture, torch.float32)
    found = estimate(captured, gpu="a100-40", batch_sizes=[BATCH]).iteration_time(BATCH)
    assert found >= max(bounds(captured))


@pytest.mark.slow
def test_an_lstm_is_not_estimated_below_its_flops():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.LSTM(512, 1024, 2, batch_first=True), nn.Linear(1024, 4)

        def forward(self, x):
            return self.head(self.layers(x)[0][:, -1])

    steps, batch = 32, 256
    found = estimate(capture(Recurrent(), (steps, 512)), gpu="a100-40", batch_sizes=[batch]).iteration_time(batch)
    # Per step and layer four gates of the input and of the last state, and the backward twice those; but the data
    # wants no gradient.
    products = [512, 1024, 1024, 1024]
    flops = 2 * batch * steps * 4 * 1024 * (3 * sum(products) - 512)
    assert found >= flops / PEAK
    assert found < 20 * flops / PEAK


def test_operators_of_which_nothing_is_known_are_named():
    @torch.library.custom_op("bounds_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    double.register_autograd(lambda _, gradient: gradient * 2)

    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(double(x))

    method = estimate(capture(Doubled(), (8,)), gpu="a100-40", batch_sizes=[1]).method
    assert "counted by their bytes alone, so perhaps too short: bounds_test::double" in method
