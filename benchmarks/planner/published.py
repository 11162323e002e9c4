"""How often does the published algorithm break its limit, and how much slower is it where it does not?

Random chains of layers, planned by both searches on the same prices. DeepPool's Algorithm 1 fixes a layer's
predecessor before it looks at the limit, so its plans may be over the limit, or slower than the optimum.

    python -m benchmarks.planner.published
"""

import argparse
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import deeppool as dp
from deeppool.cluster.cluster import NVSWITCH_A100, Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.planning.plan import Plan, Search
from deeppool.profiling.table import Measurement, Profile

LIMITS = (1.5, 2.0, 4.0)
BATCHES = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One problem, planned by both searches."""

    exact: Plan
    published: Plan
    as_amplified: Plan
    """The exact plan whose limit is what the published plan's layers really amplify to: never the slower of the two."""

    @property
    def ratio(self) -> float:
        """How much longer an iteration of the published plan takes."""
        return self.published.iteration_time / self.exact.iteration_time

    @property
    def excess(self) -> float:
        """The largest amplification of the published plan's layers, as a multiple of the limit."""
        limit = self.published.amplification_limit
        return max(layer.amplification for layer in self.published.layers) / limit if limit else 0.0


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=300)
    parser.add_argument("--layers", type=int, default=21)
    parser.add_argument("--gpus", type=int, default=1024)
    arguments = parser.parse_args()
    print(dp.environment(), end="\n\n")
    print(
        "| limit | over the limit | layers over, median (most) | worst layer, multiple of the limit, median (most) "
        "| slower, where within the limit | how much, median (most) |"
    )
    print("|---" * 6 + "|")
    for limit in LIMITS:
        print(row(limit, list(comparisons(arguments.chains, arguments.layers, arguments.gpus, limit))))


def comparisons(chains: int, layers: int, gpus: int, limit: float) -> Iterator[Comparison]:
    """Both plans of each chain, at as many samples as there are GPUs, but 64 at least."""
    cluster = Cluster(gpus, "full bisection", gpus, NVSWITCH_A100, NVSWITCH_A100)
    for seed in range(chains):
        profile = random_chain(layers, seed)
        yield compare(profile, cluster, max(64, gpus), limit)


def compare(
    profile: Profile, cluster: Cluster, global_batch: int, limit: float | None, network_model: NetworkModel = "ring"
) -> Comparison:
    """One problem by both searches."""

    def planned(limit: float | None, search: Search = "exact") -> Plan:
        return dp.plan(profile, cluster, global_batch, limit, search=search, network_model=network_model)

    published = planned(limit, "published")
    worst = max(layer.amplification for layer in published.layers)
    return Comparison(planned(limit), published, planned(max(1.0, worst)))


def row(limit: float, found: list[Comparison]) -> str:
    """One limit, as a row of the table."""
    over = [x for x in found if x.published.over_limit]
    within = [x for x in found if not x.published.over_limit]
    slower = [x for x in within if x.ratio > 1 + 1e-9]
    cells = [
        f"{limit:g}",
        f"{len(over)} of {len(found)}",
        median([len(x.published.over_limit) for x in over], "{:.0f}"),
        median([x.excess for x in over], "{:.2f}"),
        f"{len(slower)} of {len(within)}",
        median([100 * (x.ratio - 1) for x in slower], "{:.1f} %"),
    ]
    return f"| {' | '.join(cells)} |"


def median(values: list[float], form: str) -> str:
    """Median and the largest one."""
    return f"{form.format(statistics.median(values))} ({form.format(max(values))})" if values else "–"


def random_chain(layers: int, seed: int) -> Profile:
    """Times, activations and parameters in the ranges of a convolutional network's on an A100; all made up."""
    draw = random.Random(seed)
    graph = LayerGraph(
        "chain",
        (1,),
        tuple(
            Layer(
                f"layer{i}",
                ("conv2d",),
                (i - 1,) if i else (),
                (log_uniform(draw, 1e4, 1e7),) if i else (),
                draw.choice([0, log_uniform(draw, 1e4, 1e8)]),
                (f"weight{i}",),
                str(i),
            )
            for i in range(layers)
        ),
        0,
    )
    measurements = []
    for i in range(layers):
        launch, sample = draw.uniform(1e-5, 2e-4), draw.uniform(1e-6, 1e-4)
        times = tuple(launch + sample * batch for batch in BATCHES)
        measurements.append(Measurement(str(i), times, times, (0.0,) * len(BATCHES)))
    return Profile(
        graph, BATCHES, tuple(measurements), "cuda", "made up", "fp32", 1, "estimated", "made up", "2026-11-21", {}
    )


def log_uniform(draw: random.Random, low: float, high: float) -> int:
    """A size of any order of magnitude between two."""
    return round(low * (high / low) ** draw.random())


if __name__ == "__main__":
    main()
