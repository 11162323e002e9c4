"""How kernels share the multiprocessors of a GPU: thread blocks placed by priority, running ones never stopped.

A pure model: time is an argument. A multiprocessor runs one block at a time, as in the times of
:mod:`deeppool.device.roofline`, so a kernel alone takes its latency and its waves of blocks.

- Free multiprocessors take waiting blocks of high priority first, and among equals those of the kernel that started
  first; what it leaves free goes to the next kernel.
- A block that runs is not stopped, so a kernel of high priority waits for running blocks of low priority.
- A kernel may be kept to a number of multiprocessors, as by a green context. Others may use these, too.
- The memory's bandwidth is shared max-min fairly by multiprocessor: blocks that need less than an equal share get what
  they need, and the others share the rest.

Not modelled: two kernels on one multiprocessor, caches, clocks that depend on the load, and which multiprocessor it is.
"""

import math
from dataclasses import dataclass, field

CLOSE = 1e-12
"""Seconds that are none but for rounding."""


@dataclass(frozen=True, slots=True)
class KernelWork:
    """A kernel as the multiprocessors see it."""

    latency: float
    """Seconds before its first block can be placed; all of a copy's, which needs no multiprocessor."""
    blocks: int = 0
    block_seconds: float = 0.0
    """Seconds of one block that gets the bandwidth that it needs."""
    block_bandwidth: float = 0.0
    """Bytes per second that a running block then moves."""


@dataclass(slots=True, eq=False)
class ResidentKernel:
    """A kernel that has started and not ended."""

    work: KernelWork
    high: bool
    limit: int
    """Multiprocessors that it may use at once."""
    number: int
    """Order of starts."""
    placeable: float
    """When its latency has passed."""
    waiting: int
    """Blocks not placed yet."""
    running: int = 0
    """Blocks on multiprocessors."""


@dataclass(slots=True, eq=False)
class _Wave:
    """Blocks of one kernel that were placed together, and so end together."""

    kernel: ResidentKernel
    blocks: int
    left: float
    """Seconds left at full speed: those of this wave, and of whole waves after it while the kernel is alone."""
    rate: float = 1.0


@dataclass(slots=True)
class Multiprocessors:
    """The multiprocessors of one GPU, and the kernels on them."""

    count: int
    bandwidth: float
    """Bytes per second that kernels reach together."""
    now: float = 0.0
    busy: float = 0.0
    """Seconds of all multiprocessors with a block, added up."""
    _kernels: list[ResidentKernel] = field(default_factory=list)
    """In the order in which their blocks are placed."""
    _waves: list[_Wave] = field(default_factory=list)
    _started: int = 0

    @property
    def free(self) -> int:
        """Multiprocessors without a block."""
        return self.count - sum(wave.blocks for wave in self._waves)

    def start(self, work: KernelWork, *, high: bool = False, limit: int | None = None) -> ResidentKernel:
        """Starts a kernel now.

        Args:
            work: its blocks.
            high: whether its stream has high priority.
            limit: multiprocessors that it may use at once; None: all.
        """
        self._split_waves()
        self._started += 1
        most = self.count if limit is None else limit
        kernel = ResidentKernel(work, high, most, self._started, self.now + work.latency, work.blocks)
        self._kernels.append(kernel)
        self._kernels.sort(key=lambda other: (not other.high, other.number))
        self._place()
        return kernel

    def next_time(self) -> float:
        """Returns when blocks end next, or a kernel's latency; infinity if nothing is on the device."""
        times = [kernel.placeable for kernel in self._kernels if kernel.placeable > self.now]
        times += [self.now + wave.left / wave.rate for wave in self._waves]
        # A kernel without blocks ends with its latency, also if that is zero.
        times += [self.now for kernel in self._kernels if self._has_ended(kernel)]
        return min(times, default=math.inf)

    def advance(self, time: float) -> list[ResidentKernel]:
        """Moves to a time, at most :meth:`next_time`; returns the kernels that end then."""
        seconds = max(0.0, time - self.now)
        self.now = max(self.now, time)
        remaining = []
        for wave in self._waves:
            self.busy += wave.blocks * seconds
            wave.left -= seconds * wave.rate
            # After hours of virtual time the clock tells no shorter times than CLOSE apart: it would stand still.
            if wave.left > CLOSE and self.now + wave.left > self.now:
                remaining.append(wave)
            else:
                wave.kernel.running -= wave.blocks
        self._waves = remaining
        ended = [kernel for kernel in self._kernels if self._has_ended(kernel)]
        if ended:
            self._kernels = [kernel for kernel in self._kernels if kernel not in ended]
        self._place()
        return ended

    def _has_ended(self, kernel: ResidentKernel) -> bool:
        return not kernel.waiting and not kernel.running and kernel.placeable <= self.now

    def _place(self) -> None:
        """Places waiting blocks on free multiprocessors."""
        free = self.free
        alone = len(self._kernels) == 1
        for kernel in self._kernels:
            blocks = min(free, kernel.waiting, kernel.limit - kernel.running)
            if blocks <= 0 or kernel.placeable > self.now:
                continue
            # Alone, whole waves follow each other without anything to decide.
            waves = kernel.waiting // blocks if alone and not kernel.running else 1
            self._waves.append(_Wave(kernel, blocks, waves * kernel.work.block_seconds))
            kernel.waiting -= waves * blocks
            kernel.running += blocks
            free -= blocks
        self._share_bandwidth()

    def _split_waves(self) -> None:
        """Gives back the waves that have not begun: another kernel's blocks may come first."""
        for wave in self._waves:
            seconds = wave.kernel.work.block_seconds
            later = max(0, math.ceil((wave.left - CLOSE) / seconds) - 1)
            wave.left -= later * seconds
            wave.kernel.waiting += later * wave.blocks

    def _share_bandwidth(self) -> None:
        left, blocks = self.bandwidth, sum(wave.blocks for wave in self._waves)
        for wave in sorted(self._waves, key=lambda wave: wave.kernel.work.block_bandwidth):
            needed = wave.kernel.work.block_bandwidth
            given = min(needed, left / blocks)
            wave.rate = given / needed if needed else 1.0
            left -= given * wave.blocks
            blocks -= wave.blocks
