"""Prices of schedules, against the closed forms of their patterns and against what fits one page."""

from dataclasses import replace

import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.cluster.measured_network import Curve
from deeppool.collectives.layout import Layout
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.patterns.broadcast_tree import broadcast_tree
from deeppool.collectives.reshard import reshard
from deeppool.collectives.schedule import Transfer, schedule_of
from deeppool.costs.communication import PATTERNS, Network
from deeppool.costs.schedules import (
    LIBRARY,
    all_reduce_times,
    core_seconds,
    fastest_all_reduce,
    fastest_schedule,
    schedule_time,
    timed_transfers,
)
from deeppool.errors import InvalidValueError
from tests.strategies import CURVE_SIZES, measured_network

FAST, SLOW = Link(100e9, 5e-6, "made by hand"), Link(10e9, 50e-6, "made by hand")
NODE = Cluster(16, "one node", 16, FAST, FAST)
NODES = Cluster(16, "nodes of four", 4, FAST, SLOW)
SIZES = (0, 4, 10**6, 10**9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", range(2, 17))
def test_on_equal_links_a_schedule_costs_its_closed_form(ranks, size):
    for name in ("ring", "halving-doubling"):
        found = schedule_time(NODE, ALL_REDUCES[name](ranks, 16), size)
        assert found == pytest.approx(PATTERNS[name](NODE, ranks, size)), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", [5, 8, 9, 12, 16])
@pytest.mark.parametrize("cluster", [NODES, replace(NODES, inside=SLOW, between=FAST)], ids=["far", "near"])
def test_over_several_nodes_a_ring_costs_its_slowest_link_and_a_hierarchy_both(cluster, ranks, size):
    for name in ("ring", "hierarchical"):
        found = schedule_time(cluster, ALL_REDUCES[name](ranks, 4), size)
        assert found == pytest.approx(PATTERNS[name](cluster, ranks, size)), name


def test_near_partners_of_halving_doubling_use_the_fast_link():
    """The closed form takes the slowest link for all rounds."""
    # Distances 8 and 4 join two nodes, 2 and 1 are inside one; a half, a quarter, an eighth, a sixteenth.
    size = 10**9
    far = 2 * (2 * SLOW.latency + (1 / 2 + 1 / 4) * size / SLOW.bandwidth)
    near = 2 * (2 * FAST.latency + (1 / 8 + 1 / 16) * size / FAST.bandwidth)
    found = schedule_time(NODES, ALL_REDUCES["halving-doubling"](16, 4), size)
    assert found == pytest.approx(far + near)
    assert found < PATTERNS["halving-doubling"](NODES, 16, size)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_other_patterns_cost_rounds_and_bytes_through_the_busiest_port(ranks):
    size, bits = 10**8, {2: 1, 3: 1, 8: 3}[ranks]
    byte = 1 / FAST.bandwidth
    expected = {
        "recursive-doubling": (bits + 2 * (ranks == 3)) * (FAST.latency + size * byte),
        "parameter-server": 2 * (FAST.latency + (ranks - 1) * size * byte),
        "sharded-parameter-server": 2 * (FAST.latency + (ranks - 1) / ranks * size * byte),
    }
    for name, seconds in expected.items():
        assert schedule_time(NODE, ALL_REDUCES[name](ranks, 16), size) == pytest.approx(seconds), name
    assert schedule_time(NODE, broadcast_tree(8), size) == pytest.approx(3 * (FAST.latency + size * byte))


@pytest.mark.parametrize(("source", "destination"), [(1, 4), (4, 1), (3, 7), (8, 8), (16, 5)])
def test_a_reshard_costs_its_busiest_port(source, destination):
    layouts = Layout(tuple(range(source)), 48), Layout(tuple(range(destination)), 48)
    transfers = reshard(*layouts)
    schedule = schedule_of("reshard", max(source, destination), 48, [transfers] if transfers else [])
    found = schedule_time(NODE, schedule, 48 * 10**6)
    assert found == pytest.approx(Network(NODE).reshard_time(*layouts, 10**6))


def test_a_rank_starts_its_next_round_when_its_own_is_done():
    # Nodes of four and no bytes: 50 us between two of them, 5 us inside one.
    #
    #   round 0         round 1            round 2
    #   0 ────────► 4                      4 ────────► 3
    #   1 ─► 2          2 ─► 3
    rounds = [[Transfer(0, 4, 0, 1), Transfer(1, 2, 0, 1)], [Transfer(2, 3, 0, 1)], [Transfer(4, 3, 0, 1)]]
    found = timed_transfers(NODES, schedule_of("two chains", 5, 1, rounds), 0)
    assert [timed.start for timed in found] == pytest.approx([0, 0, 5e-6, 50e-6])
    assert [timed.end for timed in found] == pytest.approx([50e-6, 5e-6, 10e-6, 100e-6])


def test_the_librarys_all_reduce_is_a_candidate_where_it_was_measured():
    assert set(all_reduce_times(NODE, 4, 10**6)) == set(ALL_REDUCES)
    measured = replace(NODE, measured=measured_network({2: (1e-4, 1e-3, 1e-2), 16: (3e-4, 3e-3, 3e-2)}))
    found = all_reduce_times(measured, 9, 2**20)
    assert found[LIBRARY] == pytest.approx(2e-3)


def test_measured_transfers_replace_the_line_of_a_link():
    measured = measured_network({2: (1e-4, 1e-3, 1e-2)})
    inside = Curve(CURVE_SIZES, (3e-4, 2e-3, 5e-2), (0.0,) * 3, (9,) * 3, measured.all_reduce[0].curve.line)
    cluster = replace(NODES, measured=replace(measured, inside=inside, between=None))
    size = 4 * CURVE_SIZES[1]
    # Six rounds of a quarter inside the node; between nodes nothing was measured.
    assert schedule_time(cluster, ALL_REDUCES["ring"](4, 4), size) == pytest.approx(6 * 2e-3)
    far = SLOW.latency + size / 8 / SLOW.bandwidth
    assert schedule_time(cluster, ALL_REDUCES["ring"](8, 4), size) == pytest.approx(14 * max(far, inside.at(size / 8)))


def test_a_core_that_computes_for_a_transfer_does_not_send_and_receive_at_once():
    measured = measured_network({2: (1e-4, 1e-3, 1e-2)})
    busy = Curve(CURVE_SIZES, (3e-4, 2e-3, 5e-2), (0.0,) * 3, (9,) * 3, measured.all_reduce[0].curve.line, (0.75,) * 3)
    cluster = replace(NODE, measured=replace(measured, inside=busy))
    size = CURVE_SIZES[1]
    # Three quarters of a send and of a receive, each of 2 ms; a server only receives, then only sends.
    assert schedule_time(cluster, ALL_REDUCES["recursive-doubling"](2, 16), size) == pytest.approx(3e-3)
    assert schedule_time(cluster, ALL_REDUCES["parameter-server"](2, 16), size) == pytest.approx(4e-3)
    # Two transfers, three quarters of a core at each end.
    assert core_seconds(cluster, ALL_REDUCES["parameter-server"](2, 16), size) == pytest.approx(6e-3)
    assert core_seconds(NODE, ALL_REDUCES["ring"](4, 16), size) == 0


def test_a_round_in_which_a_rank_sends_and_receives_costs_a_measured_exchange():
    # Seconds by size: a transfer of 1, 2 or 3 ms, and an exchange of 4, 6 or 8 ms, of which a core computes a half.
    line = measured_network({2: (1e-4, 1e-3, 1e-2)}).all_reduce[0].curve.line
    one_way = Curve(CURVE_SIZES, (1e-3, 2e-3, 3e-3), (0.0,) * 3, (9,) * 3, line, (1.0,) * 3)
    both_ways = Curve(CURVE_SIZES, (4e-3, 6e-3, 8e-3), (0.0,) * 3, (9,) * 3, line, (0.5,) * 3)
    measured = replace(measured_network({2: (1e-4, 1e-3, 1e-2)}), inside=one_way, exchange_inside=both_ways)
    cluster = replace(NODE, measured=measured)
    size = CURVE_SIZES[1]

    def cost(name, ranks, bytes_):
        schedule = ALL_REDUCES[name](ranks, 16)
        return schedule_time(cluster, schedule, bytes_), core_seconds(cluster, schedule, bytes_)

    # Two rounds, in which both ranks exchange a half.
    assert cost("ring", 2, 2 * size) == pytest.approx((2 * 6e-3, 2 * 2 * 3e-3))
    # Six rounds of a quarter, four ranks.
    assert cost("ring", 4, 4 * size) == pytest.approx((6 * 6e-3, 6 * 4 * 3e-3))
    # A server receives, then sends, and does not both at once.
    assert cost("parameter-server", 2, size) == pytest.approx((2 * 2e-3, 2 * 2 * 2e-3))


def test_one_rank_costs_nothing_and_too_few_gpus_are_refused():
    assert all(schedule_time(NODE, make(1, 1), 10**6) == 0 for make in ALL_REDUCES.values())
    with pytest.raises(InvalidValueError, match="needs 17 GPUs, cluster 'one node' has 16"):
        schedule_time(NODE, ALL_REDUCES["ring"](17, 1), 4)


@pytest.mark.parametrize(("library", "wins"), [(1e-6, True), (1.0, False)])
def test_the_fastest_all_reduce_of_a_measured_network_is_the_librarys_or_a_schedule(library: float, wins: bool) -> None:
    times = (library, library, library)
    # Its links price the schedules.
    measured = replace(measured_network({2: times, 16: times}), inside=None, between=None)
    network = Network(replace(NODE, measured=measured), "measured")
    pattern, seconds = fastest_all_reduce(network, 4, 2**20)
    schedule = fastest_schedule(network, 4, 2**20)
    assert (pattern == LIBRARY) == wins == (schedule is None)
    if schedule is not None:
        assert schedule.pattern == pattern
        assert seconds == schedule_time(network.cluster, schedule, 2**20) < library


def test_the_fastest_all_reduce_of_a_named_pattern_is_that_pattern() -> None:
    for name, found in (("ring", LIBRARY), ("halving-doubling", "halving-doubling")):
        network = Network(NODE, name)
        assert fastest_all_reduce(network, 4, 2**20) == (found, network.all_reduce_time(4, 2**20))
