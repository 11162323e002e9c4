"""Capture and replay: the kernels of a graph are launched again on the memory that they were captured with."""

from collections.abc import Callable, Sequence

from deeppool.device.emulated.memory import Pool
from deeppool.device.emulated.runtime import Capture, DeviceRuntime

WARM_UPS = 1
"""Runs before a capture, in which optimizers and operators create what they keep."""


def capture_graphs(runtime: DeviceRuntime, works: Sequence[Callable[[], None]]) -> tuple[Callable[[], None], ...]:
    """Runs all works in order, then captures each as one graph; they share a pool of memory."""
    for _ in range(WARM_UPS):
        for work in works:
            work()
    runtime.memory.empty_cache()  # as torch does before a capture
    pool = Pool(runtime.memory, gives_back=False)
    return tuple(_capture(runtime, work, pool) for work in works)


def _capture(runtime: DeviceRuntime, work: Callable[[], None], pool: Pool) -> Callable[[], None]:
    captured = Capture(pool)
    with runtime.capturing(captured):
        work()

    return lambda: runtime.replay(captured)
