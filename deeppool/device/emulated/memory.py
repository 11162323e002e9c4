"""A caching allocator with a pool for each stream: a block that the host has released is used again at once.

As on a GPU, the stream's order protects a block that is used again on the stream that it was allocated on. A block
that another stream still reads is overwritten, unless an event orders the two. Before a graph is captured, and where a
new block would exceed the memory of the device, all pools give back their free blocks, but those of graphs.
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

    def __init__(self, memory: "EmulatedMemory", *, gives_back: bool = True) -> None:
        """Holds nothing yet.

        Args:
            memory: where blocks come from.
            gives_back: whether free blocks may be given back; those of graphs are used by each replay.
        """
        self._memory, self._gives_back = memory, gives_back
        self._free: dict[int, list[Block]] = defaultdict(list)
        self.reserved = 0
        """Bytes of its blocks, used and free."""
        memory.add_pool(self)

    def allocate(self, size: int) -> Memory:
        """Returns memory of at least ``size`` bytes; its content is whatever was there before.

        Raises:
            torch.OutOfMemoryError: more than the device's memory.
        """
        rounded = rounded_size(size)
        with self._memory.lock:
            free = self._free[rounded]
            block = free.pop() if free else self._new_block(rounded)
            self._memory.count(rounded)
        memory = Memory(block)
        weakref.finalize(memory, self._release, block, rounded).atexit = False
        return memory

    def give_back_free_blocks(self) -> None:
        """Gives free blocks back to the device."""
        if self._gives_back:
            self.reserved -= sum(size * len(blocks) for size, blocks in self._free.items())
            self._free.clear()

    def _new_block(self, size: int) -> Block:
        self._memory.make_room(size)
        self.reserved += size
        return Block(torch.UntypedStorage(size))

    def _release(self, block: Block, size: int) -> None:
        with self._memory.lock:
            self._memory.count(-size)
            self._free[size].append(block)


class EmulatedMemory:
    """Memory of a device: the bytes in use, and those that pools have reserved, at most ``size``."""

    def __init__(self, size: float | None) -> None:
        """Counts from zero; ``size`` is in bytes, None if it has no bound."""
        self.size = size
        self.now = self.peak = 0
        # A finalizer runs wherever the collector runs, also while this thread allocates.
        self.lock = threading.RLock()
        """Of all pools, as each may have to give back blocks for another."""
        self._pools = weakref.WeakSet[Pool]()

    @property
    def reserved(self) -> int:
        """Bytes of the blocks of all pools."""
        with self.lock:
            return sum(pool.reserved for pool in self._pools)

    def add_pool(self, pool: Pool) -> None:
        """Adds a pool, until nothing refers to it."""
        with self.lock:
            self._pools.add(pool)

    def empty_cache(self) -> None:
        """Makes all pools give back what they do not use."""
        with self.lock:
            for pool in tuple(self._pools):
                pool.give_back_free_blocks()

    def make_room(self, size: int) -> None:
        """Empties the cache, if a new block would exceed the memory.

        Raises:
            torch.OutOfMemoryError: it exceeds the memory nevertheless.
        """
        if self.size is None or self.reserved + size <= self.size:
            return
        self.empty_cache()
        if (reserved := self.reserved) + size > self.size:
            raise torch.OutOfMemoryError(
                f"emulated device out of memory: {size} bytes were asked for, {reserved} of {self.size:.0f} are in "
                "use (a smaller batch)"
            )

    def count(self, size: int) -> None:
        """Counts bytes that are in use now, or no longer if negative."""
        with self.lock:
            self.now += size
            self.peak = max(self.peak, self.now)

    def use(self) -> tuple[int, int]:
        """Returns the bytes in use, now and at the peak since the last call."""
        with self.lock:
            highest, self.peak = self.peak, self.now
            return self.now, highest


def rounded_size(size: int) -> int:
    """Returns the bytes of the block that holds some."""
    if size <= SMALLEST * STEPS:
        return max(SMALLEST, -(-size // SMALLEST) * SMALLEST)
    step = 1 << (size.bit_length() - 1 - (STEPS.bit_length() - 1))
    return -(-size // step) * step
