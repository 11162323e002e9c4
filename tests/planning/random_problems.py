"""Planning problems by the thousand from a plain seeded generator, where Hypothesis would be too slow.

Every shape of graph that the planner distinguishes: chains, branches, branches in branches, branches that
end at a join further out (tails), irregular regions; with one fork for all data or several; numbered branch by branch
or by turns. Some graphs repeat their parts, as models do: the search prices equal parts once.
"""

import random
from dataclasses import dataclass

from deeppool.cluster.cluster import Cluster, Link
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.profiling.table import Measurement, Profile
from tests.strategies import make_profile

BATCH_SIZES = (1, 4, 16, 64, 256)
MOST_BRANCHES = 6
SHAPES = ("chain", "branches", "nested", "tails", "irregular", "mixed")
Ends = tuple[int, ...]
"""The layers on which a part of a graph ends; none stands for the data."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A profile, a cluster and a global batch: the arguments of a plan."""

    profile: Profile
    cluster: Cluster
    global_batch: int


def random_problem(
    rng: random.Random, layers: int, most_gpus: int, most_per_node: int = 16, shape: str | None = None
) -> Problem:
    """One problem.

    Args:
        rng: makes every choice.
        layers: in the graph, or a few less.
        most_gpus: in the cluster.
        most_per_node: GPUs.
        shape: one of ``SHAPES``; None: any.
    """
    # Many small clusters, in which everything is seen, and some of each size.
    gpus = rng.choice([rng.randint(1, most_gpus), rng.randint(1, min(8, most_gpus)), min(8, most_gpus)])
    edges = random_edges(rng, layers, shape or rng.choice(SHAPES))
    cluster = Cluster(gpus, "random", rng.choice([8, rng.randint(1, most_per_node)]), *_links(rng))
    batch = rng.choice([gpus, rng.randint(gpus, 4 * gpus), rng.randint(gpus, 256)])
    return Problem(random_profile(rng, edges), cluster, batch)


def random_edges(rng: random.Random, layers: int, shape: str) -> list[Ends]:
    """Per layer the layers that it reads: ``layers`` of them, or a few less."""
    edges = _Builder(rng, shape).build(layers)
    return _by_turns(rng, edges) if rng.random() < 0.3 else edges


def random_profile(rng: random.Random, edges: list[Ends], kinds: int | None = None) -> Profile:
    """Layer times and sizes for a graph.

    Args:
        rng: makes every choice.
        edges: per layer the layers that it reads.
        kinds: of layers; with fewer kinds than layers some layers are equal. None: any number.
    """
    kinds = kinds or rng.choice([1, 2, 3, len(edges)])
    samples = [rng.choice([0, 64, 4096, 2**18, 2**22]) for _ in range(kinds)]
    parameters = [rng.choice([0, 0, 4096, 2**20, 2**26]) for _ in range(kinds)]
    kind_of = [rng.randrange(kinds) for _ in edges] if kinds < len(edges) else list(range(len(edges)))
    layers = tuple(
        Layer(
            name=f"layer{index}",
            operators=("conv2d",),
            predecessors=sources,
            input_bytes=tuple(samples[kind_of[source]] for source in sources),
            parameter_bytes=parameters[kind_of[index]],
            parameters=(f"layer{index}.weight",),
            signature=f"kind{kind_of[index]}",
        )
        for index, sources in enumerate(edges)
    )
    graph = LayerGraph("random", (3, 8, 8), layers, sum(layer.parameter_bytes for layer in layers))
    measurements = [random_measurement(rng, f"kind{kind}") for kind in range(kinds)]
    return make_profile(graph, measurements, BATCH_SIZES, rng.choice([0.0, 1e-10, 1e-9]))


def random_measurement(rng: random.Random, signature: str) -> Measurement:
    """Times that no smaller batch makes longer: a fixed part, a part per sample, and steps in between."""
    per_sample = rng.choice([1e-7, 1e-5, 1e-4, 1e-3]) * rng.uniform(0.5, 5)
    fixed = per_sample * rng.choice([0.0, 0.1, 1.0, 4.0, 16.0])
    rough = rng.random() < 0.5
    forward = [fixed + per_sample * batch for batch in BATCH_SIZES]
    if rough:
        forward = sorted(time * rng.uniform(0.5, 1.5) for time in forward)
    # From no backward pass, as of a layer on the data, to one that is all of the time.
    backward_share = rng.choice([0.0, 0.5, 1.0, 2.0, 20.0])
    backward = [backward_share * time for time in forward]
    return Measurement(signature, tuple(forward), tuple(backward), (0.0,) * len(BATCH_SIZES))


def _links(rng: random.Random) -> tuple[Link, Link]:
    """Inside a node and between nodes, which is no faster."""
    first, second = (rng.choice([1e8, 1e9, 1e10, 3e11]) for _ in range(2))
    near, far = (rng.choice([0.0, 1e-6, 1e-4, 3e-4]) for _ in range(2))
    return Link(max(first, second), min(near, far), "random"), Link(min(first, second), max(near, far), "random")


class _Builder:
    """Records the edges of one graph, branch by branch."""

    def __init__(self, rng: random.Random, shape: str) -> None:
        self.rng = rng
        self.edges: list[Ends] = []
        self.depth = {"chain": 0, "branches": 1, "nested": 3, "tails": 2, "irregular": 1, "mixed": 3}[shape]
        self.tails = shape in ("tails", "mixed")
        self.irregular = shape in ("irregular", "mixed")

    def build(self, layers: int) -> list[Ends]:
        """A graph whose last layer ends every path."""
        ends = self._series((), layers - 1, self.depth) if layers > 1 else ()
        self._add(ends)
        return self.edges

    def _add(self, sources: Ends) -> int:
        self.edges.append(tuple(sorted(set(sources))))
        return len(self.edges) - 1

    def _series(self, fork: Ends, size: int, depth: int) -> Ends:
        """``size`` layers, one after another but for what lies between; the layers on which they end."""
        ends = fork
        while size > 0:
            taken = self.rng.randint(1, size)
            if depth and taken >= 3 and self.rng.random() < 0.8:
                ends = (self._add(self._between(ends, taken - 1, depth)),)
            else:
                taken = min(taken, 3)
                for _ in range(taken):
                    ends = (self._add(ends),)
            size -= taken
        return ends

    def _between(self, fork: Ends, size: int, depth: int) -> Ends:
        """Between a fork and the join that reads what this returns."""
        if self.irregular and size >= 3 and self.rng.random() < 0.6:
            return self._irregular(fork, size)
        direct = bool(fork) and self.rng.random() < 0.4
        count = self.rng.randint(1 if direct else 2, min(size, MOST_BRANCHES))
        ends: Ends = fork if direct else ()
        for part in _parts(self.rng, size, count):
            ends += self._branch(fork, part, depth - 1)
        return ends

    def _branch(self, fork: Ends, size: int, depth: int) -> Ends:
        if not (self.tails and size >= 3 and self.rng.random() < 0.6):
            return self._series(fork, size, depth)
        stem = self.rng.randint(1, size - 2)
        last = self._series(fork, stem, max(depth, 0))
        # Open branches: they meet nowhere but at the join outside, which may read their fork too.
        ends: Ends = last if self.rng.random() < 0.3 else ()
        for part in _parts(self.rng, size - stem, self.rng.randint(2, min(size - stem, 3))):
            ends += self._branch(last, part, max(depth - 1, 0))
        return ends

    def _irregular(self, fork: Ends, size: int) -> Ends:
        """Each layer reads the fork or layers before it; DenseNet's, which read them all, among them."""
        inside: list[int] = []
        dense = self.rng.random() < 0.3
        for _ in range(size):
            earlier = [*fork, *inside]
            sources = earlier if dense else self.rng.sample(earlier, self.rng.randint(0, min(len(earlier), 3)))
            inside.append(self._add(tuple(sources) or fork))
        read = {source for sources in self.edges for source in sources}
        return tuple(layer for layer in inside if layer not in read or (dense and self.rng.random() < 0.5))


def _parts(rng: random.Random, total: int, count: int) -> list[int]:
    """``count`` positive numbers whose sum is ``total``."""
    cuts = sorted(rng.sample(range(1, total), count - 1))
    return [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]


def _by_turns(rng: random.Random, edges: list[Ends]) -> list[Ends]:
    """The same graph numbered in another topological order; a model may interleave its branches."""
    waiting = {index: set(sources) for index, sources in enumerate(edges)}
    order: list[int] = []
    while waiting:
        ready = [index for index, sources in waiting.items() if not sources]
        # The last layer ends every path, so it comes last in any order.
        chosen = rng.choice(ready)
        order.append(chosen)
        del waiting[chosen]
        for sources in waiting.values():
            sources.discard(chosen)
    place = {old: new for new, old in enumerate(order)}
    return [tuple(sorted(place[source] for source in edges[old])) for old in order]
