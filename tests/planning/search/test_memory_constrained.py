"""Plans that fit, against every assignment there is."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.best_buckets import with_best_buckets
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.request import gpu_counts_to_search
from deeppool.planning.search import memory_constrained
from deeppool.planning.search.optimality import certificate
from deeppool.planning.search.search import SearchResult, search
from tests.planning.evaluate.iteration_events import iteration_with_overlap
from tests.planning.evaluate.test_memory import Count, graphs_with_memory
from tests.planning.search.test_search import ROUNDING, Definition, counts_of
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import (
    chain_graphs,
    make_graph,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
)

LIMITS = (None, 1.2, 2.0, 6.0)
MB = 10**6


def problems_with_memory(graphs):
    """(profile, cluster, global batch) of layers that keep something for their backward."""
    return problems(graphs_with_memory(graphs))


class AllAssignments:
    """All assignments of a problem: iteration time, worst amplification, GPU-seconds, peak memory."""

    def __init__(self, problem, overlap=False):
        profile, cluster, batch = problem
        costs = with_best_buckets(price(profile, Network(cluster), batch, gpu_counts_to_search(cluster.gpus, batch)))
        self.overlap = overlap
        self.buckets = costs.buckets
        definition = Definition(*problem).with_buckets(costs.buckets)
        count = Count(profile.graph, batch, "momentum", profile.precision != "fp32")
        alone = [definition.compute(index, 1) for index in range(len(profile.graph.layers))]
        self.single = sum(alone)
        self.found = []
        self.branches = False
        for assignment in definition.assignments(definition.tree, 0, definition.cluster.gpus):
            places = [place for _, place in sorted(assignment)]
            sets = [tuple(range(start, start + g)) for g, start in places]
            spent = [time * g for time, (g, _) in zip(definition.times(places), places, strict=True)]
            worst = max(held / time for held, time in zip(spent, alone, strict=True))
            peak = max(sum(count.on(gpu, sets)) for gpu in range(definition.cluster.gpus))
            self.branches |= any(start for _, start in places)
            time, work = definition.iteration_time(places), sum(spent)
            if overlap:
                time = iteration_with_overlap(definition, places)[0]
                options = tuple(costs.gpu_counts.index(g) for g, _ in places)
                work = Placement(costs, options, tuple(start for _, start in places)).gpu_seconds
            self.found.append((time, worst, work, peak))

    def within(self, limit, scope):
        """Time and peak of each assignment that keeps a limit."""
        for time, worst, spent, peak in self.found:
            kept = worst if scope == "layer" else spent / self.single
            if limit is None or kept <= limit * (1 + ROUNDING):
                yield time, peak


def check(problem, limit, scope, memory, all_assignments):
    """Checks that a plan fits, keeps its limit and its bound, or that its refusal is right."""
    fitting = [time for time, peak in all_assignments.within(limit, scope) if peak <= memory]
    try:
        made = plan(*problem, limit, limit_scope=scope, memory=memory, overlap_sync=all_assignments.overlap)
    except PlanError as error:
        event("refused")
        # With a limit on the whole iteration or copies in the way it may have to give up; it then says so.
        assert not fitting or " was found to fit: " in str(error)
        # Where only branches side by side would fit, nothing is claimed.
        assert all_assignments.branches or not (limit is None and fitting)
        return None
    claim, *bound = made.optimality.split()
    factor = float(bound[0]) if bound else 1.0
    optimum = min(fitting)
    event("the fastest" if made.iteration_time <= optimum * (1 + ROUNDING) else "not the fastest")
    event(claim)
    assert made.memory[0].total <= memory
    assert made.iteration_time <= factor * optimum * (1 + ROUNDING)
    # Data parallelism may be faster in buckets that are not searched.
    assert optimum * (1 - ROUNDING) <= made.iteration_time or made.buckets != all_assignments.buckets
    return made


@pytest.mark.slow
@examples(100)
@given(
    st.one_of(
        st.tuples(problems_with_memory(series_parallel_graphs(max_layers=5)), st.sampled_from(["layer", "iteration"])),
        st.tuples(problems_with_memory(tangled_graphs(max_layers=5)), st.just("layer")),
    ),
    st.sampled_from(LIMITS),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.booleans(),
)
def test_a_plan_fits_and_its_bound_is_valid_among_all_assignments(problem_and_scope, limit, shares, overlap):
    problem, scope = problem_and_scope
    all_assignments = AllAssignments(problem, overlap)
    peaks = [peak for _, peak in all_assignments.within(None, "layer")]
    for share in shares:
        memory = min(peaks) * (1 - share) + max(peaks) * share
        if memory > 0:
            check(problem, limit, scope, memory, all_assignments)


def without_copies(problem):
    """Returns the problem with transfers of no bytes."""
    profile, cluster, batch = problem
    layers = tuple(replace(x, input_bytes=(0,) * len(x.input_bytes)) for x in profile.graph.layers)
    return replace(profile, graph=replace(profile.graph, layers=layers)), cluster, batch


def corners(points):
    """The lower left convex hull of (time, peak) points, from the fastest to the smallest."""
    found = []
    for time, peak in sorted(points, key=lambda point: (point[1], point[0])):
        if found and time >= found[-1][0]:
            continue
        while len(found) > 1:
            (t0, p0), (t1, p1) = found[-2:]
            if (t1 - t0) * (peak - p0) <= (time - t0) * (p1 - p0) * (1 + 1e-9):
                break
            found.pop()
        found.append((time, peak))
    return found


@examples(80)
@given(problems_with_memory(chain_graphs(max_layers=5)), st.sampled_from(LIMITS))
def test_with_the_memory_of_a_hull_corner_the_plan_is_the_optimum_and_marked_exact(problem, limit):
    problem = without_copies(problem)
    for time, peak in corners(AllAssignments(problem).within(limit, "layer")):
        if peak:
            made = plan(*problem, limit, memory=peak)
            assert made.iteration_time == pytest.approx(time, rel=1e-9)
            assert made.optimality == "exact"


@examples(60)
@given(problems_with_memory(chain_graphs(max_layers=5)), st.sampled_from(LIMITS))
def test_a_plan_is_refused_exactly_when_no_assignment_fits(problem, limit):
    # Of two plans that keep the same activations one may hold fewer copies, and that is not searched for.
    bare = without_copies(problem)
    all_assignments = AllAssignments(bare)
    least = min(peak for _, peak in all_assignments.within(limit, "layer"))
    if least > 0:
        assert plan(*bare, limit, memory=least).memory[0].total == least
    if least > 1:
        with pytest.raises(PlanError, match=r"no plan of drawn .*fits: "):
            plan(*bare, limit, memory=least - 1)


@examples(40)
@given(problems_with_memory(series_parallel_graphs(max_layers=8)), st.sampled_from(LIMITS))
def test_enough_memory_leaves_the_plan_unchanged(problem, limit):
    free = plan(problem[0], replace(problem[1], memory=None), problem[2], limit)
    if free.memory[0].total:
        enough = plan(*problem, limit, memory=free.memory[0].total)
        assert counts_of(enough) == counts_of(free)
        assert enough.optimality == free.optimality == "exact"


# -- extra seconds in the search --------------------------------------------------------------------


@examples(150)
@given(problems(series_parallel_graphs(max_layers=6), gpus=(2, 3, 4)), st.sampled_from(LIMITS), st.data())
def test_extra_seconds_count_only_in_the_compared_times(problem, limit, data):
    profile, cluster, batch = problem
    counts = gpu_counts_to_search(cluster.gpus, batch)
    costs = replace(price(profile, Network(cluster), batch, counts), overlap=False)
    seconds = st.lists(st.sampled_from([0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1]), min_size=len(counts), max_size=len(counts))
    extra = np.array([data.draw(seconds) for _ in profile.graph.layers])
    found = search(costs, limit, extra, side_by_side=False)
    definition = Definition(*problem)

    def value(choices):
        times = definition.times([(counts[choice], 0) for choice in choices])
        return sum(times) + sum(extra[index, choice] for index, choice in enumerate(choices))

    def keeps(choices):
        found = definition.amplifications([(counts[choice], 0) for choice in choices])
        return limit is None or max(found) <= limit * (1 + ROUNDING)

    every = itertools.product(range(len(counts)), repeat=len(extra))
    assert keeps(found.choices)
    assert value(found.choices) == pytest.approx(min(value(c) for c in every if keeps(c)), rel=1e-12)
    assert found.iteration_time == pytest.approx(
        sum(definition.times([(counts[c], 0) for c in found.choices])), rel=1e-12
    )


# -- by hand ----------------------------------------------------------------------------------------

FREE = Link(1e18, 0.0, "made by hand: transfers take no time")


def small(memory):
    """conv splits for free and keeps 100 bytes a sample; fc takes 1 ms on one GPU, 2 ms on two, and keeps 300."""
    graph = make_graph([(), (0,)], [(), (0,)], [0, 1000], [100, 300])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 if b == 16 else 2e-3])
    return profile, Cluster(2, "made by hand", 2, FREE, FREE, memory), 16


def test_an_inexact_search_proves_no_more_than_its_factor_of_what_it_compares(monkeypatch):
    """Each search returns the worst plan of at most 1.4 times the least of seconds and priced bytes, and says so.

    Of 140 MB a GPU the parameters take 60 on GPU 0 in any plan, which the searches compare as well or not at all.
    """
    graph = make_graph([(), (0,), (1,)], None, [10 * MB, 10 * MB, 0], [8 * MB, 0, MB])
    profile = profile_from_times(graph, [lambda b: 6 + b * 3 / 4, lambda b: 5 + 2 * b, lambda b: 1 + b / 4])
    link = Link(1e15, 0.0, "by hand")
    costs = replace(price(profile, Network(Cluster(2, "by hand", 2, link, link)), 16, (1, 2)), overlap=False)
    every = [Placement(costs, options, (0, 0, 0)) for options in itertools.product((0, 1), repeat=3)]

    def inexact(alone, limit, extra, **_):
        sums = [plan.iteration_time + extra[range(3), plan.options].sum() for plan in every]
        worst = max((x for x, total in enumerate(sums) if total <= 1.4 * min(sums)), key=sums.__getitem__)
        claim = certificate(sums[worst] / min(sums))
        return SearchResult(every[worst].options, (0, 0, 0), every[worst].iteration_time, claim)

    monkeypatch.setattr(memory_constrained, "search", inexact)
    memory = memory_model(profile, 16)
    least = min(plan.iteration_time for plan in every if memory.fits(plan.gpus, 140 * MB))
    assert memory_constrained._Problem(costs, memory, 140 * MB).relax(None).bound <= least


def test_the_layer_of_most_memory_is_split_first():
    """16 samples: fc alone on GPU 0 makes 3000 + 8 x 100 + 16 x 300 = 8600 bytes, on both 6200."""
    assert counts_of(plan(*small(8600))) == (2, 1)
    made = plan(*small(8599))
    assert counts_of(made) == (2, 2)
    assert made.memory[0].total == 6200
    assert made.memory[0].gpus == (0, 1)
    # Data parallelism is all that fits; a lower bound of 9 ms at the price of 0.42 us a byte, at 8599 bytes.
    assert made.iteration_time == pytest.approx(10e-3, rel=1e-6)
    assert made.optimality == "bound 1.112"


def test_copies_that_make_a_plan_too_large_lead_to_another_one():
    """Three layers of 16 samples on up to two GPUs, in bytes on GPU 0; transfers take no time.

    conv is faster on two GPUs and keeps 100 a sample, as middle does, which loses less on two than fc, which keeps 50
    and reads 40. On (2, 1, 1) middle's input takes a copy of 16 x 10: 800 + 1600 + 800 + 160 = 3360. Without fitting
    copies 3200 are enough for it; (2, 2, 1) keeps 800 + 800 + 800 and copies 16 x 40: 3040; (2, 2, 2) keeps 2000.
    """
    graph = make_graph([(), (0,), (1,)], [(), (10,), (40,)], [0] * 3, [100, 100, 50])
    times = [lambda b: 1e-3 * b, lambda b: 1e-3 if b == 16 else 1.1e-3, lambda b: 1e-3 if b == 16 else 2e-3]
    problem = profile_from_times(graph, times), Cluster(2, "made by hand", 2, FREE, FREE), 16
    found = {memory: counts_of(plan(*problem, memory=memory)) for memory in (3360, 3359, 3200, 3040, 3039, 2000)}
    assert found == {
        3360: (2, 1, 1),
        3359: (2, 2, 1),
        3200: (2, 2, 1),
        3040: (2, 2, 1),
        3039: (2, 2, 2),
        2000: (2, 2, 2),
    }


def test_a_fast_plan_is_made_smaller_until_it_fits():
    """Three layers of four samples on up to two GPUs, in ms and bytes of activations on GPU 0; 36,000,000 are state.

    (1, 1, 1) takes 18 and keeps 16,000. (2, 1, 1) takes 26 and keeps 14,000, with the all-reduce of the first layer.
    (1, 2, 2) takes 40 and keeps 10,000. At no price of a byte (2, 1, 1) is the cheapest one, and it is two changes from
    (1, 2, 2). But it is one from (1, 1, 1).
    """
    graph = make_graph([(), (0,), (1,)], [(), (0,), (500_000,)], [10_000_000, 0, 2_000_000], [1000, 3000, 0])
    times = [lambda b: {4: 10e-3}.get(b, 8e-3), lambda b: {4: 6e-3}.get(b, 14e-3), lambda b: {4: 2e-3}.get(b, 14e-3)]
    link = Link(1e9, 0.0, "made by hand")
    problem = profile_from_times(graph, times), Cluster(2, "made by hand", 2, link, link), 4
    assert counts_of(plan(*problem, overlap_sync=True, memory=36_016_000)) == (1, 1, 1)
    made = plan(*problem, overlap_sync=True, memory=36_015_999)
    assert counts_of(made) == (2, 1, 1)
    assert made.iteration_time == pytest.approx(26e-3)


@pytest.mark.parametrize("overlap", [False, True])
def test_branches_go_to_gpus_of_their_own_where_nothing_else_fits(overlap):
    """Two branches of 1000 bytes whose results take 1 s to another GPU: both hold 6000 with state, one holds 3000."""
    graph = make_graph([(), (0,), (0,), (1, 2)], [(), (1,), (1,), (1, 1)], [0, 1000, 1000, 0], [0] * 4)
    link = Link(1.0, 0.0, "made by hand")
    problem = profile_from_times(graph, [lambda b: 1e-3] * 4), Cluster(2, "made by hand", 2, link, link), 2
    assert plan(*problem, overlap_sync=overlap).memory[0].total == 6000
    # Each GPU holds a copy of two samples of a byte, besides.
    assert plan(*problem, overlap_sync=overlap, memory=5999).memory[0].total == 3002
    # Branches may have GPUs of their own also where every layer has one GPU.
    for counts in ("powers", (1,)):
        text = refusal(*problem, overlap_sync=overlap, memory=2999, gpu_counts=counts)
        assert " was found to fit: in the smallest one" in text


def test_changes_at_random_are_many_in_a_model_of_two_layers():
    """Eight samples on up to four GPUs; (1, 1) takes 3 ms and 7000 bytes, (1, 4) 5.2 ms and 6600, (2, 1) 4.8 ms."""
    graph = make_graph([(), (0,)], [(), (100,)], [1000, 0], [400, 100])
    times = [lambda b: 2e-3, lambda b: {8: 1e-3, 4: 6e-3, 2: 2e-3}.get(b, 3e-3)]
    link = Link(1e6, 0.0, "made by hand")
    problem = profile_from_times(graph, times), Cluster(4, "made by hand", 4, link, link), 8
    assert counts_of(plan(*problem, overlap_sync=True, memory=7000)) == (1, 1)
    assert counts_of(plan(*problem, overlap_sync=True, memory=6999)) == (2, 1)


@pytest.mark.parametrize("memory", range(8400, 10200, 200))
def test_what_fits_into_some_bytes_is_found_with_more(memory):
    """Two branches and their join on two GPUs: 10200 bytes in data parallelism, with 9000 of parameters on both.

    With the first branch on a GPU of its own the other one holds less. From the fastest plan, which data
    parallelism is one change from, no change makes that of it and fits.
    """
    graph = make_graph([(), (), (0, 1)], [(), (), (50, 10)], [1000, 0, 2000], [200, 0, 400])
    seconds = [{4: 4e-3, 2: 1e-3}, {4: 2e-3, 2: 4e-3}, {4: 4e-3, 2: 4e-3}]
    profile = profile_from_times(graph, [lambda b, times=times: times.get(b, 4e-3) for times in seconds])
    made = plan(profile, Cluster(2, "made by hand", 2, FREE, FREE), 4, memory=memory)
    assert made.memory[0].total <= memory


@pytest.mark.parametrize("split", range(11))
def test_only_as_many_equal_layers_as_necessary_are_changed(split):
    """Ten layers that two GPUs slow down from 1 to 1.5 ms and that keep 1600 bytes on one GPU, 800 on each of two."""
    graph = make_graph([(), *((index,) for index in range(9))], [(), *[(0,)] * 9], [0] * 10, [100] * 10)
    profile = profile_from_times(graph, [lambda b: 1e-3 if b == 16 else 1.5e-3] * 10)
    made = plan(profile, Cluster(2, "made by hand", 2, FREE, FREE), 16, memory=1600 * (10 - split) + 800 * split + 799)
    assert counts_of(made).count(2) == split
    assert made.iteration_time == pytest.approx(10e-3 + split * 0.5e-3)


def refusal(*arguments, **options):
    with pytest.raises(PlanError) as caught:
        plan(*arguments, **options)
    return str(caught.value)


def test_refusal_names_the_gpu_the_layer_and_the_numbers():
    assert refusal(*small(6199)) == (
        "no plan of drawn fits: in the smallest one found GPU 0 needs 6.1 KiB, 1 B more than its 6.1 KiB; 2.9 KiB are "
        "parameters, gradients and optimizer (momentum), 3.1 KiB activations, and layer 'layer1' takes the most, "
        "5.3 KiB at per-GPU batch 8 (data parallelism fits from 3 GPUs, or on 2 up to a global batch of 14, such as 8 "
        "with accumulation=2 of the job)"
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_a_refusal_names_the_smallest_plan_although_its_branches_run_side_by_side(overlap):
    """Branches of 1000 bytes take 1 ms on a GPU as on two: on a GPU each, which is fastest, one holds 3000 bytes."""
    graph = make_graph([(), (0,), (0,), (1, 2)], None, [0, 1000, 1000, 0], [0] * 4)
    problem = profile_from_times(graph, [lambda b: 1e-3] * 4), Cluster(2, "made by hand", 2, FREE, FREE), 2
    assert plan(*problem, overlap_sync=overlap).memory[0].total == 3000
    assert "in the smallest one found GPU 0 needs 2.9 KiB, 1 B more than its" in refusal(
        *problem, overlap_sync=overlap, memory=2999
    )


def test_a_refusal_names_the_plan_that_needs_least_of_a_gpu_though_more_gpus_lack_memory():
    """A layer of 16 samples of 300 bytes and 1000 bytes of parameters, fastest on one GPU of four, which holds 7800.

    On four each holds 4200. With 2900 bytes a GPU one lacks 4900 bytes, four lack 1300 each, which is 5200 together.
    """
    graph = make_graph([()], None, [1000], [300])
    profile = profile_from_times(graph, [lambda b: 1e-3 if b == 16 else 2e-3])
    problem = profile, Cluster(4, "made by hand", 4, FREE, FREE), 16
    assert counts_of(plan(*problem)) == (1,)
    assert "in the smallest one found GPU 0 needs 4.1 KiB, 1.3 KiB more than its 2.8 KiB" in refusal(
        *problem, memory=2900
    )
    assert counts_of(plan(*problem, memory=4200)) == (4,)


def test_a_refusal_names_the_smallest_plan_although_none_keeps_activations():
    """Parameters take 3000 bytes on each GPU; the fastest plan moves four samples of 10 bytes from two GPUs to one."""
    graph = make_graph([(), (0,)], [(), (10,)], [0, 1000], [0, 0])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 if b == 4 else 2e-3])
    problem = profile, Cluster(2, "made by hand", 2, FREE, FREE), 4
    assert plan(*problem).memory[0].total == 3040
    text = refusal(*problem, memory=2999)
    assert "in the smallest one found GPU 0 needs 2.9 KiB, 1 B more than its" in text
    assert text.endswith("with optimizer sgd data parallelism fits from 1 GPU)")


def test_a_refusal_states_when_only_another_optimizer_fits():
    # One sample takes 400 bytes, parameters and gradients 2000, momentum 1000.
    text = refusal(*small(3399))
    assert text.endswith(
        "(even one sample a GPU is too much for data parallelism; with optimizer sgd data parallelism fits from 6 GPUs)"
    )
    assert plan(small(0.1)[0], Cluster(6, "made by hand", 6, FREE, FREE, 3399), 16, optimizer="sgd").memory
    assert "whatever the optimizer: only larger GPUs hold this model" in refusal(*small(2399))


def test_a_refusal_under_a_limit_states_the_limit_that_permits_a_fitting_plan():
    text = refusal(*small(6200), 1.5)
    assert "no plan of drawn within amplification limit 1.5 fits: in the smallest one found GPU 0 needs 8.4 KiB" in text
    # fc on both GPUs takes twice as long on twice the GPUs.
    assert text.endswith("(data parallelism on 2 GPUs fits: an amplification limit of 4 permits it)")
    assert counts_of(plan(*small(6200), 4.0)) == (2, 2)
    text = refusal(*small(6200), 1.1, limit_scope="iteration")
    assert "was found to fit" in text
    limit = float(re.search(r"an amplification limit of ([\d.]+) permits it", text)[1])
    assert counts_of(plan(*small(6200), limit, limit_scope="iteration")) == (2, 2)


def test_the_limit_of_a_refusal_counts_updates_and_overlap():
    """16 ms of computing on one GPU, 4 on four, and 10 of the update on each: 56 GPU-milliseconds instead of 26."""
    profile = profile_from_times(make_graph([()], None, [1000], [300]), [lambda b: 1e-3 * b])
    problem = replace(profile, update_per_byte=1e-5), Cluster(4, "made by hand", 4, FREE, FREE, 4200), 16
    text = refusal(*problem, 1.0, limit_scope="iteration", overlap_sync=True)
    assert "data parallelism on 4 GPUs fits: an amplification limit of 2.16 permits it" in text
    assert counts_of(plan(*problem, 2.16, limit_scope="iteration", overlap_sync=True)) == (4,)


@examples(60)
@given(
    problems_with_memory(series_parallel_graphs(max_layers=4)),
    st.floats(0.3, 1, exclude_max=True),
    st.sampled_from([None, 1.2]),
    st.sampled_from(["layer", "iteration"]),
)
def test_the_suggestion_of_a_refusal_is_valid(problem, share, limit, scope):
    profile, cluster, batch = problem
    free = plan(profile, replace(cluster, memory=None), batch, limit, limit_scope=scope)
    memory = share * free.memory[0].total
    if memory == 0:
        return
    try:
        plan(*problem, limit, limit_scope=scope, memory=memory)
        return
    except PlanError as error:
        text = str(error)
    everywhere = 1e9

    def fits(gpus, batch, **options):
        try:
            return plan(profile, replace(cluster, gpus=gpus), batch, everywhere, memory=memory, **options)
        except PlanError:
            return None

    def fits_in_sequence(gpus, batch, **options):
        # Branches on GPUs of their own share the parameters out, and may fit where data parallelism, of which the
        # next step speaks, does not.
        made = fits(gpus, batch, **options)
        return made is not None and all(layer.gpus[0] == 0 for layer in made.layers)

    if found := re.search(r"an amplification limit of ([\d.e+]+) permits it", text):
        event("limit")
        assert plan(*problem, float(found[1]), limit_scope=scope, memory=memory)
    elif found := re.search(r"fits from (\d+) GPUs, or on (\d+) up to a global batch of (\d+)", text):
        event("GPUs or batch")
        more, gpus, largest = map(int, found.groups())
        assert gpus == cluster.gpus < more <= batch
        assert fits(more, batch)
        assert not fits_in_sequence(more - 1, batch)
        if largest >= gpus:
            assert fits(gpus, largest)
        assert not fits_in_sequence(gpus, largest + 1)
    elif found := re.search(r"with optimizer sgd data parallelism fits from (\d+) GPUs?", text):
        event("optimizer")
        assert not fits_in_sequence(batch, batch)
        assert fits(int(found[1]), batch, optimizer="sgd")
    else:
        event("larger GPUs")
        assert "only larger GPUs" in text or "no plan was found that holds this model" in text
        assert not fits_in_sequence(batch, batch, optimizer="sgd")


# -- valid requests ---------------------------------------------------------------------------------


def test_memory_limit_for_a_profile_without_activation_sizes_raises():
    profile = profile_from_times(make_graph([()]), [lambda b: 1e-3 * b])
    with pytest.raises(PlanError, match=r"does not say what its layers keep .* checked against 37\.3 GiB \(profile"):
        plan(profile, 2, 16, memory=40e9)


@pytest.mark.parametrize("memory", [0, -1.0, float("nan"), float("inf")])
def test_invalid_memory_is_rejected(memory):
    with pytest.raises(InvalidValueError, match="memory must be positive"):
        plan(*small(None), memory=memory)


def test_memory_given_replaces_the_clusters():
    made = plan(*small(1.0), memory=8600.5)
    assert (made.cluster.memory, counts_of(made)) == (8600.5, (2, 1))
    assert counts_of(plan(*small(None))) == (2, 1)
