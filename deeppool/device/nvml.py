"""Access to NVIDIA's management library (NVML): GPU data from the driver, without CUDA."""

from typing import Any


class Nvml:
    """NVML library, open until the end of the ``with`` block. Covers the GPUs that answer, in the driver's order."""

    def __init__(self) -> None:
        """Opens the library, or stores in :attr:`problem` why that is impossible."""
        self.handles: tuple[Any, ...] = ()
        self.problem: str | None = None
        self.api: Any = None
        """Module ``pynvml``."""
        try:
            import pynvml
        except ImportError:
            self.problem = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.problem = f"no NVIDIA driver ({error})"
            return
        self.api = pynvml
        count = self.ask("nvmlDeviceGetCount") or 0
        found = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        # NVML counts the GPUs that it has no permission for, as those of another job may be, and those that are lost.
        self.handles = tuple(handle for handle in found if handle is not None)
        if not self.handles:
            self.problem = "the NVIDIA driver shows no GPU"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the GPUs; one that was lost since may not say its own."""
        return tuple(str(self.ask("nvmlDeviceGetName", handle) or "unknown GPU") for handle in self.handles)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the library; None where this GPU or driver does not support it."""
        try:
            return getattr(self.api, function)(*arguments)
        except (self.api.NVMLError, AttributeError):
            return None

    def close(self) -> None:
        """Closes the library; may be called repeatedly."""
        if self.api is not None:
            self.ask("nvmlShutdown")
            self.api, self.handles = None, ()

    def __enter__(self) -> "Nvml":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
