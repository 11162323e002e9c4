"""How long does the search take, and is it exact?

Search times at three cluster sizes, one thread, median of several searches: the exact search, and the published
algorithm on the same prices. In the same run, random graphs small enough to try every assignment of GPUs to layers.

    python -m benchmarks.planner.main

Layer times are made up (every layer scales imperfectly). For chains the search's time hardly depends on them; for
models with branches it does: ``claims.py`` times searches with measured layer times. The tree of chains and branches of
a model is found once and kept; its time stands beside.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

# One thread, as the table says; set before NumPy loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deeppool as dp
from benchmarks.planner.models import MODELS, made_up, prices
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.graph import series_parallel
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.planning.search.overlap import search_overlapping
from deeppool.planning.search.published import search_published
from deeppool.planning.search.search import search
from deeppool.profiling.table import Profile
from tests.planning.search.test_search import Definition
from tests.planning.searched import plan

SIZES = (8, 1024, 65_536)
LIMIT = 2.0
SHAPES = {
    "chain": [(), (0,), (1,), (2,), (3,), (4,)],
    "two branches": [(), (0,), (1,), (0,), (2, 3)],
    "three branches": [(), (0,), (0,), (0,), (1, 2, 3)],
    "residual": [(), (0,), (1,), (0, 2), (3,)],
    "block in a branch": [(), (0,), (1,), (1,), (2, 3), (0, 4)],
    "fork in a branch": [(), (0,), (1,), (1,), (0,), (2, 3, 4)],
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="searches per cell")
    parser.add_argument("--graphs", type=int, default=300, help="random graphs to check against every assignment")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    print(dp.environment(), end="\n\n")
    print("| search, one thread, median (smallest … largest) |", " | ".join(f"{size} GPUs" for size in SIZES), "|")
    print("|---" * (1 + len(SIZES)) + "|")
    for name in arguments.models:
        report(name, MODELS[name](), arguments.repeats)
    print("\n" + check(arguments.graphs))


def report(name: str, graph: LayerGraph, repeats: int) -> None:
    """A model's rows: exact, published, and proved; nothing overlaps, but for the rows as it runs."""
    as_run = [prices(graph, size) for size in SIZES]
    costs = [replace(table, overlap=False) for table in as_run]
    edges = tuple(layer.predecessors for layer in graph.layers)

    def tree() -> None:
        series_parallel._decompose.cache_clear()
        series_parallel.decompose(edges)

    found = {search(table, LIMIT).optimality for table in costs}
    print(
        f"| {name}, {len(graph.layers)} layers ({', '.join(sorted(found))}; tree {timed(tree, 5)}) |",
        " | ".join(timed(lambda: search(table, LIMIT), repeats) for table in costs),  # noqa: B023
        "|",
    )
    # The published search of a deep, wide model takes minutes at 65,536 GPUs, and says nothing new there.
    cells = [timed(lambda: search_published(table, LIMIT), min(repeats, 5)) for table in costs[:2]]  # noqa: B023
    print("| … published |", " | ".join([*cells, "–"]), "|")
    cells = [timed(lambda: search_overlapping(table, LIMIT), min(repeats, 5)) for table in as_run]  # noqa: B023
    print("| … as it runs |", " | ".join(cells), "|", flush=True)
    for kind, model in (("", "paper"), (" as it runs", None)):
        cells = [proved_cell(made_up(graph), size, model) for size in SIZES[:2]]
        print(f"| … proved by deeppool check, no limit{kind} |", " | ".join([*cells, "–"]), "|", flush=True)


def proved_cell(profile: Profile, gpus: int, model: NetworkModel | None) -> str:
    """Factor that is proved without the search, the search's claim, and the seconds of the check."""
    made = dp.plan(profile, Cluster(gpus), 32 * gpus, network_model=model)
    started = time.process_time()
    found = dp.check(made, profile)
    return f"{found.proved_factor:.3f} ({made.optimality}), {time.process_time() - started:.2f} s"


def timed(run: Callable[[], object], repeats: int) -> str:
    """Median and range in milliseconds of a processor."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - started))
    return f"{statistics.median(times):.2g} ms ({min(times):.2g} … {max(times):.2g})"


def check(graphs: int) -> str:
    """Both searches against every assignment that the definitions permit (the tests' oracle), on random graphs."""
    worst = slower = 0.0
    over = published_over = 0
    for seed in range(graphs):
        draw = random.Random(seed)
        profile = made_up(drawn(draw), seed)
        cluster = Cluster(draw.choice([2, 3, 4]), gpus_per_node=draw.choice([2, 4]))
        best = Definition(profile, cluster, 16).optima([LIMIT])[LIMIT]
        kinds = ("exact", "published")
        found, published = (plan(profile, cluster, 16, LIMIT, search=kind, network_model="ring") for kind in kinds)
        assert found.optimality == "exact"
        over += bool(found.over_limit)
        worst = max(worst, abs(found.iteration_time / best - 1))
        published_over += bool(published.over_limit)
        if not published.over_limit:
            slower = max(slower, published.iteration_time / best - 1)
    return (
        f"{graphs} random graphs ({', '.join(SHAPES)}), every assignment of GPUs tried: exact search: gap {worst:.1e}, "
        f"{over} plans over the limit; published: {published_over} plans over the limit, "
        f"the others up to {100 * slower:.0f} % slower than the optimum"
    )


def drawn(draw: random.Random) -> LayerGraph:
    """One of the shapes, with random sizes."""
    layers = tuple(
        Layer(
            f"layer{i}",
            ("conv2d",),
            sources,
            tuple(draw.choice([10**3, 10**5, 10**7]) for _ in sources),
            draw.choice([0, 10**6, 10**8]),
            (f"weight{i}",),
            str(i),
        )
        for i, sources in enumerate(draw.choice(list(SHAPES.values())))
    )
    return LayerGraph("drawn", (1,), layers, 0)


if __name__ == "__main__":
    main()
