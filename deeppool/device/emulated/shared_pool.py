"""A pool of memory that several streams share, as CUDA's own stream-ordered allocator keeps one.

A stream gets a block that it has freed itself, if there is one; else a block that another stream has freed, and then
follows that stream's work up to there. For a small one it would wait in vain, so it gets that only once the other
stream has passed the point, and new memory before.

What is freed is only noted at first, as a finalizer must not wait for a lock that its thread may hold; the point in the
stream is recorded before the thread's next kernel, or when a stream allocates.

(NVIDIA, "CUDA C++ Programming Guide", stream ordered memory allocator: reuse with internal dependencies)
"""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from deeppool.device.emulated.memory import Block, EmulatedMemory, Memory, Pool, rounded_size

SMALL = 4 * 2**20
"""Bytes of a block that is not worth a wait for another stream."""


class Freed(NamedTuple):
    """A free block."""

    block: Block
    stream: int
    """Stream that freed it."""
    event: Any
    """Point in that stream after the last use of the block."""


class SharedPool(Pool):
    """Blocks of several streams."""

    def __init__(self, memory: EmulatedMemory) -> None:
        """Holds nothing yet."""
        super().__init__(memory)
        self._freed: dict[int, list[Freed]] = defaultdict(list)
        self._noted: deque[tuple[Block, int, int]] = deque()
        """Blocks freed since the last record, their sizes, and their streams."""

    def allocate_on(
        self, stream: int, size: int, follow: Callable[[Any], None], passed: Callable[[Any], bool]
    ) -> Memory:
        """Returns memory of at least ``size`` bytes; frees must be recorded before.

        Args:
            stream: stream that gets it.
            size: number of bytes.
            follow: makes the stream follow an event.
            passed: whether a stream has passed an event.

        Raises:
            torch.OutOfMemoryError: more than the device's memory.
        """
        rounded = rounded_size(size)
        found = self._take(rounded, lambda freed: freed.stream == stream)
        if found is None:
            found = self._take(rounded, lambda freed: rounded >= SMALL or passed(freed.event))
            if found is not None:
                follow(found.event)
        with self._memory.lock:
            block = self._new_block(rounded) if found is None else found.block
            self._memory.count(rounded)
        memory = Memory(block)
        weakref.finalize(memory, self._note, block, rounded, stream).atexit = False
        return memory

    def record_frees(self, record: Callable[[int], Any]) -> None:
        """Makes what was freed available.

        Args:
            record: records an event on a stream.
        """
        events: dict[int, Any] = {}
        while self._noted:
            try:
                block, size, stream = self._noted.popleft()
            except IndexError:  # another thread was faster
                return
            if stream not in events:
                events[stream] = record(stream)
            with self._memory.lock:
                self._freed[size].append(Freed(block, stream, events[stream]))

    def give_back_free_blocks(self) -> None:
        """Gives free blocks back to the device."""
        self.reserved -= sum(size * len(blocks) for size, blocks in self._freed.items())
        self._freed.clear()

    def _take(self, size: int, suits: Callable[[Freed], bool]) -> Freed | None:
        """Returns a free block that suits, taken from the pool; the lock is not held while a thread may wait."""
        for freed in tuple(self._freed[size]):
            if suits(freed):
                with self._memory.lock:
                    # Another thread may have been faster.
                    if any(freed is still for still in self._freed[size]):
                        self._freed[size].remove(freed)
                        return freed
        return None

    def _note(self, block: Block, size: int, stream: int) -> None:
        self._memory.count(-size)
        self._noted.append((block, size, stream))
