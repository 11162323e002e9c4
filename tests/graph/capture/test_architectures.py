"""Architectures that deeppool was not developed with: the list of ``benchmarks/capture``, by name."""

import pytest

from benchmarks.capture.architectures import architectures
from benchmarks.capture.classify import classify
from benchmarks.capture.two_ranks import compare

DATA = "control flow that depends on data"
REFUSED = {
    "EarlyExit": DATA,
    "fasterrcnn_mobilenet_v3_large_fpn": "as detectors do",
    "ibert": DATA,
    "keypointrcnn_resnet50_fpn": "as detectors do",
    "led": DATA,
    "longformer": DATA,
    "prophetnet": "makes samples depend on each other",
    "retinanet_resnet50_fpn": "as detectors do",
    "ssdlite320_mobilenet_v3_large": "as detectors do",
    "switch_transformers": "torch.export cannot export this model",
}
"""What deeppool says of those that it does not capture."""

pytestmark = [pytest.mark.stress, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("architecture", list(architectures()), ids=lambda architecture: architecture.name)
def test_an_architecture_trains_as_by_plain_torch_or_is_refused_in_one_line(architecture):
    if architecture.library in ("timm", "transformers"):
        pytest.importorskip(architecture.library)
    verdict, detail = classify(architecture)
    assert verdict == ("refused" if architecture.name in REFUSED else "captured"), detail
    assert REFUSED.get(architecture.name, "") in detail


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "tolerance"),
    # RAFT computes its correlations in float32.
    [("Siamese", 1e-9), ("FourierMixer", 1e-9), ("SequenceFirstTransformer", 1e-9), ("raft_small", 1e-3)],
)
def test_two_ranks_train_an_architecture_as_one_process_does(name, tolerance):
    assert compare(name) < tolerance
