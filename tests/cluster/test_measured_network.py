"""What was measured of a network, and what is taken between and beyond: against closed forms."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link, find_cluster
from deeppool.cluster.measured_network import Curve, ScheduleTimes, curve_through, fit_line
from deeppool.errors import DocumentError, InvalidValueError
from tests.strategies import CURVE_SIZES, curve, measured_network, measured_networks

SIZES = tuple(2**k for k in range(2, 27))


def line(latency, bandwidth):
    return [latency + size / bandwidth for size in SIZES]


@given(st.floats(1e-7, 1e-2), st.floats(1e7, 1e12))
def test_a_line_is_found_again(latency, bandwidth):
    found = fit_line(SIZES, line(latency, bandwidth))
    assert found.latency == pytest.approx(latency, rel=1e-6)
    # Where latency is nearly all there is at 64 MB too, few digits of the bandwidth are left.
    share = SIZES[-1] / bandwidth / latency
    assert found.seconds_per_byte == pytest.approx(1 / bandwidth, rel=1e-6 + 1e-12 / share)
    assert found.worst_error < 1e-6


def test_noise_of_a_tenth_moves_latency_and_bandwidth_by_less_than_a_tenth():
    noise = random.Random(0)
    times = [time * noise.uniform(0.9, 1.1) for time in line(50e-6, 1e9)]
    found = fit_line(SIZES, times)
    assert found.latency == pytest.approx(50e-6, rel=0.05)
    assert 1 / found.seconds_per_byte == pytest.approx(1e9, rel=0.1)
    assert 0.02 < found.median_error < found.worst_error < 0.25


def test_the_line_is_the_one_of_least_relative_squares():
    times = [time * (1.3 if k % 3 else 0.8) for k, time in enumerate(line(50e-6, 1e9))]
    found = fit_line(SIZES, times)

    def squares(latency, slope):
        return sum(((latency + size * slope) / time - 1) ** 2 for size, time in zip(SIZES, times, strict=True))

    best = squares(found.latency, found.seconds_per_byte)
    for a in (0.99, 1.01):
        for b in (0.99, 1.0, 1.01):
            assert squares(found.latency * a, found.seconds_per_byte * b) > best


def test_neither_latency_nor_bandwidth_is_negative():
    falling = fit_line((4, 8, 16), (3e-3, 2e-3, 1e-3))
    assert (falling.seconds_per_byte, falling.latency > 0) == (0, True)
    steep = fit_line((4, 8, 16), (1e-3, 4e-3, 16e-3))
    assert (steep.latency, steep.seconds_per_byte > 0) == (0, True)


def test_residuals_are_of_the_line_against_what_was_measured():
    found = fit_line((4, 8), (1e-3, 1e-3))
    assert (found.median_error, found.worst_error) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))
    bent = fit_line(
        SIZES, [10 * time if size > 2**20 else time for size, time in zip(SIZES, line(5e-5, 1e9), strict=True)]
    )
    errors = [abs(bent.at(s) / (10 * t if s > 2**20 else t) - 1) for s, t in zip(SIZES, line(5e-5, 1e9), strict=True)]
    assert (bent.median_error, bent.worst_error) == (statistics.median(errors), max(errors))


# -- curves -----------------------------------------------------------------------------------------


def test_a_curve_is_the_median_of_the_runs_with_their_spread():
    made = curve_through((4, 8), [[1e-3, 5e-3, 2e-3, 3e-3, 4e-3], [7e-3, 7e-3]])
    assert (made.seconds, made.runs) == ((3e-3, 7e-3), (5, 2))
    assert made.spread == (pytest.approx(1 / 3), 0)  # quartiles 2 and 4 ms


@given(st.lists(st.floats(1e-6, 1), min_size=3, max_size=3))
def test_at_measured_sizes_a_curve_is_what_was_measured(seconds):
    made = curve(seconds)
    assert [made.at(size) for size in CURVE_SIZES] == seconds


@given(st.lists(st.floats(1e-6, 1), min_size=3, max_size=3), st.integers(1, 2**30), st.integers(1, 2**30))
def test_between_rising_points_a_curve_rises(seconds, some, other):
    made = curve(sorted(seconds))
    assert made.at(min(some, other)) <= made.at(max(some, other)) * (1 + 1e-12)


def test_a_curve_is_straight_in_log_log_level_below_and_proportional_above():
    made = curve((1e-4, 1e-2), (10**3, 10**5))
    assert made.at(10**4) == pytest.approx(1e-3)
    assert made.at(1) == 1e-4
    assert made.at(10**6) == pytest.approx(1e-1)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"sizes": (8, 4)}, r"sizes must be at least two, positive and ascending, got \[8, 4\]"),
        ({"sizes": (0, 8)}, r"sizes must be at least two, positive and ascending, got \[0, 8\]"),
        ({"seconds": (1e-3,)}, "a curve of 2 sizes needs as many seconds"),
        ({"seconds": (1e-3, 0.0)}, "seconds must be positive"),
        ({"seconds": (1e-3, math.inf)}, "seconds must be positive"),
        ({"computing": (0.5,)}, r"computing must be a part of the time for each of 2 sizes, got \[0.5\]"),
        ({"computing": (0.5, 1.1)}, "computing must be a part of the time"),
    ],
)
def test_an_impossible_curve_is_refused(change, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        replace(curve((1e-3, 2e-3), (4, 8)), **change)


def test_a_curve_may_start_at_one_byte_and_its_core_may_compute_never_or_always():
    assert replace(curve((1e-3, 2e-3), (1, 8)), computing=(0.0, 1.0)).sizes == (1, 8)
    with pytest.raises(InvalidValueError, match="sizes must be at least two"):
        Curve((4,), (1e-3,), (0.0,), (2,), RISING.inside.line)


def test_a_core_computes_for_as_much_of_a_curve_as_of_its_seconds():
    assert curve((1e-3, 3e-3), (4, 8)).computing_share == 1
    known = curve_through((4, 8), [[1.0, 1.0], [3.0, 3.0]], [[0.9, 1.0, 1.0], [0.4, 0.6, 0.6]])
    assert known.computing == (1.0, 0.6)
    assert known.computing_share == pytest.approx((1.0 + 3 * 0.6) / 4)
    # Of these seconds the parts of the whole add up to a rounding more than 1, which is no share.
    always = replace(curve((0.0044, 0.0071, 0.0078)), computing=(1.0,) * 3)
    assert always.computing_share == 1


# -- groups -----------------------------------------------------------------------------------------

RISING = measured_network({2: (1e-3, 2e-3, 3e-3), 4: (2e-3, 4e-3, 6e-3)})
FALLING = measured_network({2: (1e-3, 2e-3, 3e-3), 4: (2e-3, 1e-3, 6e-3)})


@given(measured_networks())
def test_measured_groups_cost_what_was_measured(network):
    for group in network.all_reduce:
        assert [network.all_reduce_time(group.gpus, size) for size in CURVE_SIZES] == list(group.curve.seconds)


def test_between_two_groups_the_number_of_gpus_interpolates():
    assert RISING.all_reduce_time(3, 2**20) == pytest.approx(3e-3)


def test_a_group_that_was_not_measured_is_not_taken_to_be_faster_than_a_smaller_one_that_was():
    assert FALLING.all_reduce_time(3, 2**20) == 2e-3
    assert (FALLING.favours(4), RISING.favours(4), FALLING.favours(3), FALLING.favours(2)) == (
        True,
        False,
        False,
        False,
    )


@given(measured_networks(), st.integers(0, 30), st.lists(st.integers(1, 2**28), min_size=1, max_size=20))
def test_no_all_reduce_is_faster_per_byte_than_the_least(network, more, sizes):
    for gpus in (*range(2, network.largest_group + 1), network.largest_group + more):
        least = network.least_seconds_per_byte(gpus, max(sizes))
        assert all(least * size <= network.all_reduce_time(gpus, size) * (1 + 1e-9) for size in sizes)


@given(st.integers(2, 6), st.integers(1, 64), st.floats(1e-6, 1e-3), st.floats(1e8, 1e11), st.sampled_from(SIZES))
def test_beyond_the_largest_group_a_ring_stays_a_ring(measured, more, latency, bandwidth, size):
    def ring(g, s):
        return 2 * (g - 1) * (latency + s / g / bandwidth)

    network = measured_network({g: [ring(g, s) for s in SIZES] for g in range(2, measured + 1)}, SIZES)
    assert network.all_reduce_time(measured + more, size) == pytest.approx(ring(measured + more, size), rel=1e-5)


@given(measured_networks(), st.integers(0, 60), st.integers(1, 2**30))
def test_beyond_the_largest_group_more_gpus_never_take_less(network, more, size):
    gpus = network.largest_group + more
    assert network.all_reduce_time(gpus, size) <= network.all_reduce_time(gpus + 1, size) * (1 + 1e-12)


@pytest.mark.parametrize("groups", [(), (3,), (2, 4, 3)])
def test_groups_ascend_from_two(groups):
    groups = tuple(replace(RISING.all_reduce[0], gpus=gpus) for gpus in groups)
    with pytest.raises(InvalidValueError, match="all_reduce must hold ascending groups from 2 on"):
        replace(RISING, all_reduce=groups)


@pytest.mark.parametrize("seconds", [-1e-12, math.inf, math.nan])
def test_copies_of_gradients_take_no_negative_or_infinite_time(seconds):
    with pytest.raises(InvalidValueError, match=f"must be finite and at least 0, got {seconds:g}"):
        replace(RISING, copy_seconds_per_byte=seconds)


# -- files ------------------------------------------------------------------------------------------


def test_a_measured_cluster_is_the_same_after_a_file(tmp_path):
    inside = replace(FALLING.inside, computing=(1.0, 0.9, 0.8))
    measured = replace(FALLING, inside=inside)
    cluster = Cluster(4, "mine", 4, Link(1e9, 1e-4, "measured"), memory=None, measured=measured)
    found = serialization.read(serialization.write(cluster, tmp_path / "mine.json"), Cluster)
    assert found == cluster
    assert hash(found) == hash(cluster)  # price tables are cached by it


def test_a_cluster_file_without_measurements_is_read_as_before(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(
        '{"format": "deeppool/cluster", "version": 1, "gpus": 4, "name": "old", "gpus_per_node": 4, '
        '"inside": {"bandwidth": 1e9, "latency": 1e-4, "source": "by hand"}, '
        '"between": {"bandwidth": 1e8, "latency": 1e-3, "source": "by hand"}, "memory": null}'
    )
    assert find_cluster(str(path), 2) == Cluster(
        2, "old", 4, Link(1e9, 1e-4, "by hand"), Link(1e8, 1e-3, "by hand"), None
    )


def test_a_measurement_that_was_edited_is_refused_by_its_field(tmp_path):
    path = serialization.write(Cluster(4, measured=RISING), tmp_path / "mine.json")
    path.write_text(path.read_text().replace('"gpus": 2', '"gpus": 5'))
    with pytest.raises(DocumentError, match=r"field 'measured': all_reduce must hold ascending groups from 2"):
        find_cluster(str(path), 2)


@pytest.mark.parametrize(("sizes", "shown"), [(4, 4), (9, 9), (10, 5), (14, 7), (15, 5)])
def test_a_table_shows_at_least_five_sizes_at_equal_steps_if_there_are_so_many(sizes, shown):
    network = measured_network({2: [1e-3] * sizes}, [2**k for k in range(sizes)])
    columns = network.table().splitlines()[1].split("spread")[0].split("B")[:-1]
    assert len(columns) == shown


def test_a_table_names_every_pattern_and_its_line():
    lines = RISING.table().splitlines()
    assert [row.split("  ")[0] for row in lines[2:]] == ["transfer inside a node", "all-reduce of 2", "all-reduce of 4"]
    assert "off by" in lines[-1]
    assert " - " in lines[2]
    copying = replace(RISING, copy_seconds_per_byte=2.0**-32).table().splitlines()
    assert copying == [*lines, "copies of gradients into buckets: 4.0 GiB/s"]
    waiting = replace(RISING, inside=replace(RISING.inside, computing=(0.7, 0.7, 0.7)))
    assert "  70%  " in waiting.table().splitlines()[2]
    assert (waiting.computing("transfer"), waiting.computing("all-reduce")) == (pytest.approx(0.7), 1)


def test_the_columns_of_a_table_stand_below_each_other_whatever_a_schedule_is_called():
    schedule = ScheduleTimes("sharded-parameter-server", 4, RISING.inside)
    lines = replace(RISING, schedules=(schedule,)).table().splitlines()[2:]
    assert len({row.index("±") for row in lines}) == 1


def test_an_all_reduce_holds_a_core_for_as_long_as_was_measured_and_else_for_no_time():
    assert RISING.sync_computing == 0
    first, last = RISING.all_reduce
    known = replace(first, curve=replace(first.curve, computing=(0.5, 0.5, 0.5)))
    always = replace(last, curve=replace(last.curve, computing=(1.0, 1.0, 1.0)))
    assert replace(RISING, all_reduce=(known, last)).sync_computing == pytest.approx(0.5)
    assert replace(RISING, all_reduce=(known, always)).sync_computing == pytest.approx(0.75)
    # Where it was not measured, a transfer counts as computing all the time.
    assert replace(RISING, all_reduce=(known, last)).computing("all-reduce") == pytest.approx(0.75)
