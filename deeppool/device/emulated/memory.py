"""A caching allocator with a pool for each stream: a block that the host has released is used again at once.

As on a GPU, the stream's order protects a block that is used again on the stream that it was allocated on. A block
that another stream still reads is overwritten, unless an event orders the two.
"""

import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

SMALLEST = 512
"""Bytes to whose multiples sizes are rounded up, as in torch's allocator for CUDA."""
STEPS = 8
"""Sizes between two powers of two above that."""


@dataclass(slots=True, eq=False)
class Access:
    """An operator's access to a block."""

    stream: int
    tick: int
    """Number of the operator on its stream."""
    operator: str


@dataclass(frozen=True, slots=True, eq=False)
class PendingTransfer:
    """A communication of a block that nobody has waited for yet."""

    start: int
    """First byte in the block."""
    stop: int
    """First byte after it."""
    writes: bool


@dataclass(slots=True, eq=False)
class Block:
    """A block of memory, and its last accesses."""

    storage: torch.UntypedStorage
    writer: Access | None = None
    readers: dict[int, Access] = field(default_factory=dict)
    """Last access of each stream since the last write."""
    transfers: list[PendingTransfer] = field(default_factory=list)


class Region(NamedTuple):
    """Bytes of a block that an operator accesses."""

    block: Block
    start: int
    stop: int


class Memory:
    """A use of a block: alive as long as a tensor refers to it."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: Block) -> None:
        """Refers to a block."""
        self.block = block


class Pool:
    """Blocks of one stream, or of one set of graphs."""

    def __init__(self, counter: "MemoryCounter") -> None:
        """Holds nothing yet."""
        self._counter = counter
        self._free: dict[int, list[Block]] = defaultdict(list)
        # A finalizer runs wherever the collector runs, also while this thread allocates.
        self._lock = threading.RLock()

    def allocate(self, size: int) -> Memory:
        """Returns memory of at least ``size`` bytes; its content is whatever was there before.

        Raises:
            torch.OutOfMemoryError: more than the device's memory.
        """
        rounded = rounded_size(size)
        with self._lock:
            self._counter.add(rounded)
            free = self._free[rounded]
            block = free.pop() if free else self._new_block(rounded)
        memory = Memory(block)
        weakref.finalize(memory, self._release, block, rounded).atexit = False
        return memory

    def _new_block(self, size: int) -> Block:
        self._counter.reserve(size)
        return Block(torch.UntypedStorage(size))

    def _release(self, block: Block, size: int) -> None:
        with self._lock:
            self._counter.add(-size)
            self._free[size].append(block)


class MemoryCounter:
    """Bytes in use, at most those of the device."""

    def __init__(self, size: float | None) -> None:
        """Counts from zero; ``size`` is the device's memory in bytes, None if it has no bound."""
        self.size = size
        self.now = self.peak = self.reserved = 0
        self._lock = threading.RLock()

    def add(self, size: int) -> None:
        """Adds bytes, or subtracts them."""
        with self._lock:
            if size > 0 and self.size is not None and self.now + size > self.size:
                raise torch.OutOfMemoryError(
                    f"emulated device out of memory: {size} bytes were asked for, {self.now} of {self.size:.0f} are in "
                    "use (a smaller batch)"
                )
            self.now += size
            self.peak = max(self.peak, self.now)

    def reserve(self, size: int) -> None:
        """Counts bytes that a pool has taken from the device; pools give none back."""
        with self._lock:
            self.reserved += size

    def use(self) -> tuple[int, int]:
        """Returns the bytes in use, now and at the peak since the last call."""
        with self._lock:
            highest, self.peak = self.peak, self.now
            return self.now, highest


def rounded_size(size: int) -> int:
    """Returns the bytes of the block that holds some."""
    if size <= SMALLEST * STEPS:
        return max(SMALLEST, -(-size // SMALLEST) * SMALLEST)
    step = 1 << (size.bit_length() - 1 - (STEPS.bit_length() - 1))
    return -(-size // step) * step
