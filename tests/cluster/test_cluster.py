"""Clusters: which link a group of GPUs crosses, and where a cluster's name leads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deeppool.base import serialization
from deeppool.cluster.cluster import PRESETS, Cluster, Link, as_cluster, find_cluster
from deeppool.errors import DocumentError, InvalidValueError

SLOW = Link(bandwidth=1e9, latency=1e-3, source="made up")
FAST = Link(bandwidth=1e11, latency=1e-6, source="made up")


def test_a_group_crosses_the_slow_link_once_it_leaves_its_node() -> None:
    cluster = Cluster(gpus=8, gpus_per_node=4, inside=FAST, between=SLOW)
    assert [cluster.link(count) for count in (1, 4, 5, 8)] == [FAST, FAST, SLOW, SLOW]


def test_a_group_from_any_gpu_on_crosses_the_slow_link_if_its_gpus_are_of_two_nodes() -> None:
    cluster = Cluster(gpus=12, gpus_per_node=4, inside=FAST, between=SLOW)
    nodes = [0] * 4 + [1] * 4 + [2] * 4
    for first in range(12):
        for end in range(first + 1, 13):
            expected = FAST if len(set(nodes[first:end])) == 1 else SLOW
            assert cluster.link(end - first, first) == expected


def test_links_inside_a_node_may_be_the_slow_ones_of_a_group() -> None:
    cluster = Cluster(gpus=8, gpus_per_node=4, inside=SLOW, between=FAST)
    assert [cluster.link(count) for count in (1, 4, 5, 8)] == [SLOW] * 4
    # What leaves a node of several GPUs passes the links inside it.
    assert [cluster.link(count, 3) for count in (1, 2, 3)] == [SLOW] * 3
    mixed = replace(cluster, inside=Link(1e9, 1e-6, "near"), between=Link(1e11, 1e-3, "far"))
    assert mixed.link(8) == Link(1e9, 1e-3, "near; far")


def test_what_is_exactly_at_a_bound_is_allowed() -> None:
    assert Cluster(gpus=1, gpus_per_node=1).link(1) == Cluster(gpus=8).inside
    assert Cluster(gpus=2**20, gpus_per_node=2**20).gpus == 2**20
    assert Link(bandwidth=1, latency=0, source="").latency == 0


@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda: Cluster(gpus=0), "gpus must be at least 1, got 0"),
        (lambda: Cluster(gpus=2.0), "gpus must be a whole number, got 2.0"),
        (lambda: Cluster(gpus=4, gpus_per_node="2"), "gpus_per_node must be a whole number, got '2'"),
        (lambda: as_cluster(None), "gpus must be a whole number, got None"),
        (lambda: Cluster(gpus=2**20 + 1), "gpus must be at most 1048576, got 1048577"),
        (lambda: Cluster(gpus=4, memory=float("inf")), "memory must be positive, got inf bytes"),
        (lambda: Cluster(gpus=4, gpus_per_node=-1), "gpus_per_node must be at least 1, got -1"),
        (lambda: Cluster(gpus=4, memory=0), r"memory must be positive, got 0 bytes \(None: unknown\)"),
        (lambda: Cluster(gpus=4, memory=float("nan")), "memory must be positive, got nan bytes"),
        (lambda: Link(0, 0, ""), "bandwidth must be positive, got 0"),
        (lambda: Link(float("nan"), 0, ""), "bandwidth must be positive, got nan"),
        (lambda: Link(float("inf"), 0, ""), "bandwidth must be positive, got inf"),
        (lambda: Link(1e9, float("inf"), ""), "latency must not be negative, got inf"),
        (lambda: Link(1, -1, ""), "latency must not be negative, got -1"),
    ],
)
def test_an_impossible_cluster_is_refused_with_the_bound(make: Callable[[], object], phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        make()


def test_a_number_of_gpus_is_that_of_a_dgx_a100_also_numpys() -> None:
    assert as_cluster(np.int64(4)) == Cluster(4)
    assert type(Cluster(4, gpus_per_node=np.int32(2)).gpus_per_node) is int
    assert as_cluster(PRESETS["loopback"]) is PRESETS["loopback"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_its_name_and_takes_the_number_of_gpus_asked_for(name: str) -> None:
    cluster = find_cluster(name, gpus=3)
    assert (cluster.name, cluster.gpus, cluster.inside) == (name, 3, PRESETS[name].inside)


def test_every_preset_says_where_its_numbers_come_from() -> None:
    assert all(link.source for cluster in PRESETS.values() for link in (cluster.inside, cluster.between))


def test_gpus_of_a_preset_have_the_memory_of_their_data_sheet_or_none_that_is_known() -> None:
    known = {name: cluster.memory for name, cluster in PRESETS.items()}
    assert known == {"dgx-a100": 40e9, "dgx-h100": 80e9, "dgx-h200": 141e9, "ethernet-25g": None, "loopback": None}
    nodes = {name: cluster.gpus_per_node for name, cluster in PRESETS.items()}
    assert nodes == {"dgx-a100": 8, "dgx-h100": 8, "dgx-h200": 8, "ethernet-25g": 1, "loopback": 2**20}


def test_a_cluster_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = serialization.write(Cluster(gpus=4, name="mine", inside=FAST), tmp_path / "mine.json")
    assert find_cluster(str(path), gpus=2) == Cluster(gpus=2, name="mine", inside=FAST)


def test_an_unknown_cluster_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match="no cluster 'dgx-1': neither a file nor one of dgx-a100, dgx-h100"):
        find_cluster("dgx-1", gpus=8)


def test_a_file_that_is_no_cluster_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"format": "deeppool/plan", "version": 1}')
    with pytest.raises(DocumentError, match="'deeppool/plan', expected 'deeppool/cluster'"):
        find_cluster(str(path), gpus=8)


def test_a_cluster_prints_itself_in_a_line() -> None:
    assert str(Cluster(gpus=4, name="mine", inside=SLOW)) == "mine, 4 GPUs (953.7 MiB/s, 1 ms (made up))"
