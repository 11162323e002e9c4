"""The search against every assignment there is, costed from the definitions and nothing else."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, decompose
from deeppool.planning.planner import plan
from deeppool.planning.search.search import search
from deeppool.profiling.table import Measurement
from deeppool.simulation.plan.simulate import simulate
from tests.sampling import examples
from tests.strategies import (
    BATCH_SIZES,
    make_graph,
    make_profile,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
)

LIMITS = (None, 1.0, 1.2, 1.5, 2.0, 4.0)
ROUNDING = 1e-9
MB = 10**6


class Definition:
    """Reference implementation of the costs in DESIGN.md: what an assignment of GPUs costs.

    Shares no code with costs/ and planning/: samples are counted one by one, every division of the GPUs among
    branches is tried. A place is (GPU count, first GPU).
    """

    def __init__(self, profile, cluster, batch, which="powers"):
        self.profile, self.cluster, self.batch = profile, cluster, batch
        self.layers = profile.graph.layers
        self.tree = decompose([layer.predecessors for layer in self.layers])
        if which == "powers":
            powers = [2**exponent for exponent in range(20) if 2**exponent <= cluster.gpus]
            self.gpu_counts = sorted({*powers, cluster.gpus})
        else:
            shards = [math.ceil(batch / count) for count in range(1, cluster.gpus + 1)]
            self.gpu_counts = [count for count, shard in enumerate(shards, 1) if shard not in shards[: count - 1]]
        self._known = {}

    def compute(self, layer, count):
        return self.profile.time(layer, math.ceil(self.batch / count)).total

    def communication(self, source, target, sample_bytes):
        """There in forward and back in backward, as long as the busiest port needs."""
        if source == target:
            return 0.0
        (h, before), (g, after) = source, target
        if before == after:
            owners = zip(self._owners(h), self._owners(g), strict=True)
            moved = [pair for pair in owners if pair[0] != pair[1]]
            busiest = max([*Counter(a for a, _ in moved).values(), *Counter(b for _, b in moved).values()])
        else:
            busiest = math.ceil(self.batch / min(h, g))
        gpus = [*range(before, before + h), *range(after, after + g)]
        link = self._link(gpus)
        return 2 * (link.latency + busiest * sample_bytes / link.bandwidth)

    def synchronisation(self, layer, place):
        """A ring all-reduce: 2 (g - 1) steps, each of a g-th of the bytes."""
        size = self.layers[layer].parameter_bytes
        count, start = place
        link = self._link(range(start, start + count))
        return sum(link.latency + size / count / link.bandwidth for _ in range(2 * (count - 1))) if size else 0.0

    def times(self, places):
        """Per layer, all that it takes: inputs from every predecessor, compute, gradients."""
        return [self._time(index, places)[0] for index in range(len(self.layers))]

    def amplifications(self, places):
        times = enumerate(self.times(places))
        return [time * places[index][0] / self.compute(index, 1) for index, time in times]

    def iteration_time(self, places):
        """Forward through the tree, then backward."""
        forward = self._walk(self.tree, places, lambda index: self._time(index, places)[1])
        return forward + self._walk(
            self.tree, places, lambda index: self._time(index, places)[0] - self._time(index, places)[1]
        )

    def optima(self, limits):
        """Per limit the least iteration time of all assignments that keep it in every layer."""
        best = dict.fromkeys(limits, math.inf)
        single = [self.compute(index, 1) for index in range(len(self.layers))]
        for assignment in self.assignments(self.tree, 0, self.cluster.gpus):
            places = [place for _, place in sorted(assignment)]
            total = self.iteration_time(places)
            if total >= max(best.values()):
                continue
            times = self.times(places)
            worst = max(time * place[0] / alone for time, place, alone in zip(times, places, single, strict=True))
            for limit in limits:
                if limit is None or worst <= limit * (1 + ROUNDING):
                    best[limit] = min(best[limit], total)
        return best

    def assignments(self, part, start, room):
        """Every way to run a part of the model on ``room`` GPUs: sets of (layer, place)."""
        if part is None:
            return {frozenset()}
        if isinstance(part, NonSeriesParallel):
            return {
                frozenset(zip(part.layers, ((count, start) for count in counts), strict=True))
                for counts in itertools.product(self._counts(room), repeat=len(part.layers))
            }
        if isinstance(part, ParallelBlock):
            found = set()
            for lanes in self._divisions(len(part.branches), room):
                ways = [
                    self.assignments(branch, start + first, width)
                    for branch, (first, width) in zip(part.branches, lanes, strict=True)
                ]
                found |= {frozenset().union(*parts) for parts in itertools.product(*ways)}
            return found
        pieces = [self.assignments(block, start, room) for block in (*part.blocks, part.tail)]
        pieces += [{frozenset({(layer, (count, start))}) for count in self._counts(room)} for layer in part.layers]
        return {frozenset().union(*parts) for parts in itertools.product(*pieces)}

    def _divisions(self, branches, room):
        """Per branch the first GPU and width of its group; groups are placed widest first, each at its first fit."""
        found = {((0, room),) * branches}
        for lane_of in itertools.product(range(branches), repeat=branches):
            lanes = max(lane_of) + 1
            if lanes == 1 or set(lane_of) != set(range(lanes)):
                continue
            for widths in itertools.product(self._counts(room), repeat=lanes):
                power = all(width & (width - 1) == 0 for width in widths)
                if sorted(widths, reverse=True) == list(widths) and (power or lanes == 2):
                    firsts = self._laid_out(widths, room)
                    if firsts:
                        found.add(tuple((firsts[lane], widths[lane]) for lane in lane_of))
        return found

    def _laid_out(self, widths, room):
        """First GPU of each group, within a node or from a node's start; None if it does not fit."""
        node = self.cluster.gpus_per_node
        taken, firsts = set(), []
        for width in widths:
            for first in range(room - width + 1):
                gpus = set(range(first, first + width))
                fits = first // node == (first + width - 1) // node if width <= node else first % node == 0
                # At the very start a lane lies as the block in sequence would, whatever the node.
                if not gpus & taken and (fits or first == 0):
                    taken |= gpus
                    firsts.append(first)
                    break
            else:
                return None
        return firsts

    def _walk(self, part, places, seconds):
        if part is None:
            return 0.0
        if isinstance(part, NonSeriesParallel):
            return sum(map(seconds, part.layers))
        if isinstance(part, ParallelBlock):
            lanes = Counter()
            for branch in part.branches:
                # Branches in one lane start on the same GPU, others do not.
                lanes[places[branch.layers[0]][1]] += self._walk(branch, places, seconds)
            return max(lanes.values())
        between = sum(self._walk(block, places, seconds) for block in (*part.blocks, part.tail))
        return between + sum(map(seconds, part.layers))

    def _time(self, index, places):
        """All seconds of a layer, and those of its forward pass."""
        layer = self.layers[index]
        key = index, places[index], *(places[source] for source in layer.predecessors)
        if key not in self._known:
            moves = sum(
                self.communication(places[source], places[index], size)
                for source, size in zip(layer.predecessors, layer.input_bytes, strict=True)
            )
            count = places[index][0]
            total = moves + self.compute(index, count) + self.synchronisation(index, places[index])
            forward = moves / 2 + self.profile.time(index, math.ceil(self.batch / count)).forward
            self._known[key] = total, forward
        return self._known[key]

    def _counts(self, room):
        return [count for count in self.gpu_counts if count <= room]

    def _owners(self, count):
        """The GPU of each sample."""
        return [gpu for gpu, shard in enumerate(np.array_split(range(self.batch), count)) for _ in shard]

    def _link(self, gpus):
        nodes = {gpu // self.cluster.gpus_per_node for gpu in (min(gpus), max(gpus))}
        return self.cluster.inside if len(nodes) == 1 else self.cluster.between


def counts_of(made):
    return tuple(layer.gpu_count for layer in made.layers)


def places_of(made):
    return [(layer.gpu_count, layer.gpus[0]) for layer in made.layers]


def check_against_the_definition(made, definition, limit):
    """A plan says what its own assignment costs, keeps its limit, and uses no GPU twice at once."""
    places = places_of(made)
    assert made.iteration_time == pytest.approx(definition.iteration_time(places), rel=1e-12)
    for layer, (count, start), time, amplification in zip(
        made.layers, places, definition.times(places), definition.amplifications(places), strict=True
    ):
        assert layer.gpus == tuple(range(start, start + count))
        assert start + count <= made.gpus
        assert layer.time == pytest.approx(time, rel=1e-12)
        assert layer.amplification == pytest.approx(amplification, rel=1e-12)
        assert limit is None or amplification <= limit * (1 + ROUNDING), layer.name


def join_under_its_limit():
    """A join that gains nothing from more GPUs, after two branches that do.

    Each transfer takes 0.3 ms. Under limit 1.5 the join (1 ms on one GPU) has 0.5 ms for transfers, so
    only one branch may end on four GPUs; alone, each of them would.
    """
    graph = make_graph([(), (0,), (0,), (1, 2)])
    times = [lambda b: 1e-4, lambda b: 0.25e-3 * b, lambda b: 0.1875e-3 * b, lambda b: 1e-3]
    link = Link(1e9, 0.15e-3, "made by hand")
    return profile_from_times(graph, times), Cluster(4, "made by hand", 4, link, link), 16


def join_of_three_under_its_limit():
    """As above with three branches, whose transfers take 0.3, 0.4 and 0.5 ms: taking the best one first is wrong.

    Of the 0.75 ms that the limit leaves, the third branch alone saves most for its transfer, but the
    first and the second together save more.
    """
    graph = make_graph([(), (0,), (0,), (0,), (1, 2, 3)], [(), (0,), (0,), (0,), (25_000 // 3, 50_000 // 3, 25_000)])
    times = [lambda b: 1e-4, *[lambda b: 0.3e-3 * b] * 2, lambda b: 0.35e-3 * b, lambda b: 1e-3]
    link = Link(1.5e9, 0.1e-3, "made by hand")
    return profile_from_times(graph, times), Cluster(4, "made by hand", 4, link, link), 16


def block_that_looks_faster_than_it_is():
    """Two layers side by side, of which one only has a forward pass and the other one only a backward pass.

        0 ─┬─ 1 ─┬─ 2 ─┬─ 4 ─┬─ 6     Seconds on one GPU: 2 s each for layers 2 and 3, which split perfectly,
           │     └─ 3 ─┘     │        10 ms for the others.
           └─ 5 ─────────────┘

    Side by side, on a GPU each, layers 2 and 3 take the longer of the two at least: 2 s. But forward and
    backward passes do not overlap, so it is 4 s. On two GPUs, in sequence, they take 2 s and 48 ms for
    layer 2's input; then layer 4 fetches as much if it is on one GPU (48 ms), or synchronises its gradients
    on two (30 ms). The bound of one GPU, 2 s, first rules out two GPUs, whose bound is 78 ms more.
    """
    edges = [(), (0,), (1,), (1,), (2, 3), (0,), (4, 5)]
    graph = make_graph(
        edges, [(), (0,), (3 * MB,), (0,), (3 * MB, 0), (0,), (0, 0)], [200 * MB, 200 * MB, 0, 0, 30 * MB, 0, 200 * MB]
    )
    steady, split = (0.01,) * len(BATCH_SIZES), tuple(batch / 8 for batch in BATCH_SIZES)
    none = (0.0,) * len(BATCH_SIZES)
    passes = [(steady, none), (steady, none), (split, none), (none, split), *[(steady, none)] * 3]
    measurements = [Measurement(f"signature{index}", *times, none) for index, times in enumerate(passes)]
    link = Link(1e9, 0.0, "made by hand")
    return make_profile(graph, measurements), Cluster(2, "made by hand", 2, link, link), 16


def tail_that_looks_cheaper_than_it_is():
    """A branch that forks and meets again only at the outer join, under a limit that permits no transfer.

    0 ─┬─ 1 ─┬─ 4     Layers 0 to 2 split perfectly, layer 4 not at all: it stays on one GPU, can fetch
       └─ 2 ─┤        nothing, and so keeps layers 1 and 2 on one GPU, and they layer 0. But seen from
    3 ───────┘        two GPUs, layers 1 and 2 are faster, and a branch that ends on one GPU costs no transfer.
    """
    graph = make_graph([(), (0,), (0,), (), (1, 2, 3)], [(), (4096,), (4096,), (), (4096, 4096, 0)])
    times = [*[lambda b: 1e-3 * b] * 3, lambda b: 1e-3, lambda b: 1e-3]
    return profile_from_times(graph, times), Cluster(2), 16


def test_a_bound_that_is_not_reached_excludes_no_plan():
    # A search that trusted the bound claimed 2.146 s to be the optimum.
    made = plan(*block_that_looks_faster_than_it_is())
    assert made.optimality == "exact"
    assert made.iteration_time == pytest.approx(5 * 0.01 + 2 + 0.048 + 0.03)
    assert counts_of(made) == (1, 1, 2, 2, 2, 1, 1)


def test_tail_that_the_limit_keeps_on_one_gpu_is_found():
    # A search that trusted the bound found no plan at all, though one GPU keeps every limit.
    made = plan(*tail_that_looks_cheaper_than_it_is(), 1.0)
    assert made.optimality == "exact"
    assert counts_of(made) == (1,) * 5


def branch_and_tail_of_equal_layers():
    """Two layers in a row, twice, all equal; the join reads both of the first two, and only the last of the others.

    0 ─┬─ 1 ─┬─ 4     So layer 1 is a tail of layer 0, but layers 2 and 3 are a branch.
       └─────┤
    2 ── 3 ──┘
    """
    graph = make_graph([(), (0,), (), (2,), (0, 1, 3)])
    layers = tuple(replace(layer, signature=f"signature{1 - index % 2}") for index, layer in enumerate(graph.layers))
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 + 1e-4 * b] + [lambda b: 1e-3] * 3)
    return replace(profile, graph=replace(graph, layers=layers)), Cluster(4), 16


def test_equal_layers_are_costed_once_only_where_their_ends_are_equal():
    # The search took layer 0 alone for a way through layers 2 and 3, and left layer 3 out of the plan.
    problem = branch_and_tail_of_equal_layers()
    made = plan(*problem, 1.5)
    assert made.optimality == "exact"
    assert made.iteration_time == pytest.approx(Definition(*problem).optima([1.5])[1.5], rel=1e-12)


@examples(150)
@given(problems(series_parallel_graphs(max_layers=6)))
@example(join_under_its_limit())
@example(join_of_three_under_its_limit())
@example(block_that_looks_faster_than_it_is())
@example(tail_that_looks_cheaper_than_it_is())
@example(branch_and_tail_of_equal_layers())
def test_search_finds_the_optimum_of_all_assignments(problem):
    definition = Definition(*problem)
    optima = definition.optima(LIMITS)
    for limit in LIMITS:
        made = plan(*problem, limit)
        assert made.optimality == "exact"
        assert made.iteration_time == pytest.approx(optima[limit], rel=1e-12), limit
        check_against_the_definition(made, definition, limit)


def test_a_join_whose_limit_permits_one_transfer_keeps_one_branch_on_its_gpus():
    made = plan(*join_under_its_limit(), 1.5)
    # The first branch runs on GPUs 2 and 3, beside the second one, which ends where the join is.
    assert places_of(made) == [(1, 0), (2, 2), (1, 0), (1, 0)]
    # Forward the slower one counts, backward (here only transfers) the first.
    assert made.iteration_time == pytest.approx(0.1e-3 + 3e-3 + 0.15e-3 + (0.3e-3 + 1e-3))


def test_a_join_whose_limit_permits_two_transfers_reads_both_branches_from_other_gpus():
    made = plan(*join_under_its_limit(), 1.6)
    assert places_of(made) == [(1, 0), (2, 2), (2, 0), (1, 0)]
    assert made.iteration_time == pytest.approx(0.1e-3 + (0.15e-3 + 2e-3 + 0.15e-3) + (0.6e-3 + 1e-3))


@examples(80)
@given(problems(tangled_graphs(max_layers=6)))
def test_any_graph_gets_a_plan_with_a_valid_bound(problem):
    definition = Definition(*problem)
    optima = definition.optima(LIMITS)
    for limit in LIMITS:
        made = plan(*problem, limit)
        check_against_the_definition(made, definition, limit)
        claim, *bound = made.optimality.split()
        assert claim in ("exact", "bound")
        factor = float(bound[0]) if bound else 1.0
        assert made.iteration_time >= optima[limit] * (1 - 1e-12)
        assert factor * optima[limit] >= made.iteration_time * (1 - 1e-12)


def dense_block(layers=6):
    """DenseNet's: each layer reads all layers before it."""
    edges = [tuple(range(index)) for index in range(layers)]
    return make_graph(edges, [[4096] * len(sources) for sources in edges], [2**20] * layers)


@pytest.mark.parametrize("limit", LIMITS)
def test_dense_block_is_planned_within_its_bound(limit):
    graph = dense_block()
    assert isinstance(decompose([layer.predecessors for layer in graph.layers]).blocks[-1], NonSeriesParallel)
    problem = profile_from_times(graph, [lambda b: 1e-3 + 1e-3 * b] * 6), Cluster(8), 16
    definition = Definition(*problem)
    made = plan(*problem, limit)
    optimum = definition.optima([limit])[limit]
    # A plan that meets the lower bound is the optimum, whatever the shape of the graph.
    factor = 1.0 if made.optimality == "exact" else float(made.optimality.removeprefix("bound "))
    assert factor * optimum >= made.iteration_time * (1 - 1e-12)
    assert made.iteration_time >= optimum * (1 - 1e-12)
    check_against_the_definition(made, definition, limit)


def test_join_pays_a_transfer_for_each_layer_of_a_region_that_it_reads():
    # Three transfers of 0.2 ms each do not fit into the 0.5 ms that the limit leaves; two would.
    graph = make_graph([(), (0,), (0, 1), (0, 1, 2), (1, 2, 3)])
    link = Link(1e9, 0.1e-3, "made by hand")
    problem = (
        profile_from_times(graph, [lambda b: 1e-3, *[lambda b: 1e-3 * b] * 3, lambda b: 1e-3]),
        Cluster(4, "made by hand", 4, link, link),
        16,
    )
    assert counts_of(plan(*problem, 1.7)) == (1, 4, 4, 4, 1)
    made = plan(*problem, 1.5)
    check_against_the_definition(made, Definition(*problem), 1.5)
    assert made.layers[-1].reshard == pytest.approx(0.4e-3)
    assert made.iteration_time == pytest.approx(Definition(*problem).optima([1.5])[1.5])


@examples(40)
@given(problems(series_parallel_graphs(max_layers=20), gpus=(8,)), st.sampled_from(LIMITS))
def test_more_gpus_never_slow_the_best_plan(problem, limit):
    profile, cluster, batch = problem
    # Powers of two, each of whose choices hold those before; the links stay the same.
    sizes = [Cluster(gpus, "drawn", cluster.gpus_per_node, cluster.inside, cluster.between) for gpus in (1, 2, 4, 8)]
    times = [plan(profile, size, batch, limit).iteration_time for size in sizes]
    for fewer, more in itertools.pairwise(times):
        assert more <= fewer * (1 + 1e-12)


def whole_nodes_synchronise_faster():
    """Of 14 samples, 7 GPUs have as few each as 8 and 9 do; 8 are two whole nodes, whose rings are shorter."""
    graph = make_graph([()], None, [2**28])
    links = Link(1e11, 1e-6, "made by hand"), Link(1e9, 1e-6, "made by hand")
    return profile_from_times(graph, [lambda b: 1.0 * b]), Cluster(12, "made by hand", 4, *links), 14


@examples(40)
@given(
    problems(series_parallel_graphs(max_layers=10), gpus=(12,)),
    st.sampled_from(LIMITS),
    st.sampled_from(["ring", "halving-doubling", "hierarchical", "best", "paper"]),
)
@example(whole_nodes_synchronise_faster(), None, "hierarchical")
def test_one_gpu_more_never_slows_the_best_plan_of_all_counts(problem, limit, model):
    profile, cluster, batch = problem
    times = []
    for gpus in range(1, cluster.gpus + 1):
        made = plan(profile, replace(cluster, gpus=gpus), batch, limit, gpu_counts="all", network_model=model)
        assert made.optimality == "exact"
        times.append(made.iteration_time)
    for fewer, more in itertools.pairwise(times):
        assert more <= fewer * (1 + 1e-12)


def test_extra_seconds_are_each_layers_own_though_the_layers_are_equal():
    # Two equal layers side by side, of which the second one pays 1 s for every GPU but one.
    graph = make_graph([(), (0,), (0,), (1, 2)])
    times = [lambda b: 1e-3, lambda b: 1e-2 * b, lambda b: 1e-2 * b, lambda b: 1e-3]
    costs = price(profile_from_times(graph, times), Network(Cluster(4)), 16, (1, 2, 4))
    equal = (*graph.layers[:2], replace(graph.layers[2], signature=graph.layers[1].signature), graph.layers[3])
    alike = replace(costs, graph=replace(graph, layers=equal))
    extra = np.array([[0.0] * 3, [0.0] * 3, [0.0, 1.0, 1.0], [0.0] * 3])
    found = search(alike, None, extra)
    assert found == search(costs, None, extra)
    assert found.choices[2] == 0
    assert found.iteration_time < 1


@examples(40)
@given(problems(series_parallel_graphs(max_layers=20)))
def test_a_looser_limit_never_slows_the_best_plan(problem):
    times = [plan(*problem, limit).iteration_time for limit in (1.0, 1.1, 1.2, 1.5, 2.0, 4.0, 8.0, None)]
    for tighter, looser in itertools.pairwise(times):
        assert looser <= tighter * (1 + 1e-12)


@examples(40)
@given(
    problems(st.one_of(series_parallel_graphs(max_layers=20), tangled_graphs(max_layers=10))), st.sampled_from(LIMITS)
)
def test_simulation_takes_the_planned_time_and_conserves_gpu_seconds(problem, limit):
    made = plan(*problem, limit)
    result = simulate(made)
    assert result.iteration_time == pytest.approx(made.iteration_time, rel=1e-9)
    assert result.gpu_seconds == pytest.approx(made.gpu_seconds, rel=1e-9)
    assert result.gpu_seconds + result.idle_gpu_seconds == pytest.approx(made.gpus * made.iteration_time, rel=1e-9)
    for gpu in range(made.gpus):
        held = sum(layer.time for layer in made.layers if gpu in layer.gpus)
        assert result.timeline.busy(gpu) == pytest.approx(held, rel=1e-9, abs=1e-15)
        spans = sorted((span for span in result.timeline.spans if span.gpu == gpu), key=lambda span: span.start)
        # No GPU does two things at once, and none is forgotten between two.
        assert all(before.end == pytest.approx(after.start, abs=1e-15) for before, after in itertools.pairwise(spans))
