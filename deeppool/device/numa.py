"""Cores beside a GPU: those of the NUMA node to which its PCI bus is connected, as Linux's sysfs tells.

A rank that launches from, and copies from, the memory of another node crosses the link between the sockets each time.
"""

from pathlib import Path

SYSFS = Path("/sys")


def pci_address(domain: int, bus: int, device: int) -> str:
    """Returns a GPU's address as sysfs writes it: ``0000:3b:00.0``."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def cores_beside(address: str) -> frozenset[int]:
    """Returns the cores of the NUMA node of a PCI device; none where the system does not tell, or has one node.

    Args:
        address: see :func:`pci_address`.
    """
    try:
        node = int((SYSFS / "bus/pci/devices" / address / "numa_node").read_text(encoding="ascii"))
        # -1: the firmware names no node.
        if node < 0:
            return frozenset()
        return _numbers((SYSFS / f"devices/system/node/node{node}/cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def _numbers(ranges: str) -> frozenset[int]:
    """Returns the numbers of a list such as ``0-15,32-47``."""
    found: set[int] = set()
    for part in filter(None, ranges.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
