"""Foreground speed-up against cluster throughput, against all assignments and by hand."""

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError, MissingProfileError, PlanError
from deeppool.planning.planner import frontier, frontier_from_costs, plan
from deeppool.planning.request import cost_table
from deeppool.planning.search.optimality import optimality_factor
from deeppool.planning.studies import collocation_tradeoff
from deeppool.planning.studies.collocation_tradeoff import operating_point, share
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.records.files import load
from deeppool.simulation.plan.simulate import simulate
from tests.planning.search.test_search import Definition
from tests.sampling import examples
from tests.strategies import (
    chain_graphs,
    make_graph,
    problems,
    profile_from_times,
    profiles,
    series_parallel_graphs,
)

ROUNDING = 1e-9
SHARES = (1.0, 0.6, 0.0)
HARVESTS = st.sampled_from(SHARES)


def background(sample_time=5e-4):
    return profile_from_times(make_graph([()]), [lambda batch: sample_time * batch])


# -- all assignments, counted GPU by GPU ------------------------------------------------------------


@dataclass(frozen=True)
class AllAssignments:
    """Arrays over every assignment of GPU counts to layers on every GPU count that holds it."""

    gpus: int
    batch: int
    sample_time: float
    harvest: float
    place: np.ndarray
    """GPUs of the foreground."""
    time: np.ndarray
    work: np.ndarray

    def background_gpus(self):
        """GPUs' worth of background: the GPUs outside the plan, and the gaps between layers."""
        return self.gpus - self.place + self.harvest * (self.place - self.work / self.time)

    def throughput(self):
        return self.batch / self.time + self.background_gpus() / self.sample_time

    def efficient(self):
        """The assignments that no other one on as many GPUs dominates in iteration time and GPU-seconds."""
        kept = np.zeros(len(self.place), dtype=bool)
        for place in np.unique(self.place):
            rows = np.nonzero(self.place == place)[0]
            rows = rows[np.argsort(self.time[rows])]
            time, work = self.time[rows], self.work[rows]
            # The fewest GPU-seconds of so many of the fastest ones.
            fewest = np.append(np.inf, np.minimum.accumulate(work))
            faster = fewest[np.searchsorted(time, time * (1 - ROUNDING), side="left")]
            as_fast = fewest[np.searchsorted(time, time * (1 + ROUNDING), side="right")]
            kept[rows] = (faster > work * (1 + ROUNDING)) & (as_fast >= work * (1 - ROUNDING))
        return replace(self, place=self.place[kept], time=self.time[kept], work=self.work[kept])


def all_assignments(problem, shared):
    definition = Definition(*problem)
    entries = []
    for assignment in definition.assignments(definition.tree, 0, definition.cluster.gpus):
        places = [place for _, place in sorted(assignment)]
        time, used = definition.iteration_time(places), max(count + start for count, start in places)
        work = sum(time * count for time, (count, _) in zip(definition.times(places), places, strict=True))
        entries += [(k, time, work) for k in definition.gpu_counts if k >= used]
    place, time, work = np.array(entries, dtype=float).T
    return AllAssignments(
        shared.gpus, shared.global_batch, shared.background_sample_time, shared.harvest_of_idle, place, time, work
    )


def share_without_overlap(problem, job, harvest):
    """As the oracle adds up every layer's own all-reduce; with overlap, other plans are efficient."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collocation_tradeoff, "cost_table", lambda *given: replace(cost_table(*given), overlap=False))
        return share(*problem, job, harvest_of_idle=harvest)


@examples(60)
@given(problems(chain_graphs(max_layers=4)), profiles(chain_graphs(max_layers=2)), HARVESTS)
def test_points_of_a_chain_are_its_undominated_efficient_plans(problem, job, harvest):
    shared = share_without_overlap(problem, job, harvest)
    efficient = all_assignments(problem, shared).efficient()
    assert shared.optimality == "exact"
    slack = ROUNDING * shared.gpus
    ours = np.array(
        [(p.iteration_time, p.background_throughput * shared.background_sample_time) for p in shared.points]
    )
    exists = np.stack([efficient.time, efficient.background_gpus()], axis=1)
    for point in ours:
        assert np.isclose(exists, point, rtol=ROUNDING, atol=slack).all(axis=1).any(), "no plan is what the point says"
    for time, left in exists:
        as_fast, faster = exists[:, 0] <= time * (1 + ROUNDING), exists[:, 0] < time * (1 - ROUNDING)
        dominated = (exists[as_fast, 1] > left + slack).any() or (exists[faster, 1] >= left - slack).any()
        if not dominated:
            near = np.isclose(ours, (time, left), rtol=10 * ROUNDING, atol=10 * slack).all(axis=1)
            assert near.any(), "an efficient plan is missing"


@examples(60)
@given(
    st.one_of(problems(chain_graphs(max_layers=4)), problems(series_parallel_graphs(max_layers=5))),
    profiles(chain_graphs(max_layers=2)),
    HARVESTS,
    st.floats(0, 1),
)
def test_fastest_point_for_a_background_is_within_its_bound_of_all_efficient_plans(problem, job, harvest, part):
    shared = share_without_overlap(problem, job, harvest)
    efficient = all_assignments(problem, shared).efficient()
    requested = part * shared.points[-1].background_throughput
    answer = shared.fastest(requested)
    assert answer.point.background_throughput >= requested * (1 - ROUNDING)
    assert answer.optimality == shared.optimality
    # Rounding leaves an idle GPU of 1e-16 where there is none.
    enough = efficient.background_gpus() - ROUNDING >= requested * efficient.sample_time
    if enough.any():
        factor = optimality_factor(answer.optimality)
        assert efficient.time[enough].min() * factor >= answer.point.iteration_time * (1 - ROUNDING)


@examples(60)
@given(
    st.one_of(problems(chain_graphs(max_layers=4)), problems(series_parallel_graphs(max_layers=5))),
    profiles(chain_graphs(max_layers=2)),
    HARVESTS,
    st.floats(0.01, 1),
)
def test_highest_throughput_is_within_its_bound_of_all_efficient_plans(problem, job, harvest, part):
    shared = share_without_overlap(problem, job, harvest)
    efficient = all_assignments(problem, shared).efficient()
    requested = part * shared.points[0].speedup
    answer = shared.highest_throughput(requested)
    assert answer.point.speedup >= requested * (1 - ROUNDING)
    assert (answer.optimality == "exact") == (shared.optimality == "exact")
    as_fast = efficient.time <= shared.single_gpu_iteration_time / requested
    if as_fast.any():
        most = efficient.throughput()[as_fast].max()
        assert most <= answer.point.throughput * optimality_factor(answer.optimality) * (1 + ROUNDING)


@examples(60)
@given(problems(chain_graphs(max_layers=4)), HARVESTS)
def test_efficient_points_are_undominated_in_speedup_and_throughput(problem, harvest):
    shared = share(*problem, background(1e-3), harvest_of_idle=harvest)

    def dominated(point):
        return any(
            other.speedup >= point.speedup and other.throughput >= point.throughput and other != point
            for other in shared.points
        )

    assert shared.efficient() == tuple(point for point in shared.points if not dominated(point))


# -- conservation, order, partitions ----------------------------------------------------------------


@examples(25)
@given(problems(series_parallel_graphs(max_layers=4)), HARVESTS)
def test_a_point_is_a_plan_whose_idle_time_and_free_gpus_train_its_background(problem, harvest):
    profile, cluster, batch = problem
    shared = share(*problem, background(), harvest_of_idle=harvest)
    for point in shared.points:
        if point.amplification < 1:
            continue  # a limit is at least 1
        made = plan(
            profile, replace(cluster, gpus=point.gpus), batch, point.amplification_limit, limit_scope="iteration"
        )
        assert made.iteration_time <= point.iteration_time * (1 + ROUNDING)
        if made.iteration_time < point.iteration_time * (1 - ROUNDING):
            continue  # a faster plan holds as many GPU-seconds, up to the search's tolerance
        replayed = simulate(made, background_sample_time=shared.background_sample_time)
        assert replayed.gpu_seconds + replayed.idle_gpu_seconds == pytest.approx(point.gpus * made.iteration_time)
        trained = point.background_throughput * point.iteration_time * shared.background_sample_time
        held = point.gpus * point.iteration_time
        outside = cluster.gpus * point.iteration_time - held
        assert trained == pytest.approx(outside + harvest * replayed.idle_gpu_seconds, rel=1e-6, abs=ROUNDING * held)


@examples(60)
@given(problems(series_parallel_graphs(max_layers=5)), profiles(chain_graphs(max_layers=2)), HARVESTS)
def test_throughputs_add_up_and_slower_points_leave_more(problem, job, harvest):
    shared = share(*problem, job, harvest_of_idle=harvest)
    points = shared.points
    for point in (*points, *shared.data_parallel_partitions, *shared.burst_parallel_partitions):
        assert point.throughput == point.foreground_throughput + point.background_throughput
        assert point.foreground_throughput * point.iteration_time == pytest.approx(shared.global_batch)
        assert 0 <= point.background_throughput <= shared.background_alone_throughput
        assert point.speedup * point.iteration_time == pytest.approx(shared.single_gpu_iteration_time)
    for fast, slow in itertools.pairwise(points):
        assert fast.iteration_time < slow.iteration_time
        assert fast.background_throughput < slow.background_throughput * (1 + ROUNDING)


@examples(60)
@given(problems(series_parallel_graphs(max_layers=5)), profiles(chain_graphs(max_layers=2)), HARVESTS)
def test_every_partition_is_matched_by_a_point(problem, job, harvest):
    shared = share(*problem, job, harvest_of_idle=harvest)
    assume(shared.optimality == "exact")
    for still in (*shared.data_parallel_partitions, *shared.burst_parallel_partitions):
        assert any(
            point.speedup >= still.speedup * (1 - ROUNDING)
            and point.background_throughput >= still.background_throughput * (1 - ROUNDING)
            for point in shared.points
        )


@examples(60)
@given(problems(chain_graphs(max_layers=4)), HARVESTS)
def test_the_most_left_to_the_background_is_all_gpus_but_one(problem, harvest):
    shared = share(*problem, background(), harvest_of_idle=harvest)
    all_plans = all_assignments(problem, shared)
    most = all_plans.background_gpus().max() / shared.background_sample_time
    assert shared.points[-1].background_throughput == pytest.approx(most, abs=1e-6)
    assert most == pytest.approx((shared.gpus - 1) / shared.background_sample_time, abs=1e-6)


@examples(40)
@given(problems(series_parallel_graphs(max_layers=5)), profiles(chain_graphs(max_layers=2)), st.floats(0.1, 1))
def test_a_faster_background_and_a_better_harvest_never_lower_the_throughput(problem, job, part):
    slow = share(*problem, job, harvest_of_idle=0.6)
    halved = [
        replace(m, forward=tuple(t / 2 for t in m.forward), backward=tuple(t / 2 for t in m.backward))
        for m in job.measurements
    ]
    faster = share(*problem, replace(job, measurements=tuple(halved)), harvest_of_idle=0.6)
    fuller = share(*problem, job, harvest_of_idle=1.0)
    requested = part * slow.points[0].speedup
    now = slow.highest_throughput(requested).point.throughput
    for better in (faster, fuller):
        most = better.highest_throughput(requested)
        assert most.point.throughput * optimality_factor(most.optimality) >= now * (1 - ROUNDING)
    # Half the time per sample, plan by plan: twice the samples.
    assert [point.background_throughput for point in faster.points] == pytest.approx(
        [2 * point.background_throughput for point in slow.points]
    )


@pytest.mark.slow
@examples(30)
@given(problems(series_parallel_graphs(max_layers=5)))
def test_a_burst_parallel_partition_is_the_fastest_plan_on_its_gpus(problem):
    profile, cluster, batch = problem
    shared = share(*problem, background())
    assume(shared.optimality == "exact")
    for still in shared.burst_parallel_partitions:
        made = plan(profile, replace(cluster, gpus=still.gpus), batch)
        assert still.iteration_time == pytest.approx(made.iteration_time)
        assert still.background_throughput == (cluster.gpus - still.gpus) / shared.background_sample_time


def perfect():
    """1 ms a sample on any number of GPUs; nothing to move or to synchronise."""
    return profile_from_times(make_graph([()]), [lambda batch: 1e-3 * batch])


def test_partitions_of_a_layer_that_scales_perfectly():
    """k of 4 GPUs: 16 / k ms an iteration, 1000 k samples/s; each other GPU trains 2000 samples/s of 0.5 ms."""
    shared = share(perfect(), 4, 16, background())
    for partitions, strategy in (
        (shared.data_parallel_partitions, "data parallel"),
        (shared.burst_parallel_partitions, "burst parallel"),
    ):
        assert [point.gpus for point in partitions] == [1, 2, 4]
        for k, point in zip((1, 2, 4), partitions, strict=True):
            assert (point.strategy, point.collocated) == (strategy, False)
            assert point.iteration_time == pytest.approx(16e-3 / k)
            assert point.speedup == pytest.approx(k)
            assert point.foreground_throughput == pytest.approx(1000 * k)
            assert point.background_throughput == pytest.approx(2000 * (4 - k))
            assert point.amplification == pytest.approx(1)


def one_layer_scales():
    """Two layers of 8 ms on one GPU: the first takes 8 / k ms on k of four, the second 8 ms on any. Free transfers."""
    profile = profile_from_times(make_graph([(), (0,)]), [lambda b: 0.5e-3 * b, lambda b: 8e-3])
    return profile, Cluster(4, inside=Link(1e12, 0.0, "made by hand")), 16


def test_a_layer_that_cannot_scale_leaves_its_gpus_to_the_background():
    """Fastest: 2 + 8 ms, of which three GPUs idle for 8: 24 ms of 0.5 ms a sample are 48 samples, 4800 samples/s.

    Data parallel takes as long and leaves nothing; a partition of one GPU trains 1000 + 6000 samples/s.
    """
    shared = share(*one_layer_scales(), background())
    fastest, slowest = shared.points[0], shared.points[-1]
    assert fastest.gpus == 4
    assert fastest.iteration_time == pytest.approx(10e-3)
    assert fastest.background_throughput == pytest.approx(4800)
    data_parallel = shared.data_parallel_partitions[-1]
    assert data_parallel.iteration_time == pytest.approx(10e-3)
    assert data_parallel.background_throughput == 0
    assert (slowest.gpus, slowest.iteration_time) == (1, pytest.approx(16e-3))
    assert slowest.throughput == pytest.approx(7000)


def test_a_measured_harvest_concerns_only_the_idle_time_between_layers():
    """As above, half harvested: 2400 samples/s at 10 ms; the GPUs outside a smaller plan count in full."""
    shared = share(*one_layer_scales(), background(), harvest_of_idle=0.5)
    assert shared.points[0].background_throughput == pytest.approx(2400)
    assert shared.points[-1].background_throughput == pytest.approx(6000)
    on_two = next(point for point in shared.points if point.gpus == 2)
    # 4 + 8 ms: two GPUs for 12 ms and one for 8, of which half: 28 ms in 12.
    assert on_two.background_throughput == pytest.approx(28 / 12 * 2000)


def superlinear():
    """16 samples take 10 ms on one GPU, 8 samples 4 ms: on two GPUs an iteration holds 8 GPU-ms, not 10."""
    return profile_from_times(make_graph([()]), [lambda b: 10e-3 if b > 8 else 0.5e-3 * b], (8, 16))


def test_points_come_from_the_frontier_of_every_gpu_count():
    """Of two GPUs, the plan on one leaves the other: 2000 samples/s of 0.5 ms. The plan on both leaves none.

    The second is faster with fewer GPU-seconds, so it alone is on the frontier of two GPUs.
    """
    assert [point.gpu_counts for point in frontier(superlinear(), 2, 16).points] == [(2,)]
    shared = share(superlinear(), 2, 16, background())
    assert [point.gpus for point in shared.points] == [2, 1]
    assert [point.background_throughput for point in shared.points] == pytest.approx([0, 2000])
    answer = shared.fastest(2000)
    assert (answer.point, answer.optimality) == (shared.points[1], "exact")
    with pytest.raises(
        PlanError, match="no plan leaves 2001 samples/s to drawn: beside drawn on 1 GPU it trains 2,000"
    ):
        shared.fastest(2001)


def test_comparisons_are_with_plans_that_match_the_partition():
    shared = share(*one_layer_scales(), background())
    for match in shared.comparisons():
        assert match.fastest.throughput >= match.partition.throughput * (1 - ROUNDING)
        assert match.highest_throughput.speedup >= match.partition.speedup * (1 - ROUNDING)
        assert match.highest_throughput.throughput >= match.partition.throughput * (1 - ROUNDING)
        assert all(
            p.throughput < match.partition.throughput for p in shared.points if p.speedup > match.fastest.speedup
        )
        assert all(
            p.throughput <= match.highest_throughput.throughput
            for p in shared.points
            if p.speedup >= match.partition.speedup
        )
        assert (1 + match.speedup_gain) * match.partition.speedup == pytest.approx(match.fastest.speedup)
        assert (1 + match.throughput_gain) * match.partition.throughput == pytest.approx(
            match.highest_throughput.throughput
        )


# -- edges ------------------------------------------------------------------------------------------


def test_one_gpu_leaves_no_time_to_the_background():
    shared = share(perfect(), 1, 16, background())
    assert [point.background_throughput for point in (*shared.points, *shared.data_parallel_partitions)] == [0, 0]
    assert shared.fastest(0).optimality == "exact"
    with pytest.raises(PlanError, match="on 1 GPU it trains 0, with the whole cluster to itself 2,000 "):
        shared.fastest(1)


@examples(40)
@given(problems(chain_graphs(max_layers=3)), HARVESTS)
def test_a_plan_that_holds_all_gpus_all_the_time_leaves_zero_not_less(problem, harvest):
    shared = share(*problem, background(), harvest_of_idle=harvest)
    assert shared.data_parallel_partitions[-1].background_throughput == 0
    assert min(point.background_throughput for point in shared.points) >= 0


def test_a_partition_that_no_plan_matches_has_no_gain():
    """On one GPU two micro-steps take 20 ms, and no plan fits; with interference no plan is as fast as a partition."""
    only_two = share(
        keeps_activations(), Cluster(2, inside=Link(1e15, 0.0, "made by hand")), 16, background(), memory=50e6
    )
    alone, both = only_two.comparisons()
    assert only_two.points[0].throughput < alone.partition.throughput
    assert (alone.fastest, alone.speedup_gain) == (None, None)
    assert alone.throughput_gain < 0 <= both.speedup_gain
    assert only_two.speedup_gains == (both.speedup_gain,)
    assert only_two.throughput_gains == (alone.throughput_gain, both.throughput_gain)
    slowed = [replace(point, speedup=point.speedup / 2) for point in only_two.points]
    _, both = replace(only_two, points=tuple(slowed), interference="a device").comparisons()
    assert (both.highest_throughput, both.throughput_gain) == (None, None)


def test_any_gpu_count_may_be_a_partition():
    shared = share(perfect(), 6, 16, background(), gpu_counts="all")
    assert [point.gpus for point in shared.data_parallel_partitions] == [1, 2, 3, 4, 6]


def test_the_last_partition_has_all_gpus_where_they_are_not_searched():
    # 4, 5 and 6 GPUs have shards of 2 out of 8 samples.
    shared = share(perfect(), 6, 8, background(), gpu_counts="all")
    for partitions in (shared.data_parallel_partitions, shared.burst_parallel_partitions):
        assert [point.gpus for point in partitions] == [1, 2, 3, 4, 6]
    assert shared.data_parallel_partitions[-1].background_throughput == 0


def keeps_activations():
    """3 MB of parameters, gradients and momentum, and 1 + 3 MB a sample; the second layer prefers one GPU.

    A GPU holds 67 MB on one GPU, 59 MB where only the first layer is split over two, and 35 MB where both are.
    """
    graph = make_graph([(), (0,)], [(), (0,)], [0, 10**6], [10**6, 3 * 10**6])
    return profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 if b == 16 else 2e-3])


@pytest.mark.parametrize(
    ("memory", "alone", "burst", "optimality"),
    [(70e6, 17e-3, 9e-3, "exact"), (60e6, 20e-3, 9e-3, "heuristic"), (50e6, 20e-3, 10e-3, "heuristic")],
)
def test_what_does_not_fit_into_memory_is_left_out(memory, alone, burst, optimality):
    cluster = Cluster(2, inside=Link(1e15, 0.0, "made by hand"))
    given, of_cluster = (
        share(keeps_activations(), place, 16, background(), memory=size)
        for place, size in ((cluster, memory), (replace(cluster, memory=memory), None))
    )
    assert given.points == of_cluster.points
    # Where one GPU cannot hold 16 samples, it takes 8 + 2 ms for each half of them.
    assert [(point.gpus, point.iteration_time) for point in given.data_parallel_partitions] == [
        (1, pytest.approx(alone)),
        (2, pytest.approx(10e-3)),
    ]
    assert given.burst_parallel_partitions[-1].iteration_time == pytest.approx(burst, rel=1e-3)
    assert given.points[0].iteration_time == given.burst_parallel_partitions[-1].iteration_time
    assert (given.optimality, given.cluster.memory) == (optimality, memory)


def test_the_error_names_the_gpus_of_the_foreground_where_one_cannot_hold_it():
    shared = share(keeps_activations(), 2, 16, background(), memory=50e6)
    assert {point.gpus for point in shared.points} == {2}
    with pytest.raises(PlanError, match="beside drawn on 2 GPUs it trains "):
        shared.fastest(5000)


@pytest.mark.parametrize(
    ("needed", "crowded", "trained"), [(10**6, 0, 1e-3), (40 * 10**6, 0, 1e-3), (55 * 10**6, 1, 0)]
)
def test_a_background_uses_the_idle_time_of_gpus_with_room_for_it(needed, crowded, trained):
    """The fastest plan takes 8 + 1 ms; GPU 0 holds 59 MB of 60 and is never idle, GPU 1 holds 8 MB and is for 1 ms."""
    cluster = Cluster(2, "by hand", 2, Link(1e15, 0.0, "by hand"), Link(1e15, 0.0, "by hand"), 60e6)
    job = profile_from_times(make_graph([()], None, [0], [needed]), [lambda batch: 1e-3 * batch], (1,))
    shared = share(keeps_activations(), cluster, 16, job)
    first = shared.points[0]
    assert first.iteration_time == pytest.approx(9e-3)
    assert first.background_throughput == pytest.approx(trained / 9e-3 / 1e-3)
    assert shared.crowded == crowded
    text = "; at 1 of these points idle GPUs have no room for the 52.5 MiB of the background"
    assert str(shared).endswith(text) == bool(crowded)
    made = plan(keeps_activations(), cluster, 16)
    assert operating_point(shared, made) == first


def test_no_partition_that_fits_is_an_error_and_depends_on_the_optimizer():
    assert share(keeps_activations(), 2, 16, background(), memory=35.5e6).points
    with pytest.raises(PlanError, match=r"no static partition of 2 GPUs holds drawn: .* needs 34.3 MiB, and has 33.9"):
        share(keeps_activations(), 2, 16, background(), memory=35.5e6, optimizer="adam")


def test_the_background_batch_defaults_to_the_profiles_largest():
    job = profile_from_times(make_graph([()]), [lambda batch: 1e-3 + 1e-4 * batch])
    assert share(perfect(), 2, 16, job).background_sample_time == pytest.approx(2.6e-3 / 16)
    updated = replace(job, graph=make_graph([()], parameter_bytes=[100]), update_per_byte=1e-5)
    assert share(perfect(), 2, 16, updated).background_sample_time == pytest.approx(3.6e-3 / 16)
    explicit = share(perfect(), 2, 16, job, background_batch=4)
    assert (explicit.background_batch, explicit.background_sample_time) == (4, pytest.approx(1.4e-3 / 4))


def test_shards_above_the_profile_are_named():
    assert share(perfect(), 4, 32, background()).extrapolated_gpu_counts == (1,)
    assert share(perfect(), 4, 16, background()).extrapolated_gpu_counts == ()


def test_numbers_of_other_libraries_are_those_of_python():
    numbers = {"background_batch": np.uint8(4), "harvest_of_idle": Fraction(1, 2)}
    expected = share(perfect(), 4, 200, background(), background_batch=4, harvest_of_idle=0.5)
    found = share(perfect(), np.uint8(4), np.uint8(200), background(), **numbers)
    assert replace(found, search_time=0.0) == replace(expected, search_time=0.0)
    # An unsigned number has no negative one, by which batches are divided.
    assert found.extrapolated_gpu_counts == (1, 2, 4)


def test_the_bound_of_a_frontier_is_the_bound_of_the_trade_off(monkeypatch):
    exact = share(perfect(), 4, 16, background())

    def bounded(profile, costs, **options):
        found = frontier_from_costs(profile, costs, **options)
        return replace(found, optimality="bound 1.250") if costs.network.cluster.gpus == 2 else found

    monkeypatch.setattr(collocation_tradeoff, "frontier_from_costs", bounded)
    shared = share(perfect(), 4, 16, background())
    assert (exact.optimality, shared.optimality) == ("exact", "bound 1.250")
    # No efficient plan is better by more than the bound, or than a slower point times that bound.
    assert exact.fastest(0).optimality == "exact"
    assert shared.fastest(0).optimality == "bound 1.250"
    assert optimality_factor(shared.highest_throughput(2.0).optimality) >= 1.25


@pytest.mark.parametrize(
    ("more", "error", "phrase"),
    [
        ({"harvest_of_idle": 1.5}, InvalidValueError, "harvest_of_idle must be from 0 to 1, got 1.5"),
        ({"harvest_of_idle": float("nan")}, InvalidValueError, "harvest_of_idle must be from 0 to 1, got nan"),
        ({"background_batch": 32}, InvalidValueError, "background_batch must be from 1 to 16, the largest"),
        ({"background_batch": 2.5}, InvalidValueError, "background_batch must be a whole number or None, got 2.5"),
        ({"background_batch": 0}, InvalidValueError, "background_batch must be from 1 to 16, the largest .*, got 0$"),
    ],
)
def test_a_background_out_of_bounds_is_rejected(more, error, phrase):
    with pytest.raises(error, match=phrase):
        share(perfect(), 4, 16, background(), **more)


def test_a_batch_below_the_backgrounds_profile_is_rejected():
    job = profile_from_times(make_graph([()]), [lambda batch: 1e-3], (4, 8))
    with pytest.raises(MissingProfileError, match="at per-GPU batch 2"):
        share(perfect(), 4, 16, job, background_batch=2)


@pytest.mark.parametrize("change", [{"device_name": "another"}, {"threads": 2}])
def test_profiles_of_different_devices_are_rejected(change):
    with pytest.raises(
        InvalidValueError, match=r"the foreground's profile is of drawn \(cpu, 1 thread\), the background's"
    ):
        share(perfect(), 4, 16, replace(background(), **change))


def test_more_gpus_than_samples_are_refused_with_the_requested_number():
    with pytest.raises(PlanError, match="32 GPUs cannot share a global batch of 16"):
        share(perfect(), 32, 16, background())


@pytest.mark.parametrize("requested", [-1.0, float("nan")])
def test_a_condition_is_a_number_of_samples(requested):
    shared = share(perfect(), 4, 16, background())
    with pytest.raises(InvalidValueError, match="background_throughput must be at least 0"):
        shared.fastest(requested)
    with pytest.raises(InvalidValueError, match="speedup must be positive"):
        shared.highest_throughput(requested)


def test_a_speedup_beyond_the_fastest_plan_raises_with_the_fastest_one():
    with pytest.raises(PlanError, match="no plan makes drawn 9x as fast as one GPU: the fastest reaches 4x on 4 GPUs"):
        share(perfect(), 4, 16, background()).highest_throughput(9)
    serial = profile_from_times(make_graph([()]), [lambda b: 1e-3])
    with pytest.raises(PlanError, match="the fastest reaches 1x on 1 GPU "):
        share(serial, 4, 16, background()).highest_throughput(9)


def test_record_read_back_is_the_record_written(tmp_path):
    shared = share(perfect(), Cluster(4), 16, background(), harvest_of_idle=0.5)
    path = serialization.write(shared, tmp_path / "shared.json")
    assert serialization.read(path, SharedCluster) == shared
    assert load(path) == shared
    assert "in 50 % of its idle time (no interference modelled)" in str(shared)


# -- a plan on a shared cluster ----------------------------------------------------------------------


def test_a_plan_leaves_the_background_what_it_does_not_hold():
    """4 GPUs: 8 GPU-ms in 2 ms and 8 ms on one, so 10 ms hold 16 GPU-ms of 40: 2.4 GPUs at 2,000 samples/s."""
    profile = profile_from_times(make_graph([(), (0,)]), [lambda b: 0.5e-3 * b, lambda b: 8e-3])
    cluster = Cluster(4, inside=Link(1e12, 0.0, "made by hand"))
    shared = share(profile, cluster, 16, background())
    point = operating_point(shared, plan(profile, cluster, 16, 1.5))
    assert point.iteration_time == pytest.approx(10e-3)
    assert point.speedup == pytest.approx(1.6)
    assert point.background_throughput == pytest.approx(2.4 * 2000)
    assert point.throughput == pytest.approx(2.4 * 2000 + 16 / 10e-3)
    assert point in shared.points


def test_a_plan_of_another_foreground_is_rejected():
    profile = profile_from_times(make_graph([()]), [lambda b: 1e-3 * b])
    shared = share(profile, 2, 8, background())
    for other in (plan(profile, 2, 16), plan(profile, 4, 8)):
        with pytest.raises(InvalidValueError, match="the cluster trains drawn, batch 8 on up to 2 GPUs"):
            operating_point(shared, other)
