"""VGG-16 on an A100 as the authors of DeepPool profiled it, read from a folder of their profiles.

``DEEPPOOL_A100_PROFILES`` names the folder with ``vgg16.json`` (times from github.com/DeepPoolML/DeepPool, MIT);
a test that needs it is skipped where it is not set.
"""

import json
import math
import os
from itertools import pairwise
from pathlib import Path

from deeppool.graph.layer import Layer, LayerGraph
from deeppool.profiling.table import Measurement, Profile

FOLDER = os.environ.get("DEEPPOOL_A100_PROFILES")
FLOAT = 4


def vgg16() -> Profile:
    """Each convolution and linear with the ReLU after it: the files book the backward of the pair on the ReLU."""
    document = json.loads(Path(str(FOLDER), "vgg16.json").read_text(encoding="utf-8"))
    rows = document["layers"]
    groups = [[row] for row in rows if not row["op"].startswith("ReLU")]
    for previous, row in pairwise(rows):
        if row["op"].startswith("ReLU"):
            next(group for group in groups if group[0] is previous).append(row)
    layers, measurements = [], []
    for index, group in enumerate(groups):
        signature = f"{index}:{group[0]['op']}"
        layers.append(
            Layer(
                name=f"{group[0]['op']}{index}",
                operators=tuple(row["op"] for row in group),
                predecessors=(index - 1,) if index else (),
                input_bytes=(FLOAT * math.prod(group[0]["input_shape"]),) if index else (),
                parameter_bytes=FLOAT * _parameters(group[0]),
                parameters=(),
                signature=signature,
            )
        )
        times = [sum(row["by_batch"][str(size)]["total_ms"] for row in group) for size in document["batch_sizes"]]
        zeros = (0.0,) * len(times)
        measurements.append(Measurement(signature, tuple(time / 1e3 for time in times), zeros, zeros))
    return Profile(
        graph=LayerGraph("VGG-16", (3, 224, 224), tuple(layers), sum(layer.parameter_bytes for layer in layers)),
        batch_sizes=tuple(document["batch_sizes"]),
        measurements=tuple(measurements),
        device="cuda",
        device_name="NVIDIA A100",
        precision="fp32",
        threads=1,
        provenance="measured",
        method="CUDA graphs, by the authors of DeepPool",
        date="2021-10-01",
        versions={},
    )


def _parameters(row: dict) -> int:
    params = row["params"]
    if row["op"] == "linear":
        return (params["in_features"] + 1) * params["out_features"]
    if row["op"] == "conv2d":
        return (params["in_channels"] * params["kernel_size"] ** 2 + 1) * params["out_channels"]
    return 0
