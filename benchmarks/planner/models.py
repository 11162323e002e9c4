"""What the planner's benchmarks plan: captured models, a GPT of 96 layers, made-up times, random graphs."""

import random
from collections.abc import Callable
from functools import partial

import deeppool as dp
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import Network
from deeppool.costs.table import CostTable, price
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.planning.best_buckets import with_best_buckets
from deeppool.planning.request import gpu_counts_to_search
from deeppool.profiling.table import Measurement, Profile

BATCHES = (1, 4, 16, 64)


def captured(name: str) -> LayerGraph:
    """A named model's graph."""
    return dp.capture(name).graph


def gpt(layers: int = 96, width: int = 1024, tokens: int = 1024) -> LayerGraph:
    """A GPT as operators: per layer, two residual connections, and queries, keys and values side by side."""
    found: list[Layer] = []
    sample = 4 * width * tokens

    def add(name: str, operator: str, reads: tuple[int, ...] = (), parameters: int = 0, wide: int = 1) -> int:
        reads = tuple(sorted(reads))
        sizes = (wide * sample,) * len(reads)
        names = (f"{name}.weight",) if parameters else ()
        found.append(Layer(name, (operator,), reads, sizes, 4 * parameters, names, f"{operator} {parameters}"))
        return len(found) - 1

    stream = add("embedding", "embedding", (), 50_257 * width)
    for number in range(layers):
        place = f"blocks.{number}"
        normed = add(f"{place}.norm_1", "layer_norm", (stream,), 2 * width)
        heads = tuple(add(f"{place}.{name}", "linear", (normed,), width * width) for name in ("q", "k", "v"))
        mixed = add(f"{place}.attention", "attention", heads)
        projected = add(f"{place}.projection", "linear", (mixed,), width * width)
        stream = add(f"{place}.add_1", "add", (stream, projected))
        normed = add(f"{place}.norm_2", "layer_norm", (stream,), 2 * width)
        hidden = add(f"{place}.expand", "linear", (normed,), 4 * width * width)
        active = add(f"{place}.gelu", "gelu", (hidden,), 0, wide=4)
        reduced = add(f"{place}.reduce", "linear_4", (active,), 4 * width * width, wide=4)
        stream = add(f"{place}.add_2", "add", (stream, reduced))
    last = add("norm", "layer_norm", (stream,), 2 * width)
    add("head", "linear", (last,), 50_257 * width)
    return LayerGraph(f"gpt-{layers}", (tokens,), tuple(found), sum(layer.parameter_bytes for layer in found))


MODELS: dict[str, Callable[[], LayerGraph]] = {
    "VGG-16": partial(captured, "vgg16"),
    "WideResNet-101-2": partial(captured, "wide_resnet101_2"),
    "Inception-v3": partial(captured, "inception_v3"),
    "ViT-B/16": partial(captured, "vit_b_16"),
    "GPT of 96 layers": gpt,
}


def made_up(graph: LayerGraph, seed: int = 0) -> Profile:
    """A launch cost and a cost per sample for each distinct layer; backward takes twice as long as forward."""
    draw = random.Random(seed)
    measurements = []
    for signature in dict.fromkeys(layer.signature for layer in graph.layers):
        launch, sample = draw.uniform(1e-5, 2e-4), draw.uniform(1e-6, 1e-4)
        times = tuple(launch + sample * batch for batch in BATCHES)
        twice = tuple(2 * time for time in times)
        measurements.append(Measurement(signature, times, twice, (0.0,) * len(BATCHES)))
    return Profile(
        graph, BATCHES, tuple(measurements), "cuda", "made up", "fp32", 1, "estimated", "made up", "2026-11-21", {}
    )


def prices(graph: LayerGraph, gpus: int) -> CostTable:
    """Of a model at 32 samples a GPU, with made-up times."""
    return priced(made_up(graph), gpus, 32)


def priced(profile: Profile, gpus: int, samples: int) -> CostTable:
    """Of a model at so many samples a GPU, on DGX A100 nodes of eight GPUs."""
    network = Network(Cluster(gpus), "best")
    return with_best_buckets(price(profile, network, samples * gpus, gpu_counts_to_search(gpus, samples * gpus)))
