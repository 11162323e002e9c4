"""The update of parameters that nobody measured."""

import pytest

from deeppool.device.datasheet import GPUS, find_gpu
from deeppool.profiling.update_estimate import CPU_BANDWIDTH, estimated_update_per_byte

SLOWEST = min(sheet.bandwidth for sheet in GPUS.values())


@pytest.mark.parametrize(
    ("device", "name", "bandwidth"),
    [
        ("cpu", "Intel Xeon", CPU_BANDWIDTH),
        ("cuda", find_gpu("a100-80").title, find_gpu("a100-80").bandwidth),
        ("cuda", "NVIDIA H200", find_gpu("h200").bandwidth),
        ("cuda", "NVIDIA H100 80GB HBM3", find_gpu("h100").bandwidth),
        ("cuda", "NVIDIA H100 PCIe", find_gpu("h100-pcie").bandwidth),
        ("cuda", "NVIDIA A100-SXM4-40GB", find_gpu("a100-40").bandwidth),
        ("cuda", "NVIDIA GeForce RTX 3090", find_gpu("rtx3090").bandwidth),
        ("cuda", "Tesla V100-SXM2-32GB", find_gpu("v100").bandwidth),
        ("cuda", "NVIDIA L40S", find_gpu("l40s").bandwidth),
        ("cuda", "Tesla T4", SLOWEST),
    ],
)
def test_five_accesses_go_through_the_memory_of_the_device(device, name, bandwidth):
    assert estimated_update_per_byte(device, name) == pytest.approx(5 / bandwidth)
