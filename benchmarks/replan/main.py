"""How long from the live times of a run to a new plan?

Whole models and a made-up transformer of 96 blocks, one thread, median CPU time of several calls: pricing every layer,
and replanning after one layer, or every layer, took longer than its profile says.

    python benchmarks/replan/main.py

Layer times are made up (every layer scales imperfectly), because the time to a plan does not depend on them.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import deeppool as dp
from deeppool.cluster.cluster import NVSWITCH_A100, Cluster
from deeppool.costs import table
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.planning.planner import plan_from_costs
from deeppool.planning.replanning.replan import costs_for_replan, replan
from deeppool.planning.request import gpu_counts_to_search
from deeppool.planning.search.search import search
from deeppool.profiling.table import Measurement, Profile

MODELS = ("vgg16", "inception_v3")
SIZES = (8, 1024)
BATCHES = (1, 4, 16, 64)
LIMIT = 2.0


def main() -> None:
    """Prints a table per cluster size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    print(dp.environment(), end="\n\n")
    graphs = [*(dp.capture(name).graph for name in MODELS), transformer(96)]
    for size in SIZES:
        print(f"| {size} GPUs | price, first | price, again | search | replan, one layer | replan, all layers |")
        print("|---" * 6 + "|")
        for graph in graphs:
            print(f"| {graph.model}, {len(graph.layers)} layers |", " | ".join(row(graph, size, repeats)), "|")
        print()


def row(graph: LayerGraph, size: int, repeats: int) -> list[str]:
    """Times of one model at one cluster size."""
    profile = made_up(graph)
    network, batch = Network(Cluster(size, "one node", size, NVSWITCH_A100)), 32 * size
    counts = gpu_counts_to_search(size, batch)
    made = plan_from_costs(profile, price(profile, network, batch, counts), LIMIT, "layer", explained=False)
    prices = costs_for_replan(made, profile)
    slow = {layer.name: (2 * layer.forward, 2 * layer.backward) for layer in made.layers}
    name = made.layers[len(made.layers) // 2].name
    return [
        timed(lambda: price(profile, network, batch, counts), repeats, before=table._reshard_terms.cache_clear),
        timed(lambda: price(profile, network, batch, counts), repeats),
        timed(lambda: search(prices, LIMIT), repeats),
        timed(lambda: replan(made, profile, {name: slow[name]}, prices=prices), repeats),
        timed(lambda: replan(made, profile, slow, prices=prices), repeats),
    ]


def transformer(blocks: int) -> LayerGraph:
    """Twelve layers a block, every block as the first one; each layer reads the one before it."""
    layers = []
    for index in range(12 * blocks):
        kind = index % 12
        layers.append(
            Layer(
                name=f"block{index // 12}.layer{kind}",
                operators=("linear",),
                predecessors=(index - 1,) if index else (),
                input_bytes=(2**22,) if index else (),
                parameter_bytes=2**24 if kind % 3 == 0 else 0,
                parameters=(f"weight{index}",),
                signature=f"layer{kind}",
            )
        )
    return LayerGraph("a transformer", (1024,), tuple(layers), sum(layer.parameter_bytes for layer in layers))


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


def timed(run: Callable[[], object], repeats: int, before: Callable[[], None] = lambda: None) -> str:
    """Median and range in milliseconds of CPU time, which other processes hardly touch; ``before`` is not timed."""
    times = []
    for _ in range(repeats):
        before()
        started = time.thread_time()
        run()
        times.append(1e3 * (time.thread_time() - started))
    return f"{statistics.median(times):.2g} ms ({min(times):.2g} … {max(times):.2g})"


if __name__ == "__main__":
    main()
