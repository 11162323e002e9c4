"""A rank stays on the cores of its GPU's NUMA node, as sysfs names them."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from deeppool.device import numa
from deeppool.device.cuda import CudaDevice
from deeppool.device.numa import cores_beside, pci_address


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (
        ("bus/pci/devices/0000:3b:00.0/numa_node", "0\n"),
        ("bus/pci/devices/0001:af:00.0/numa_node", "1\n"),
        ("bus/pci/devices/0000:00:01.0/numa_node", "-1\n"),
        ("devices/system/node/node0/cpulist", "0-1,4\n"),
        ("devices/system/node/node1/cpulist", "2-3,5-6\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(numa, "SYSFS", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("sysfs")
def test_cores_are_those_of_the_gpus_node() -> None:
    assert cores_beside(pci_address(0, 0x3B, 0)) == {0, 1, 4}
    assert cores_beside(pci_address(1, 0xAF, 0)) == {2, 3, 5, 6}


@pytest.mark.usefixtures("sysfs")
def test_no_cores_are_named_where_the_system_does_not_tell() -> None:
    assert cores_beside(pci_address(0, 0, 1)) == frozenset(), "the firmware names no node"
    assert cores_beside(pci_address(0, 0x99, 0)) == frozenset(), "no such device"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no threads")
@pytest.mark.parametrize("beside", ["some are allowed", "none is allowed"])
def test_selecting_a_gpu_keeps_the_rank_on_the_allowed_cores_beside_it(
    beside: str, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.sched_getaffinity(0)
    first, no_core = min(before), max(before) + 1000
    cores = f"{first},{no_core}" if beside == "some are allowed" else f"{no_core}"
    (sysfs / "devices/system/node/node0/cpulist").write_text(f"{cores}\n")
    chosen: list[int] = []
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    def select() -> set[int]:
        CudaDevice.__new__(CudaDevice).select(3)
        return os.sched_getaffinity(0)

    # In a thread of its own, for the system pins threads.
    with ThreadPoolExecutor(1) as thread:
        pinned = thread.submit(select).result()
    assert chosen == [3]
    assert pinned == ({first} if beside == "some are allowed" else before)
