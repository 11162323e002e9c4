"""The cluster on which a profile is planned when none is named: that of the device on which it was measured."""

from dataclasses import replace

import pytest

from deeppool.cluster.cluster import find_cluster
from deeppool.device.find import find_device
from deeppool.profiling.default_cluster import cluster_for
from deeppool.profiling.table import Profile
from tests.strategies import make_graph, profile_from_times


def profile_on(device: str, name: str) -> Profile:
    graph = make_graph([(), (0,)])
    return replace(profile_from_times(graph, [lambda b: 1e-3 * b] * 2), device=device, device_name=name)


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_ranks_that_communicate_over_the_loopback_are_planned_on_it(device: str) -> None:
    assert cluster_for(profile_on(device, "AMD EPYC"), 4) == find_cluster("loopback", 4)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_a_gpu_is_planned_in_its_dgx_also_in_virtual_time(gpu: str) -> None:
    dgx = find_cluster(f"dgx-{gpu}", 8)
    assert cluster_for(profile_on("cuda", f"NVIDIA {gpu.upper()}"), 8) == dgx
    assert cluster_for(profile_on(f"emulated:{gpu}", find_device(f"emulated:{gpu}").name), 8) == dgx


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA A100-SXM4-40GB", 40e9),
        ("NVIDIA A100 SXM4 80GB", 80e9),
        ("NVIDIA A100-SXM4-80GB", 80e9),
        ("Tesla V100-SXM2-16GB", 16e9),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20e9),
        ("NVIDIA GH200 480GB", 40e9),
        ("NVIDIA L4", 24e9),
        ("NVIDIA of tomorrow", 40e9),
    ],
)
def test_a_gpu_has_its_own_memory_beside_the_links_of_a_dgx(name: str, memory: float) -> None:
    assert cluster_for(profile_on("cuda", name), 8) == replace(find_cluster("dgx-a100", 8), memory=memory)


def test_a_slice_of_a_gpu_has_its_own_memory_beside_the_links_of_its_dgx() -> None:
    dgx = find_cluster("dgx-h100", 8)
    assert cluster_for(profile_on("cuda", "NVIDIA H100 80GB HBM3"), 8) == dgx
    assert cluster_for(profile_on("cuda", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), 8) == replace(dgx, memory=10e9)


def test_a_named_cluster_is_kept() -> None:
    assert cluster_for(profile_on("emulated", "AMD EPYC"), 2, "dgx-a100") == find_cluster("dgx-a100", 2)
