"""All-reduces of one iteration: when each starts, and how it slows down what runs beside it.

Each GPU has one channel. An all-reduce starts when its gradients are ready and the earlier ones on any of its GPUs have
ended. Where cores compute a share of it, what runs on its GPUs meanwhile advances at the rate of 1 - share.
"""

from deeppool.planning.evaluate.gpu_sets import GpuSet, share_gpus


class Channels:
    """All-reduces in the order in which they start on each GPU."""

    def __init__(self, sync_computing: float) -> None:
        """Starts without all-reduces; ``sync_computing``: share of them that the cores of their GPUs compute."""
        self._computing = sync_computing
        self._free: dict[GpuSet, float] = {}
        """End of the last all-reduce of each set of GPUs."""
        self._all_reduces: list[tuple[GpuSet, float, float]] = []
        """GPUs, start and end."""

    @property
    def end(self) -> float:
        """End of the last all-reduce; 0 without any."""
        return max(self._free.values(), default=0.0)

    def start(self, gpus: GpuSet, ready: float, seconds: float) -> float:
        """Adds an all-reduce, and returns its start: ``ready``, or the end of the last one that shares a GPU."""
        start = ready
        for others, end in self._free.items():
            if end > start and share_gpus(others, gpus):
                start = end
        self._free[gpus] = start + seconds
        if self._computing:
            self._all_reduces.append((gpus, start, start + seconds))
        return start

    def beside(self, gpus: GpuSet, now: float, seconds: float) -> float:
        """Returns the end of what takes some seconds from ``now`` on by itself, beside the all-reduces so far."""
        if not self._computing or not seconds:
            return now + seconds
        running = [(start, end) for others, start, end in self._all_reduces if end > now and share_gpus(others, gpus)]
        rate = 1 - self._computing
        for start, end in sorted(running):
            alone = max(0.0, start - now)
            if seconds <= alone:
                break
            now, seconds = now + alone, seconds - alone
            done = max(0.0, end - now) * rate
            if seconds < done:
                return now + seconds / rate
            now, seconds = max(now, end), seconds - done
        return now + seconds
