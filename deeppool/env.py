"""What this machine has, as far as deeppool cares: ``deeppool env`` prints it."""

import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

from deeppool.device.cpu import processor_name, usable_cores
from deeppool.units import format_bytes

PACKAGES = ("deeppool", "torch", "torchvision", "plotly", "ipywidgets", "jupyterlab", "papermill", "nvidia-ml-py")


def package_versions(*names: str) -> dict[str, str]:
    """Versions of installed packages; those absent are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Environment:
    """One machine."""

    KIND: ClassVar[str] = "environment"

    python: str
    platform: str
    processor: str
    cores: int
    """That this process may use."""
    memory: int
    """Bytes."""
    gpus: tuple[str, ...]
    gpu_problem: str | None
    """Why there are none."""
    background_priority: str
    """The lowest that a background job gets here."""
    versions: dict[str, str]

    def __str__(self) -> str:
        rows: dict[str, Any] = {
            "python": f"{self.python} on {self.platform}",
            "processor": f"{self.processor}, {self.cores} cores, {format_bytes(self.memory)}",
            "gpus": ", ".join(self.gpus) or f"none: {self.gpu_problem}",
            "background priority": self.background_priority,
            "packages": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }
        return "\n".join(f"{name:20s} {value}" for name, value in rows.items())


def environment() -> Environment:
    """Looks at this machine; loads neither torch nor a GPU library that is not there."""
    import os

    import psutil

    gpus, problem = _gpus()
    return Environment(
        python=sys.version.split()[0],
        platform=platform.platform(),
        processor=processor_name(),
        cores=len(usable_cores()),
        memory=psutil.virtual_memory().total,
        gpus=gpus,
        gpu_problem=problem,
        background_priority="SCHED_IDLE" if hasattr(os, "SCHED_IDLE") else "nice 19",
        versions=package_versions(*PACKAGES),
    )


def _gpus() -> tuple[tuple[str, ...], str | None]:
    """Names from NVIDIA's management library, or why it does not answer."""
    try:
        import pynvml
    except ImportError:
        return (), "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"no NVIDIA driver ({error})"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles), None
    finally:
        pynvml.nvmlShutdown()
