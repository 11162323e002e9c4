"""What the model says of DeepPool's workloads, from layer times that its authors measured on an A100.

The folder of JSON files is named by DEEPPOOL_A100_PROFILES: per model, layers in order with ``total_ms`` by
batch. They were measured without mixed precision (and WideResNet at 224 x 224), so these are not the paper's
own times, and nothing here multiplexes a GPU as the paper's runs did.
"""

import json
import math
import os
from pathlib import Path

import pytest

from deeppool.graph.layer import Layer, LayerGraph
from deeppool.planning.share import share
from deeppool.profiling.table import Measurement
from tests.strategies import make_profile

FOLDER = os.environ.get("DEEPPOOL_A100_PROFILES")
pytestmark = pytest.mark.skipif(not FOLDER, reason="DEEPPOOL_A100_PROFILES names no folder of measured layer times")
GLOBAL_BATCHES = {"vgg16": 32, "wide_resnet101_2": 16, "inception_v3": 32}
"""Of figure 9, which figure 10 keeps."""


def parameter_count(layer):
    found = layer["params"] or {}
    if "in_features" in found:
        return (found["in_features"] + 1) * found["out_features"]
    if "in_channels" in found:
        size = found["kernel_size"]
        area = size**2 if isinstance(size, int) else math.prod(size)
        return (found["in_channels"] * area + 1) * found["out_channels"]
    if "planes" in found:
        entering, leaving = found["inplanes"], 4 * found["planes"]
        width = found["planes"] * found["base_width"] // 64
        shortcut = entering * leaving if entering != leaving else 0
        return entering * width + 9 * width**2 + width * leaving + shortcut
    return 0


def read(name):
    """A chain: the branches of Inception come one after another, as the files list them.

    An activation belongs to the layer before it, whose backward pass its time contains.
    """
    document = json.loads(Path(FOLDER, f"{name}.json").read_text())
    groups = []
    for layer in document["layers"]:
        if layer["op"].lower().startswith("relu") and groups:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    sizes = [size for size in document["batch_sizes"] if all(str(size) in x["by_batch"] for g in groups for x in g)]
    layers, measurements = [], []
    for index, group in enumerate(groups):
        times = tuple(sum(max(x["by_batch"][str(size)]["total_ms"], 1e-4) for x in group) / 1e3 for size in sizes)
        inputs = (4 * math.prod(group[0]["input_shape"]),) if index else ()
        sources = (index - 1,) if index else ()
        size = 4 * sum(map(parameter_count, group))
        layers.append(Layer(f"{index}.{group[0]['op']}", ("op",), sources, inputs, size, (), f"{index}"))
        measurements.append(Measurement(f"{index}", times, (0.0,) * len(sizes), (0.0,) * len(sizes)))
    graph = LayerGraph(name, (3, 224, 224), tuple(layers), sum(layer.parameter_bytes for layer in layers))
    return make_profile(graph, measurements, sizes)


MILLIONS = {"vgg16": 138, "wide_resnet101_2": 127, "inception_v3": 21.7}
"""Of parameters: table 1, but for VGG-16 the 138 of its own paper; Inception's convolutions alone, as in its file."""


@pytest.mark.parametrize("name", GLOBAL_BATCHES)
def test_the_files_have_the_models_parameters(name):
    assert read(name).graph.parameter_bytes / 4e6 == pytest.approx(MILLIONS[name], rel=0.03)


@pytest.mark.parametrize("name", GLOBAL_BATCHES)
def test_collocation_beats_data_parallel_on_eight_gpus_by_the_papers_least(name):
    """1.2 to 2.3 times the throughput of data parallelism (section 1), here at no loss of speed-up at all."""
    profile = read(name)
    shared = share(profile, 8, GLOBAL_BATCHES[name], profile)
    match = shared.comparisons()[-1]
    assert match.partition.gpus == 8
    assert match.fuller.throughput >= 1.2 * match.partition.throughput
    assert match.fuller.speedup >= match.partition.speedup


@pytest.mark.parametrize("name", GLOBAL_BATCHES)
def test_no_partition_of_eight_gpus_beats_collocation(name):
    profile = read(name)
    for match in share(profile, 8, GLOBAL_BATCHES[name], profile).comparisons():
        assert match.faster.speedup >= match.partition.speedup * (1 - 1e-9)
        assert match.fuller.throughput >= match.partition.throughput * (1 - 1e-9)
