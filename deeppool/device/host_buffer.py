"""Host memory through which tensors of a device pass to code that knows only the host's."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class HostBuffer:
    """Host memory for one tensor at a time; pinned where that makes a device's copies faster."""

    def __init__(self) -> None:
        """Allocates nothing: the first tensor tells how much."""
        self._memory: torch.Tensor | None = None

    def copy_of(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Returns a tensor of the host with the same contents, valid until the next call; a host's tensor itself."""
        import torch

        if tensor.device.type == "cpu":
            return tensor
        if self._memory is None or self._memory.shape != tensor.shape or self._memory.dtype != tensor.dtype:
            self._memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        # Waits for the stream that computes it: whoever reads the copy knows no streams.
        self._memory.copy_(tensor)
        return self._memory
