"""NVIDIA GPUs through torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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

    def torch_device(self, index: int = 0) -> "torch.device":
        """GPU ``index`` of this machine."""
        import torch

        return torch.device("cuda", index)

    def synchronize(self) -> None:
        """Waits for all streams."""
        import torch

        torch.cuda.synchronize()
