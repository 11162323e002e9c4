"""How long does the exact search take, and is it exact?

Search times of whole models at three cluster sizes, one thread, median of several searches; beside them,
in the same run, random chains small enough to try every assignment of GPU counts to layers.

    python benchmarks/planner/main.py

Layer times are made up (every layer scales imperfectly), because the search's time does not depend on them.
"""

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence

import deeppool as dp
from deeppool.cluster import NVSWITCH_A100, Cluster
from deeppool.costs.communication import Network
from deeppool.costs.table import CostTable, price
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.planning.frontier import efficient_plans
from deeppool.planning.planner import gpu_counts_to_search, plan
from deeppool.planning.published import search_published
from deeppool.planning.search import search
from deeppool.profiling.table import Measurement, Profile

MODELS = ("vgg16", "wide_resnet101_2", "inception_v3", "vit_b_16")
SIZES = (8, 1024, 65_536)
BATCHES = (1, 4, 16, 64)
LIMIT = 2.0


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--chains", type=int, default=200)
    arguments = parser.parse_args()
    print(dp.environment(), end="\n\n")
    print("| search, one thread, median (smallest … largest) |", " | ".join(f"{size} GPUs" for size in SIZES), "|")
    print("|---" * (1 + len(SIZES)) + "|")
    for name in MODELS:
        graph = dp.capture(name).graph
        cells = [timed(lambda: search(costs, LIMIT), arguments.repeats) for costs in tables(graph)]  # noqa: B023
        print(f"| {name}, {len(graph.layers)} layers |", " | ".join(cells), "|")
        cells = [timed(lambda: search_published(costs, LIMIT), arguments.repeats) for costs in tables(graph)]  # noqa: B023
        print(f"| {name}, published search |", " | ".join(cells), "|")
    chain = dp.capture("vgg16").graph
    cells = [timed(lambda: efficient_plans(costs), 3) for costs in tables(chain)]  # noqa: B023
    print("| vgg16, whole frontier |", " | ".join(cells), "|\n")
    worst, over = check(arguments.chains)
    print(f"{arguments.chains} random chains, every assignment tried: gap {worst:.1e}, {over} over the limit")


def tables(graph: LayerGraph) -> list[CostTable]:
    """The prices of a model at each cluster size, 32 samples a GPU, one node."""
    return [
        price(made_up(graph), Network(Cluster(size, "one node", size, NVSWITCH_A100)), 32 * size, counts)
        for size in SIZES
        for counts in [gpu_counts_to_search(size, 32 * size)]
    ]


def made_up(graph: LayerGraph, seed: int = 0) -> Profile:
    """A launch cost and a cost per sample for each distinct layer."""
    draw = random.Random(seed)
    measurements = []
    for signature in dict.fromkeys(layer.signature for layer in graph.layers):
        launch, sample = draw.uniform(1e-5, 2e-4), draw.uniform(1e-6, 1e-4)
        times = tuple(launch + sample * batch for batch in BATCHES)
        measurements.append(Measurement(signature, times, times, (0.0,) * len(BATCHES)))
    return Profile(
        graph, BATCHES, tuple(measurements), "cuda", "made up", "fp32", 1, "estimated", "made up", "2026-11-21", {}
    )


def timed(run: Callable[[], object], repeats: int) -> str:
    """Median and range in milliseconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started))
    return f"{statistics.median(times):.2g} ms ({min(times):.2g} … {max(times):.2g})"


def check(chains: int) -> tuple[float, int]:
    """The search against every assignment, on random chains of six layers and four GPUs."""
    worst, over = 0.0, 0
    for seed in range(chains):
        draw = random.Random(seed)
        layers = tuple(
            Layer(
                f"layer{i}",
                ("conv2d",),
                (i - 1,) if i else (),
                (draw.choice([10**3, 10**6]),) if i else (),
                draw.choice([0, 10**6]),
                (f"weight{i}",),
                str(i),
            )
            for i in range(6)
        )
        profile = made_up(LayerGraph("chain", (1,), layers, 0), seed)
        cluster = Cluster(4)
        found = plan(profile, cluster, 16, LIMIT)
        over += any(layer.amplification > LIMIT * (1 + 1e-9) for layer in found.layers)
        costs = price(profile, Network(cluster), 16, found.gpu_counts)
        best = min(keeping(costs, choices) for choices in itertools.product(range(3), repeat=6))
        worst = max(worst, found.iteration_time / best - 1)
    return worst, over


def keeping(costs: CostTable, choices: Sequence[int]) -> float:
    """Iteration time of an assignment; infinite where a layer breaks the limit."""
    total = 0.0
    for index, choice in enumerate(choices):
        seconds = float(costs.compute[index, choice] + costs.sync[index, choice])
        if index:
            seconds += float(costs.comm(costs.graph.layers[index].input_bytes[0])[choices[index - 1], choice])
        if seconds * costs.gpu_counts[choice] > LIMIT * float(costs.compute[index, 0]) * (1 + 1e-9):
            return float("inf")
        total += seconds
    return total


if __name__ == "__main__":
    main()
