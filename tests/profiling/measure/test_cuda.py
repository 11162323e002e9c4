"""The CUDA path: layers stamped inside a graph, on a real GPU. Skipped where there is none."""

import pytest
import torch
from torch import nn

from deeppool.device.find import find_device
from deeppool.graph.capture.capture import capture
from deeppool.profiling.measure.profile import profile

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model():
    """Products so large that what a stamp costs the host does not count."""
    return capture(nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU()))), (4096,))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("graphs", [True, False])
def test_layers_add_up_to_the_iteration_within_the_bound(model, precision, graphs):
    made = profile(model, device="cuda", batch_sizes=(4096, 8192), precision=precision, graphs=graphs)
    assert (made.device, made.graphs, made.precision) == ("cuda", graphs, precision)
    assert made.caveats() == ()


def test_graphs_are_the_default_and_no_slower(model):
    with_graphs = profile(model, device="cuda", batch_sizes=(1,))
    assert with_graphs.graphs
    eager = profile(model, device="cuda", batch_sizes=(1,), graphs=False)
    assert with_graphs.checks[0].iteration <= eager.checks[0].iteration


def test_memory_of_the_iteration_and_its_layers_is_counted(model):
    made = profile(model, device="cuda", batch_sizes=(512, 1024))
    parameters = model.graph.parameter_bytes
    for check in made.checks:
        # Weights and gradients are there at the peak, and no GPU is filled by this.
        assert 2 * parameters < check.peak_memory < 8 * parameters
    for measurement in made.measurements:
        assert measurement.peak_bytes[1] >= measurement.peak_bytes[0] > 0


def test_tf32_is_restored(model):
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    with find_device("cuda").arithmetic("tf32"):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    with find_device("cuda").arithmetic("fp32"):
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision) == before
