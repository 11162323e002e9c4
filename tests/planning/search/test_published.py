"""The published search against a reference implementation of the paper's text in plain loops and cases by hand."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link, find_cluster
from deeppool.collectives.layout import Layout
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.errors import InvalidValueError
from deeppool.graph.series_parallel import NonSeriesParallel, decompose
from deeppool.planning.plan import Plan, PublishedClaim
from deeppool.planning.request import gpu_counts_to_search
from deeppool.planning.search.optimality import optimality_factor
from deeppool.planning.search.published import merge, new_set_terms, search_published
from deeppool.profiling.shipped import find_profile
from deeppool.simulation.plan.simulate import simulate
from tests.planning.search.test_search import LIMITS, ROUNDING, Definition, counts_of, places_of
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import (
    chain_graphs,
    clusters,
    make_graph,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
)


def cost_table(profile, cluster, batch):
    return price(profile, Network(cluster), batch, gpu_counts_to_search(cluster.gpus, batch))


# -- Algorithm 1 ------------------------------------------------------------------------------------


def algorithm_1(costs, amp_limit):
    """The paper's pseudo-code line by line: (GPU count per layer, S of the end)."""
    layers, counts = costs.graph.layers, costs.gpu_counts
    number = {g: k for k, g in enumerate(counts)}

    def comp(i, g):
        return costs.compute[i - 1, number[g]]

    def sync(i, g):
        return costs.sync[i - 1, number[g]]

    def comm(i, h, j, g):
        return costs.comm(layers[j - 1].input_bytes[0])[number[h], number[g]] if i else 0.0

    def amp(i, g):
        return table_t[i, g] * g / comp(i, 1) if i else 0.0

    table_s = {(0, g): 0.0 for g in counts}
    table_t, before = {}, {}
    for i in range(1, len(layers) + 2):
        end = i == len(layers) + 1  # "backtrace from L_L … while obeying the amplification limit"
        for g in counts:
            best_amp = best_s = best_t = math.inf
            for h in counts:
                move = 0.0 if end else comm(i - 1, h, i, g)
                if amp(i - 1, h) <= max(best_amp, amp_limit) and table_s[i - 1, h] + move <= best_s:
                    best_s = table_s[i - 1, h] + move
                    best_t = move
                    best_amp = min(best_amp, amp(i - 1, h))
                    before[i, g] = h
            if not end:
                table_s[i, g] = best_s + comp(i, g) + sync(i, g)
                table_t[i, g] = best_t + comp(i, g) + sync(i, g)
    path = [before[len(layers) + 1, 1]]
    for i in range(len(layers), 1, -1):
        path.insert(0, before[i, path[0]])
    return tuple(path), table_s[len(layers), path[-1]]


def tolerant(limit):
    """A layer exactly at its limit keeps it, whatever the order of the additions."""
    return math.inf if limit is None else limit * (1 + ROUNDING)


@examples(300)
@given(problems(chain_graphs(max_layers=12), gpus=(1, 2, 3, 8, 16)), st.sampled_from(LIMITS))
def test_a_chain_is_planned_as_algorithm_1_is_printed(problem, limit):
    costs = cost_table(*problem)
    path, seconds = algorithm_1(costs, tolerant(limit))
    found = search_published(costs, limit)
    assert tuple(costs.gpu_counts[choice] for choice in found.choices) == path
    assert found.claim.iteration_time == seconds
    assert found.claim.gpus == max(path)


def costs_from_tables(graph, *tables, latency):
    """Layers timed in milliseconds on 1, 2 and 4 GPUs; any transfer takes twice the latency, there and back."""
    link = Link(1e9, latency * 1e-3, "made by hand")
    times = [lambda batch, table=table: 1e-3 * table[{16: 0, 8: 1, 4: 2}[batch]] for table in tables]
    return profile_from_times(graph, times, (4, 8, 16)), Cluster(4, "made by hand", 4, link, link), 16


def breaks_its_limit():
    """A layer that splits for free, then one of 1 ms that gains nothing; a transfer takes 0.6 ms; limit 1.5.

    S[2][1] comes from four GPUs, 4 + 0.6 + 1 = 5.6 ms, so T[2][1] = 1.6 ms and Amp(2, 1) = 1.6. At the end one
    GPU is taken first, over the limit or not; two (Amp 3.2) and four (Amp 4) are further over. The only plan
    under the limit is one GPU for both: 17 ms.
    """
    return costs_from_tables(make_graph([(), (0,)]), (16, 8, 4), (1, 1, 1), latency=0.3)


def misses_the_optimum():
    """Four GPUs before are best for two GPUs here, and put them over the limit of 1.5; a transfer takes 0.6 ms.

    S[2][2] = min(4 + 0.6, 2.4, 1.4 + 0.6) + 7 fixes four GPUs before, so T[2][2] = 7.6 and Amp(2, 2) = 1.52; four
    GPUs have Amp 2.8. That leaves one GPU: 1.4 + 0.6 + 10 = 12 ms. But two and two have no transfer: Amp 1.4, 9.4 ms.
    """
    return costs_from_tables(make_graph([(), (0,)]), (4, 2.4, 1.4), (10, 7, 7), latency=0.3)


def test_the_predecessor_fixed_before_the_limit_breaks_it():
    made = plan(*breaks_its_limit(), 1.5, search="published")
    assert counts_of(made) == (4, 1)
    assert made.iteration_time == pytest.approx(5.6e-3)
    assert made.over_limit == ("layer1",)
    assert made.layers[1].amplification == pytest.approx(1.6)
    assert made.optimality == "heuristic"
    exact = plan(*breaks_its_limit(), 1.5)
    assert (counts_of(exact), exact.over_limit) == ((1, 1), ())
    assert exact.iteration_time == pytest.approx(17e-3)


def test_the_predecessor_fixed_before_the_limit_misses_the_optimum():
    made = plan(*misses_the_optimum(), 1.5, search="published")
    assert (counts_of(made), made.over_limit) == ((4, 1), ())
    assert made.iteration_time == pytest.approx(12e-3)
    exact = plan(*misses_the_optimum(), 1.5)
    assert counts_of(exact) == (2, 2)
    assert exact.iteration_time == pytest.approx(9.4e-3)


@pytest.mark.parametrize(("limit", "count"), [(None, 4), (4.0, 4), (2.0, 2), (1.0, 1)])
def test_of_equally_fast_counts_the_largest_under_the_limit_is_taken(limit, count):
    # "<=" in both of the paper's conditions: a layer that gains nothing takes all the GPUs that it may.
    made = plan(*costs_from_tables(make_graph([()]), (1, 1, 1), latency=0.3), limit, search="published")
    assert counts_of(made) == (count,)


# -- the graph reduction ----------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """One cell of S and T with the choices behind it."""

    seconds: float
    amp: float
    fetch: float
    choices: dict
    gpus: int


@dataclass(frozen=True)
class Transition:
    seconds: float
    arrival: float
    fetch: float
    choices: dict
    gpus: int


class Reduction:
    """Section 4.2 in plain loops over one GPU count of the branching layer after the other."""

    def __init__(self, problem, limit):
        self.costs = cost_table(*problem)
        self.limit = tolerant(limit)
        self.counts = self.costs.gpu_counts

    def plan(self):
        states = self.linear(decompose([layer.predecessors for layer in self.costs.graph.layers]), -1, None)
        last = self.best([(g, state, 0.0) for g, state in states.items()])
        return states[last]

    def best(self, candidates):
        """Algorithm 1's inner loop: (h, state of the layer before, transition) → h."""
        best_amp = best_s = math.inf
        chosen = None
        for h, state, seconds in candidates:
            if state.amp <= max(best_amp, self.limit) and state.seconds + seconds <= best_s:
                best_s, best_amp, chosen = state.seconds + seconds, min(best_amp, state.amp), h
        return chosen

    def linear(self, tree, fork, start):
        """GPU count of the last layer → state, with the branching layer on ``start`` GPUs."""
        states = {start: State(0.0, 0.0, 0.0, {}, 0)}
        previous = fork
        for layer, block in zip(tree.layers, tree.blocks, strict=True):
            found = {}
            for g in self.counts:
                ways = {h: self.transition(block, previous, h, layer, g) for h in states}
                h = self.best([(h, states[h], transition.seconds) for h, transition in ways.items()])
                found[g] = self.then(states[h], ways[h], layer, g, first=previous == fork)
            states, previous = found, layer
        return states

    def then(self, state, transition, layer, g, first):
        compute, sync = self.layer_seconds(layer, g)
        return State(
            state.seconds + transition.seconds + compute + sync,
            (transition.arrival + compute + sync) * g / self.layer_seconds(layer, 1)[0],
            transition.fetch if first else state.fetch,
            {**state.choices, **transition.choices, layer: g},
            max(state.gpus, transition.gpus, g),
        )

    def transition(self, block, fork, g, join, h):
        if block is None:
            near, far = self.move(fork, g, join, h)
            return Transition(near, near, far - near, {}, 0)
        branches = []
        region = isinstance(block, NonSeriesParallel)
        for branch in [block] if region else block.branches:
            states = (
                {m: self.region(block, fork, g, m) for m in self.counts} if region else self.linear(branch, fork, g)
            )
            ends = branch.layers if region else branch.layers[-1:]
            sources = sorted(s for s in self.costs.graph.layers[join].predecessors if s in ends)
            near = {m: sum(self.move(s, m, join, h)[0] for s in sources) for m in states}
            far = {m: sum(self.move(s, m, join, h)[1] for s in sources) for m in states}
            tails = {m: Transition(0.0, 0.0, 0.0, {}, 0) for m in states}
            if not region and branch.tail:
                tails = {m: self.transition(branch.tail, branch.layers[-1], m, join, h) for m in states}
            rest = {m: max(near[m], tails[m].seconds) for m in states}
            m = self.best([(m, states[m], rest[m]) for m in states])
            move = states[m].fetch + (far[m] - near[m])
            whole = replace(
                states[m],
                choices={**states[m].choices, **tails[m].choices},
                gpus=max(states[m].gpus, tails[m].gpus),
            )
            branches.append((states[m].seconds + rest[m], move, near[m] + tails[m].arrival, whole))
        elapsed, shared, extra = 0.0, 0, 0
        for place, (alone, move, _, state) in enumerate(sorted(branches, key=lambda branch: -branch[0])):
            if place and move <= elapsed and alone + move <= self.limit * alone:
                elapsed, extra = max(elapsed, alone + move), extra + state.gpus
            else:
                elapsed, shared = elapsed + alone, max(shared, state.gpus)
        choices = {layer: count for branch in branches for layer, count in branch[3].choices.items()}
        arrival, fetch = sum(branch[2] for branch in branches), sum(branch[3].fetch for branch in branches)
        if fork in self.costs.graph.layers[join].predecessors if region else block.direct:
            near, far = self.move(fork, g, join, h)
            elapsed, arrival, fetch = max(elapsed, near), arrival + near, fetch + far - near
        return Transition(elapsed, arrival, fetch, choices, shared + extra)

    def region(self, region, fork, start, g):
        seconds = fetch = worst = 0.0
        for layer in region.layers:
            near = far = 0.0
            if fork in (self.costs.graph.layers[layer].predecessors or (-1,)):
                near, far = self.move(fork, start, layer, g)
            spent = near + sum(self.layer_seconds(layer, g))
            seconds, fetch = seconds + spent, fetch + far - near
            worst = max(worst, spent * g / self.layer_seconds(layer, 1)[0])
        return State(seconds, worst, fetch, dict.fromkeys(region.layers, g), g)

    def layer_seconds(self, layer, g):
        k = self.counts.index(g)
        return self.costs.forward[layer, k] + self.costs.backward[layer, k], self.costs.sync[layer, k]

    def move(self, source, g, layer, h):
        """Seconds there and back on GPUs 0 …, and to GPUs that hold nothing yet."""
        if source == -1:
            return 0.0, 0.0
        reader = self.costs.graph.layers[layer]
        size = reader.input_bytes[reader.predecessors.index(source)]
        batch, network = self.costs.global_batch, self.costs.network
        near = network.reshard_time(Layout(tuple(range(g)), batch), Layout(tuple(range(h)), batch), size)
        far = network.reshard_time(Layout(tuple(range(g)), batch), Layout(tuple(range(g, g + h)), batch), size)
        return 2 * near, 2 * far


BLOCKS = {
    "two branches": [(), (0,), (0,), (1, 2)],
    "two and a direct edge": [(), (0,), (0,), (0, 1, 2)],
    # The branching layer opens the outer block and the one in front of layer 3.
    "a block first in a branch": [(), (0,), (0,), (1, 2), (0,), (3, 4)],
    "a block with a direct edge first in a branch": [(), (0,), (0, 1), (0,), (2, 3)],
    "a block inside a branch": [(), (0,), (1,), (1,), (2, 3), (0,), (4, 5)],
    "a region first in a branch": [(), (0,), (0, 1), (1, 2), (2, 3), (0,), (4, 5)],
    "a region before a layer": [(), (0,), (0, 1), (1, 2), (2, 3), (4,)],
}


@st.composite
def blocks_with_moves_as_long_as_layers(draw):
    """Problems in which a new set of GPUs for a branch costs about what it saves."""
    edges = draw(st.sampled_from(list(BLOCKS.values())))
    size = st.sampled_from([0, 20_000, 60_000, 200_000])
    graph = make_graph(edges, [[draw(size) for _ in sources] for sources in edges])
    seconds = st.floats(0.2, 8)
    shares = st.sampled_from([(1, 1, 1), (1, 0.5, 0.25), (1, 0.7, 0.6), (1, 1.2, 1.5)])
    tables = [[alone * share for share in draw(shares)] for alone in [draw(seconds) for _ in edges]]
    return costs_from_tables(graph, *tables, latency=draw(st.sampled_from([0.0, 0.1, 0.5])))


@examples(400)
@given(blocks_with_moves_as_long_as_layers(), st.sampled_from(LIMITS))
def test_a_new_set_of_gpus_is_chosen_as_in_section_4_2(problem, limit):
    check_reduction(problem, limit)


# Sizes, milliseconds on 1, 2 and 4 GPUs, latency: what samples take to a new set decides whether the region gets one.
REGIONS_THAT_MOVE = (
    (
        [[], [20_000], [0, 0], [0, 200_000], [200_000, 200_000], [200_000], [20_000, 200_000]],
        [
            *((3.8, 4.56, 5.7), (0.64, 0.45, 0.38), (4.78, 2.39, 1.2), (2.54, 1.78, 1.52), (4.82, 5.78, 7.23)),
            *((7.06, 8.47, 10.59), (6.86, 4.8, 4.12)),
        ],
        0.1,
    ),
    (
        [[], [0], [0, 0], [200_000, 200_000], [60_000, 20_000], [0], [60_000, 60_000]],
        [
            *((6.73, 8.07, 10.09), (6.82, 3.41, 1.71), (2.64, 1.32, 0.66), (0.32, 0.16, 0.08), (0.45, 0.45, 0.45)),
            *((5.69, 6.82, 8.53), (2.44, 1.71, 1.46)),
        ],
        0.1,
    ),
    (
        [[], [20_000], [0, 60_000], [20_000, 0], [60_000, 0], [60_000], [20_000, 0]],
        [
            *((5.85, 4.1, 3.51), (4.72, 2.36, 1.18), (3.89, 1.94, 0.97), (0.37, 0.18, 0.09), (5.61, 2.81, 1.4)),
            *((7.96, 9.55, 11.94), (2.59, 2.59, 2.59)),
        ],
        0.5,
    ),
)


@pytest.mark.parametrize(("sizes", "tables", "latency"), REGIONS_THAT_MOVE)
def test_a_region_first_in_a_branch_moves_with_its_samples(sizes, tables, latency):
    graph = make_graph(BLOCKS["a region first in a branch"], sizes)
    check_reduction(costs_from_tables(graph, *tables, latency=latency), None)


@examples(200)
@given(
    problems(st.one_of(series_parallel_graphs(max_layers=9), tangled_graphs(max_layers=6)), gpus=(1, 2, 3, 4, 8)),
    st.sampled_from(LIMITS),
)
def test_branches_are_reduced_as_in_section_4_2(problem, limit):
    check_reduction(problem, limit)


def check_reduction(problem, limit):
    costs = cost_table(*problem)
    expected = Reduction(problem, limit).plan()
    found = search_published(costs, limit)
    assert {layer: costs.gpu_counts[choice] for layer, choice in enumerate(found.choices)} == expected.choices
    assert found.claim.iteration_time == pytest.approx(expected.seconds, rel=1e-12)
    assert found.claim.gpus == expected.gpus


def two_branches(latency):
    """A layer of 1 ms, branches of 16 and 12 ms that split for free, a joining layer of 1 ms."""
    graph = make_graph([(), (0,), (0,), (1, 2)])
    return costs_from_tables(graph, (1, 1, 1), (16, 8, 4), (12, 6, 3), (1, 1, 1), latency=latency)


def test_branches_side_by_side_use_more_gpus_than_there_are():
    """Free transfers: each branch on four GPUs of its own, 1 + max(4, 3) + 1 ms on 8 GPUs; the cluster has four."""
    made = plan(*two_branches(latency=0.0), search="published")
    assert counts_of(made) == (4, 4, 4, 4)
    assert made.claim.iteration_time == pytest.approx(6e-3)
    assert made.claim.gpus == 8
    assert made.gpus == 4
    # These GPUs do not exist: on four, the branches run in sequence.
    assert sum(layer.time for layer in made.layers) == pytest.approx(9e-3)


def test_a_branch_stays_on_the_same_gpus_when_moving_it_takes_longer_than_the_critical_one():
    """A move there and back takes 4.4 ms twice, once to the new set and once from it: more than the 4 ms to hide in."""
    made = plan(*two_branches(latency=2.2), search="published")
    assert counts_of(made) == (4, 4, 4, 4)
    assert made.claim.iteration_time == pytest.approx(9e-3)
    assert made.claim.gpus == 4


@pytest.mark.parametrize(
    ("times", "moves", "limit", "elapsed", "beside"),
    [
        # Two on a new set, twice as long as without: at the limit. One would take four times as long: it waits.
        ([5, 2, 1], [9, 2, 3], 2.0, 6, [False, True, False]),
        # The critical branch is the longest one, wherever it stands.
        ([1, 5, 2], [3, 9, 2], 2.0, 6, [False, False, True]),
        # A new set may become critical itself, while that is faster than one after another.
        ([3, 2.5], [0, 1], 2.0, 3.5, [False, True]),
        # Moving takes longer than all that it could hide behind.
        ([3, 2], [0, 3.5], math.inf, 5, [False, False]),
        ([3, 2, 3.4], [0, 3.5, 0], math.inf, 5.4, [True, False, False]),
    ],
)
def test_a_branch_gets_a_new_set_where_that_is_no_slower_and_within_the_limit(times, moves, limit, elapsed, beside):
    found, sets = merge(np.array(times, dtype=float), np.array(moves, dtype=float), limit)
    assert float(found) == elapsed
    assert sets.tolist() == beside


@examples(60)
@given(clusters(), st.integers(8, 40), st.sampled_from([1, 4096]), st.sampled_from(["ring", "paper"]))
def test_moves_to_a_new_set_cost_as_much_as_any_transfer(cluster, batch, size, model):
    profile = profile_from_times(make_graph([()]), [lambda b: 1.0 * b])
    network = Network(cluster, model)
    counts = gpu_counts_to_search(cluster.gpus, batch)
    latency, per_byte = new_set_terms(price(profile, network, batch, counts))
    for i, g in enumerate(counts):
        for j, h in enumerate(counts):
            layouts = Layout(tuple(range(g)), batch), Layout(tuple(range(g, g + h)), batch)
            seconds = network.reshard_time(*layouts, size)
            assert latency[i, j] + size * per_byte[i, j] == pytest.approx(seconds, rel=1e-12)


# -- against the definition and the exact search ----------------------------------------------------

any_graph = st.one_of(chain_graphs(), series_parallel_graphs(max_layers=9), tangled_graphs(max_layers=7))


@examples(100)
@given(problems(chain_graphs(max_layers=12)), st.sampled_from(LIMITS))
def test_on_a_chain_the_claimed_time_is_exact_and_within_the_limit_not_below_the_optimum(problem, limit):
    made, exact = plan(*problem, limit, search="published"), plan(*problem, limit)
    truth = Definition(*problem).iteration_time(places_of(made))
    assert made.claim.iteration_time == pytest.approx(truth, rel=1e-12)
    assert made.iteration_time == pytest.approx(truth, rel=1e-12)
    assert made.claim.gpus == max(counts_of(made)) <= made.gpus
    assert made.over_limit or made.iteration_time >= exact.iteration_time * (1 - 1e-12)
    if limit is None:
        # Without a limit Algorithm 1 is a shortest path.
        assert made.iteration_time == pytest.approx(exact.iteration_time, rel=1e-12)


@examples(100)
@given(problems(any_graph), st.sampled_from(LIMITS))
def test_exactly_the_layers_over_the_limit_are_listed(problem, limit):
    made = plan(*problem, limit, search="published")
    amplifications = Definition(*problem).amplifications(places_of(made))
    over = [layer.name for layer, value in zip(made.layers, amplifications, strict=True) if value > tolerant(limit)]
    assert list(made.over_limit) == over
    exact = plan(*problem, limit)
    assert (exact.search, exact.over_limit, exact.claim) == ("exact", (), None)


@examples(100)
@given(problems(any_graph), st.sampled_from(LIMITS))
def test_branches_side_by_side_are_never_claimed_slower_than_one_after_another(problem, limit):
    made = plan(*problem, limit, search="published")
    one_after_another = [(count, 0) for count in counts_of(made)]
    assert made.claim.iteration_time <= sum(Definition(*problem).times(one_after_another)) * (1 + 1e-12)
    # Which is how they run where nothing better can be had.
    assert made.iteration_time <= sum(Definition(*problem).times(one_after_another)) * (1 + 1e-12)
    assert made.claim.gpus >= max(counts_of(made))


@examples(100)
@given(
    problems(st.one_of(chain_graphs(), series_parallel_graphs(max_layers=9))), st.sampled_from(LIMITS), st.booleans()
)
def test_the_exact_plan_is_never_slower_at_the_amplification_that_the_published_one_really_has(problem, limit, as_run):
    """The published plan may exceed its limit: the search then gets as much as its worst layer really spends."""
    published = plan(*problem, limit, search="published", overlap_sync=as_run)
    spent = max(1.0, *Definition(*problem).amplifications(places_of(published)))
    made = plan(*problem, spent, overlap_sync=as_run)
    assert made.over_limit == ()
    factor = optimality_factor(made.optimality) if as_run else 1.0
    assert made.iteration_time <= published.iteration_time * factor * (1 + 1e-12)


def test_layers_of_one_signature_may_each_be_over_the_limit_by_their_own_transfers():
    """Blocks of ResNet-50 are equal; the transfer into only one of them breaks the limit."""
    made = plan(find_profile("resnet50-h200"), find_cluster("dgx-h200", 4), 16, 1.2, search="published")
    assert made.over_limit
    assert math.isfinite(made.iteration_time)


# -- as a plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [breaks_its_limit(), two_branches(latency=0.0)])
def test_a_published_plan_can_be_simulated_saved_and_read_back(tmp_path, problem):
    made = plan(*problem, 1.5, search="published")
    assert simulate(made).iteration_time == pytest.approx(made.iteration_time)
    assert serialization.read(serialization.write(made, tmp_path / "plan.json"), Plan) == made


def test_a_published_plan_that_does_not_fit_says_so():
    # 3 MB of parameters, gradients and momentum, and 8 x 1 + 16 x 3 MB of activations.
    graph = make_graph([(), (0,)], [(), (0,)], [0, 10**6], [10**6, 3 * 10**6])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 if b == 16 else 2e-3])
    tight, enough = (plan(profile, Cluster(2), 16, search="published", memory=size) for size in (50e6, 60e6))
    assert "caution: GPU 0 needs 56.3 MiB and has 47.7 MiB: the published search does not look at memory" in str(tight)
    assert enough.layers == tight.layers
    assert "memory" not in str(enough)


def test_a_plan_saved_before_there_was_a_choice_of_search_is_an_exact_one(tmp_path):
    made = plan(*breaks_its_limit(), 1.5)
    document = serialization.to_json(made)
    for field in ("search", "over_limit", "claim"):
        del document[field]
    assert serialization.from_json(document, Plan, tmp_path / "plan.json") == made


def test_a_published_plan_prints_its_claimed_time_in_the_same_line():
    made = plan(*two_branches(latency=0.0), search="published")
    claim = "heuristic; the published search claims 6 ms on 8 GPUs at once, and 0 of 4 layers are over the limit"
    assert claim in str(made)
    assert "\n" not in str(made)
    made = replace(made, claim=PublishedClaim(1.0, 2), over_limit=("layer2",))
    assert "claims 1 s on 2 GPUs at once, and 1 of 4 layers are over the limit" in str(made)


def test_a_limit_on_the_iteration_is_rejected():
    with pytest.raises(
        InvalidValueError, match=r"limit_scope must be 'layer' .* got 'iteration': .*use search='exact'"
    ):
        plan(*breaks_its_limit(), 1.5, search="published", limit_scope="iteration")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"search": "greedy"}, "search must be one of exact, published, got 'greedy'"),
        ({"limit_scope": "iterations"}, "limit_scope must be one of layer, iteration, got 'iterations'"),
        ({"gpu_counts": "power"}, "gpu_counts must be one of powers, all, got 'power'"),
        ({"network_model": "rings"}, "network_model must be one of ring, .*, paper, got 'rings'"),
    ],
)
def test_an_unknown_choice_raises_with_the_known_ones(choice, message):
    with pytest.raises(InvalidValueError, match=message):
        plan(*breaks_its_limit(), 1.5, **choice)
