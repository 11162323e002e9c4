"""Training throughputs that others published, each beside the kernels of one iteration.

``throughputs.csv`` holds figures only:

- ``timm``: huggingface/pytorch-image-models, results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv of
  July 2022: PyTorch 1.12, CUDA 11.3, autocast to fp16, SGD with momentum, synthetic data on the GPU. Those models
  whose parameters timm 1.0 still counts the same.
- ``nvidia``: NVIDIA/DeepLearningExamples, the READMEs of PyTorch/Classification/ConvNets (container 21.03) and
  PyTorch/LanguageModeling/BERT (21.11), rows of one GPU; batch sizes and memory formats by ConvNets/configs.yml.
  A100 of 80 GB (DGX A100) and V100 (DGX-1). BERT's phases of 128 and 512 tokens are pre-training, 384 tokens is
  SQuAD. Their convolutional models read images from disk.

Attention is not fused in any of them: PyTorch had no such operator then.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from deeppool.device.kernel import Kernel
from deeppool.device.protocol import AUTOCAST, Precision
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.models.torchvision_operators import define_missing_operators
from deeppool.profiling.estimate.layer_work import model_work

TABLE = Path(__file__).parent / "throughputs.csv"


@dataclass(frozen=True, slots=True)
class Throughput:
    """A published throughput."""

    gpu: str
    precision: Precision
    layout: str
    library: str
    model: str
    size: int
    """Pixels a side, or tokens."""
    batch: int
    throughput: float
    """Samples per second."""
    source: str

    @property
    def seconds(self) -> float:
        """Seconds of one iteration."""
        return self.batch / self.throughput


@dataclass(frozen=True, slots=True)
class Iteration:
    """A published throughput and the kernels of its iteration."""

    published: Throughput
    kernels: tuple[Kernel, ...]
    parameter_bytes: int


def throughputs() -> list[Throughput]:
    """Returns the rows of the table."""
    with TABLE.open(encoding="utf-8") as file:
        return [
            Throughput(
                row["gpu"],
                row["precision"],
                row["layout"],
                row["library"],
                row["model"],
                int(row["size"]),
                int(row["batch"]),
                float(row["throughput"]),
                row["source"],
            )
            for row in csv.DictReader(file)
        ]


def iterations(rows: list[Throughput]) -> Iterator[Iteration]:
    """Yields the rows with their kernels; a model is captured once for consecutive rows that differ in the batch."""
    define_missing_operators()
    last: tuple[str, int, str] | None = None
    for row in sorted(rows, key=lambda row: (row.model, row.size, row.layout)):
        if (row.model, row.size, row.layout) != last:
            last, captured = (row.model, row.size, row.layout), _captured(row)
        works = model_work(captured, row.batch, autocast=row.precision in AUTOCAST)
        kernels = tuple(kernel for work in works for part in (work.forward, work.backward) for kernel in part)
        yield Iteration(row, kernels, captured.graph.parameter_bytes)


def _captured(row: Throughput) -> CapturedModel:
    if row.library == "transformers":
        return capture(_bert(row.size), (row.size,), input_dtype=torch.int64)
    import timm

    timm.layers.set_fused_attn(False)
    model = timm.create_model(row.model).train()
    if row.layout == "channels last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return capture(model, (3, row.size, row.size))


def _bert(tokens: int) -> nn.Module:
    """BERT-large with a head of two classes: the heads that were trained read a few tokens of each sequence."""
    import transformers

    config = transformers.AutoConfig.for_model(
        "bert",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=max(512, tokens),
        attn_implementation="eager",
        use_cache=False,
    )
    return transformers.BertForSequenceClassification(config).train()
