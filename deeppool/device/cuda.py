"""NVIDIA GPUs through torch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from deeppool.device.common import Precision

WARM_UPS = 3
"""Runs before a capture, as torch's documentation of CUDA graphs asks for."""


def cuda_problem() -> str | None:
    """Why CUDA cannot be used here, or None."""
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is a CPU build"
    if not torch.cuda.is_available():
        return "this machine has no usable NVIDIA GPU"
    return None


class CudaDevice:
    """The first NVIDIA GPU."""

    kind = "cuda"
    backend = "nccl"

    def __init__(self) -> None:
        """Asks the driver for the name, the number of GPUs and their memory."""
        import torch

        self.name = torch.cuda.get_device_name(0)
        self.count = torch.cuda.device_count()
        self.memory: float | None = float(torch.cuda.get_device_properties(0).total_memory)

    def select(self, index: int) -> None:
        """Work without a device of its own, and :meth:`synchronize`, go to GPU ``index``."""
        import torch

        torch.cuda.set_device(index)

    def unbound(self) -> AbstractContextManager[None]:
        """A process that has a GPU of its own runs on any core."""
        return nullcontext()

    def torch_device(self, index: int = 0) -> "torch.device":
        """GPU ``index`` of this machine."""
        import torch

        return torch.device("cuda", index)

    def synchronize(self) -> None:
        """Waits for all streams."""
        import torch

        torch.cuda.synchronize()

    def stamp(self) -> "torch.cuda.Event":
        """An event on the current stream; inside a capture it becomes a node of the graph."""
        import torch

        event = torch.cuda.Event(enable_timing=True, external=torch.cuda.is_current_stream_capturing())
        event.record()
        return event

    def seconds(self, earlier: "torch.cuda.Event", later: "torch.cuda.Event") -> float:
        """By the GPU's clock."""
        return float(earlier.elapsed_time(later)) / 1e3

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """Captures each work as one graph, all in one pool of memory."""
        import torch

        pool = torch.cuda.graph_pool_handle()
        captured = []
        for work in works:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                work()
            captured.append(graph.replay)
        return tuple(captured)

    @contextmanager
    def arithmetic(self, precision: "Precision") -> Iterator[None]:
        """torch by itself uses TF32 for convolutions and not for products; fp32 here means neither, tf32 both."""
        import torch

        # torch refuses to mix these settings with the older allow_tf32 flags; their types say less than there is.
        backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
        before = [backend.fp32_precision for backend in backends]
        for backend in backends:
            backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        try:
            yield
        finally:
            for backend, setting in zip(backends, before, strict=True):
                backend.fp32_precision = setting

    def free_memory(self) -> int:
        """What the driver has, and what torch's allocator holds without using it."""
        import torch

        free, _ = torch.cuda.mem_get_info()
        return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())

    def memory_use(self) -> tuple[int, int]:
        """By torch's allocator."""
        import torch

        now, highest = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return now, highest
