"""DeepPool's A100 layer times as profiles.

Reads a folder with ``vgg16.json``, ``wide_resnet101_2.json`` and ``inception_v3.json``: layer times that the
authors of DeepPool measured and published (github.com/DeepPoolML/DeepPool, profile/*.prof, MIT licence), in
milliseconds per batch size, with each layer's parameters and input shape. What the files lack or book oddly,
and what is made of it:

- The backward of a convolution or linear layer is booked on the in-place ReLU after it: the two are one layer
  here, and so is a flatten with the linear layer after it. VGG-16 then has the 21 layers of the paper's Table 1.
- The last linear layer's backward, the loss and the optimizer are missing, and stay so.
- WideResNet-101-2 is the chain that its file lists: a bottleneck block is one layer, its inner branches are not
  planned. It was measured at 224 x 224 pixels; the paper's Table 1 says 400 x 400.
- Inception-v3 is a list of convolutions and pools, no graph. Its branches are rebuilt from the published
  architecture (Szegedy et al., 2015, as in torchvision, without the auxiliary head); each row's input shape
  must be its predecessor's output shape. The concatenations that join the branches are not in the file: their
  times are estimated (a copy at the A100's memory bandwidth), so this profile says that it is estimated.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deeppool.errors import DocumentError
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.profiling.table import Measurement, Profile

Precision = Literal["fp32", "fp16"]
BYTES = {"fp32": 4, "fp16": 2}
MODELS = ("vgg16", "wide_resnet101_2", "inception_v3")
MEMORY_BANDWIDTH = 1555e9
"""Bytes per second, A100 40 GB data sheet."""
LAUNCH = 4e-6
"""Seconds; the shortest times in the files are 4 us."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    operator: str
    parameters: dict[str, Any]
    input_shape: tuple[int, ...]
    times: tuple[tuple[float, float], ...]
    """Forward seconds and all seconds, per batch size."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        channels, *size = self.input_shape
        given = self.parameters
        if self.operator in ("conv2d", "maxPool2d", "avgPool2d"):
            kernel, padding = pair(given["kernel_size"]), pair(given["padding"])
            size = [(n + 2 * p - k) // given["stride"] + 1 for n, p, k in zip(size, padding, kernel, strict=True)]
            return given.get("out_channels", channels), *size
        if self.operator == "ResnetBottleneck":
            return 4 * given["planes"], *(-(-n // given.get("stride", 1)) for n in size)
        if self.operator == "adAvgPool2d":
            return channels, given["output_height"], given["output_width"]
        if self.operator == "flatten":
            return (math.prod(self.input_shape),)
        return (given["out_features"],) if self.operator == "linear" else self.input_shape

    def weights(self, bias: bool) -> int:
        """Number of trainable parameters; ``bias`` is that of convolutions, which the files do not tell."""
        given = self.parameters
        if self.operator == "conv2d":
            area = math.prod(pair(given["kernel_size"]))
            return given["out_channels"] * (given["in_channels"] * area + bias)
        if self.operator == "linear":
            return given["out_features"] * (given["in_features"] + given["bias"])
        if self.operator == "ResnetBottleneck":
            width, outside = given["planes"] * given["base_width"] // 64, 4 * given["planes"]
            # Each convolution is followed by a batch normalisation with two numbers per channel.
            total = width * (given["inplanes"] + 2) + width * (9 * width + 2) + outside * (width + 2)
            if "downsampleParams" in given:
                total += outside * (given["inplanes"] + 2)
            return total
        return 0


def pair(value: int | list[int]) -> tuple[int, int]:
    """Height and width."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class Builder:
    """Collects layers and their times."""

    def __init__(self, model: str, document: dict[str, Any], precision: Precision) -> None:
        self.model = model
        self.batch_sizes = tuple(document["batch_sizes"])
        self.input_shape = tuple(document["input_shape"])
        self.rows = [self._row(entry) for entry in document["layers"]]
        self.precision = precision
        self.layers: list[Layer] = []
        self.outputs: list[tuple[int, ...]] = []
        self.measurements: list[Measurement] = []

    def _row(self, entry: dict[str, Any]) -> Row:
        cells = [entry["by_batch"][str(batch)] for batch in self.batch_sizes]
        times = tuple((cell["forward_ms"] / 1e3, cell["total_ms"] / 1e3) for cell in cells)
        return Row(entry["op"], entry["params"], tuple(entry["input_shape"]), times)

    def add(self, indices: list[int], source: int | None, bias: bool = False) -> int:
        """Some rows, one after another, as one layer; returns its number."""
        rows = [self.rows[index] for index in indices]
        shape = self.input_shape if source is None else self.outputs[source]
        for index, row in zip(indices, rows, strict=True):
            if row.input_shape != shape:
                raise DocumentError(
                    f"{self.model}: row {index} ({row.operator}) reads shape {row.input_shape}, "
                    f"the row before it gives {shape} (is it another version of the file?)"
                )
            shape = row.output_shape
        forward = [sum(row.times[k][0] for row in rows) for k in range(len(self.batch_sizes))]
        total = [sum(row.times[k][1] for row in rows) for k in range(len(self.batch_sizes))]
        name = f"{len(self.layers)}.{'+'.join(row.operator for row in rows)}"
        weights = sum(row.weights(bias) for row in rows)
        backward = [max(0.0, whole - part) for part, whole in zip(forward, total, strict=True)]
        return self._append(name, () if source is None else (source,), shape, weights, forward, backward)

    def concat(self, sources: list[int]) -> int:
        """Joins branches along their channels; its time is estimated."""
        shapes = [self.outputs[source] for source in sources]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        moved = 2 * math.prod(shape) * 4 / MEMORY_BANDWIDTH
        times = [LAUNCH + batch * moved for batch in self.batch_sizes]
        return self._append(f"{len(self.layers)}.concat", tuple(sources), shape, 0, times, times)

    def _append(
        self,
        name: str,
        sources: tuple[int, ...],
        shape: tuple[int, ...],
        weights: int,
        forward: list[float],
        backward: list[float],
    ) -> int:
        size = BYTES[self.precision]
        self.layers.append(
            Layer(
                name=name,
                operators=tuple(name.split(".")[1].split("+")),
                predecessors=tuple(sorted(sources)),
                input_bytes=tuple(size * math.prod(self.outputs[source]) for source in sorted(sources)),
                parameter_bytes=size * weights,
                parameters=(f"{name}.weight",) if weights else (),
                signature=name,
            )
        )
        self.outputs.append(shape)
        self.measurements.append(Measurement(name, tuple(forward), tuple(backward), (0.0,) * len(forward)))
        return len(self.layers) - 1

    def profile(self, document: dict[str, Any], provenance: Literal["measured", "estimated"], note: str) -> Profile:
        """What was collected."""
        graph = LayerGraph(
            self.model, self.input_shape, tuple(self.layers), sum(layer.parameter_bytes for layer in self.layers)
        )
        source = document["source"]
        return Profile(
            graph=graph,
            batch_sizes=self.batch_sizes,
            measurements=tuple(self.measurements),
            device="cuda",
            device_name="NVIDIA A100",
            precision=self.precision,
            threads=1,
            provenance=provenance,
            method=f"{source['repo']} {source['file']}: CUDA graph of each layer, mean of 200 replays, fp32; {note}",
            date="2022-03-17",
            versions={},
        )


def read_profile(folder: Path, model: str, precision: Precision = "fp32") -> Profile:
    """The profile of one of MODELS.

    Args:
        folder: with the files.
        model: its file's name, without the ending.
        precision: of parameters and activations on the network; the times are those of fp32.

    Raises:
        DocumentError: a file is missing, or its rows do not follow one another.
    """
    path = folder / f"{model}.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path}: {error} (--profiles names the folder of the A100 files)") from error
    builder = Builder(model, document, precision)
    if model == "inception_v3":
        inception(builder)
        return builder.profile(document, "estimated", "concatenations estimated from the A100's memory bandwidth")
    chain(builder, bias=model == "vgg16")
    return builder.profile(document, "measured", "a layer is paired with the ReLU after it")


def chain(builder: Builder, bias: bool) -> None:
    """The rows in their order; a ReLU belongs to the layer before it, a flatten to the one after it."""
    groups: list[list[int]] = []
    for index, row in enumerate(builder.rows):
        after_flatten = bool(groups) and builder.rows[groups[-1][-1]].operator == "flatten"
        if after_flatten or row.operator.startswith("ReLU"):
            groups[-1].append(index)
        else:
            groups.append([index])
    source = None
    for group in groups:
        source = builder.add(group, source, bias)


def inception(builder: Builder) -> None:
    """The blocks of Inception-v3, each row once, in the files' order."""
    rows = iter(range(len(builder.rows)))

    def path(source: int | None, count: int) -> int:
        for _ in range(count):
            source = builder.add([next(rows)], source)
        assert source is not None
        return source

    def block(source: int, *branches: int | str) -> int:
        """Branches by their number of rows; ``split`` is one row, then two side by side, joined at once."""
        ends = []
        for branch in branches:
            if isinstance(branch, int):
                ends.append(path(source, branch))
            else:
                fork = path(source, {"split": 1, "long split": 2}[branch])
                ends.append(builder.concat([path(fork, 1), path(fork, 1)]))
        return builder.concat(ends)

    here = path(None, 7)
    for branches in (
        *[(1, 2, 3, 2)] * 3,
        (1, 3, 1),
        *[(1, 3, 5, 2)] * 4,
        (2, 4, 1),
        *[(1, "split", "long split", 2)] * 2,
    ):
        here = block(here, *branches)
    if (left := next(rows, None)) is not None:
        raise DocumentError(f"{builder.model}: row {left} is one too many for Inception-v3 (another version?)")
