"""DeepPool's A100 layer times, each beside the kernels that were timed.

Reads the files that ``benchmarks/planner/a100_profiles.py`` describes, and ``wide_resnet101_2_conv_level.json``, the
convolutions of that model one by one. Every row becomes the PyTorch modules that it stands for, and these run on fake
tensors as any captured layer does. What the files book oddly:

- VGG-16: the backward of a convolution or linear layer is on the in-place ReLU after it, so the two are one layer
  here. The last linear layer has a forward only.
- Backwards add to gradients that are there already: the backward of VGG-16's first linear layer takes as long as
  five passes over its weights (for the data, for the weights, and three to add). ``accumulate`` adds the three.
- The input of VGG-16 wants no gradient; the inputs of the other two files' first layers do.
- The operator-level file has the sum of forward and backward only.
- Products use TF32 too, as PyTorch's default was in 2021.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deeppool.device.kernel import Kernel
from deeppool.errors import DocumentError
from deeppool.graph.models.torchvision_operators import define_missing_operators
from deeppool.profiling.estimate.layer_work import LayerWork, trace

MODELS = {
    "VGG-16": "vgg16",
    "WideResNet-101-2": "wide_resnet101_2_conv_level",
    "Inception-v3": "inception_v3",
}
BLOCKS = "wide_resnet101_2"
"""Bottleneck blocks whole, with normalisations, activations and sums: never fitted on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured seconds of a layer's forward, backward, or both."""

    model: str
    layer: str
    """Operator and shapes of its first row; what is equal here computes the same, but for the ReLU of VGG-16's."""
    row: int
    batch: int
    part: Literal["forward", "backward", "both"]
    seconds: float
    kernels: tuple[Kernel, ...]


def read_layers(folder: Path, model: str, batches: Collection[int] | None = None) -> list[Sample]:
    """The samples of one of MODELS, or of BLOCKS, in the file's order.

    Args:
        folder: with the files.
        model: its name.
        batches: only these; None: all in the file.

    Raises:
        DocumentError: a file is missing, or has a layer that is not known.
    """
    samples = []
    known: dict[tuple[str, int], LayerWork] = {}
    for index, entries in _groups(_document(folder, {**MODELS, BLOCKS: BLOCKS}[model])["layers"]):
        if model == BLOCKS and entries[0]["op"] != "ResnetBottleneck":
            continue
        name = f"{entries[0]['op']} {dict(sorted(entries[0]['params'].items()))} {entries[0]['input_shape']}"
        for batch in sorted(map(int, entries[0]["by_batch"])):
            if batches is not None and batch not in batches:
                continue
            if (name, batch) not in known:
                known[name, batch] = accumulate(work_of(entries, batch, not (model == "VGG-16" and index == 0)))
            cells = [entry["by_batch"][str(batch)] for entry in entries]
            samples += _samples(Sample(model, name, index, batch, "both", 0.0, ()), cells, known[name, batch])
    return samples


def _samples(sample: Sample, cells: list[dict[str, float]], work: LayerWork) -> list[Sample]:
    """Forward and backward beside both, where the file has them apart."""
    total = sum(cell["total_ms"] for cell in cells) / 1e3
    both = replace(sample, seconds=total, kernels=work.forward + work.backward)
    if "forward_ms" not in cells[0]:
        return [both]
    seconds = sum(cell["forward_ms"] for cell in cells) / 1e3
    forward = replace(sample, part="forward", seconds=seconds, kernels=work.forward)
    if sample.layer.startswith("linear") and len(cells) == 1:
        return [forward]
    return [forward, replace(sample, part="backward", seconds=total - seconds, kernels=work.backward), both]


def _document(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path}: {error} (--profiles names the folder of the A100 files)") from error
    return document


def _groups(entries: list[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """What is one layer: a ReLU goes with the layer before it, a flatten moves nothing."""
    for index, entry in enumerate(entries):
        if entry["op"].startswith("ReLU") or entry["op"] == "flatten":
            continue
        after = entries[index + 1 : index + 2]
        yield index, [entry, *(x for x in after if x["op"].startswith("ReLU"))]


def work_of(entries: list[dict[str, Any]], batch: int, data_gradient: bool) -> LayerWork:
    """The kernels of some rows, one after another."""
    mode = FakeTensorMode()
    with mode:
        module = nn.Sequential(*(build(entry, bias=len(entries) > 1) for entry in entries))
        data = torch.empty(batch, *entries[0]["input_shape"], requires_grad=data_gradient)
    return trace(lambda: [module(data)], lambda: [data, *module.parameters()], mode=mode)


def build(entry: dict[str, Any], bias: bool) -> nn.Module:
    """The module of a row; the files do not tell whether convolutions have a bias, VGG-16's have."""
    operator, given = entry["op"], entry["params"]
    window = {name: _tuple(given[name]) for name in ("kernel_size", "stride", "padding") if name in given}
    if operator == "conv2d":
        return nn.Conv2d(given["in_channels"], given["out_channels"], bias=bias, **window)
    if operator == "linear":
        return nn.Linear(given["in_features"], given["out_features"], given["bias"])
    if operator == "maxPool2d":
        return nn.MaxPool2d(**window)
    if operator == "avgPool2d":
        return nn.AvgPool2d(**window)
    if operator.startswith("ReLU"):
        return nn.ReLU(inplace=True)
    if operator == "ResnetBottleneck":
        return _bottleneck(given)
    raise DocumentError(f"the A100 files have a layer '{operator}' that this benchmark does not know")


def _bottleneck(given: dict[str, Any]) -> nn.Module:
    define_missing_operators()
    from torchvision.models.resnet import Bottleneck

    outside, stride = 4 * given["planes"], given.get("stride", 1)
    shortcut = None
    if "downsampleParams" in given:
        shortcut = nn.Sequential(nn.Conv2d(given["inplanes"], outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
    return Bottleneck(given["inplanes"], given["planes"], stride, shortcut, base_width=given["base_width"])


def _tuple(value: int | list[int]) -> int | tuple[int, ...]:
    return value if isinstance(value, int) else tuple(value)


def accumulate(work: LayerWork) -> LayerWork:
    """Adds to the backward what it costs to add to gradients that are there already."""
    weights = [kernel for kernel in work.backward if kernel.operator == "convolution_backward_weight"]
    sizes = [kernel.weight_bytes for kernel in weights]
    # The last product of a linear layer's backward is that of its weights.
    products = [kernel for kernel in work.backward if kernel.operator == "mm"]
    sizes += [kernel.rows * kernel.columns * kernel.element_size for kernel in products[-1:]]
    return replace(work, backward=work.backward + tuple(Kernel("add_", "memory", 3 * size) for size in sizes))
