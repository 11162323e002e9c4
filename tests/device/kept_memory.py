"""What freed memory costs a process that keeps it, and one that does not: see test_heap.py."""

import resource
from pathlib import Path

from deeppool.device.heap import keep_memory, memory_kept

ROUNDS, FEW = 5, 100
"""Of making and freeing a block; page faults in all of them: not even one for each huge page of 2 MiB."""
MIB = 2**20
SIZE = 64 * MIB
"""Twice what glibc ever keeps by itself."""


def faults() -> int:
    """Pages that the operating system hands out while a block is made and freed several times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        bytearray(b"1") * SIZE
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def keep() -> None:
    assert faults() > FEW
    assert keep_memory()
    faults()
    assert faults() < FEW


def keep_for_a_block() -> None:
    with memory_kept():
        faults()
        assert faults() < FEW
        held = resident()
    assert resident() < held - SIZE / 2
    assert faults() > FEW
