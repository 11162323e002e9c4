"""Description of this machine: versions, GPUs and mechanisms for sharing a device; ``deeppool env`` prints it."""

import datetime
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

from deeppool.device import control_group
from deeppool.device.abilities import GpuAbilities, gpu_abilities, mps
from deeppool.device.cpu import processor_name, usable_cores
from deeppool.device.nvml import Nvml
from deeppool.units import format_bytes

PACKAGES = ("deeppool", "torch", "torchvision", "plotly", "ipywidgets", "jupyterlab", "papermill", "nvidia-ml-py")


def package_versions(*names: str) -> dict[str, str]:
    """Returns the versions of installed packages; those absent are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def made_now() -> dict[str, Any]:
    """Returns the ``date`` and the ``versions`` of a record that is made now."""
    now = datetime.datetime.now().isoformat(timespec="seconds")
    return {"date": now, "versions": package_versions("deeppool", "torch")}


@dataclass(frozen=True, slots=True)
class Environment:
    """Description of one machine."""

    KIND: ClassVar[str] = "environment"

    python: str
    platform: str
    processor: str
    cores: int
    """Number of cores that this process may use."""
    memory: int
    """Memory of the machine, in bytes."""
    gpus: tuple[str, ...]
    gpu_abilities: tuple[GpuAbilities, ...]
    """Abilities of each GPU for two jobs that share it, in the same order."""
    mps: str | None
    """NVIDIA's daemon through which several processes run on a GPU at once; None without a GPU."""
    gpu_problem: str | None
    """Reason why no GPUs are listed."""
    background_priority: str
    """Lowest priority available to a background job on this machine."""
    control_groups: str | None
    """Folder in which this process may create control groups, to give a background a share of a core, or None."""
    versions: dict[str, str]

    def __str__(self) -> str:
        rows: dict[str, Any] = {
            "python": f"{self.python} on {self.platform}",
            "processor": f"{self.processor}, {self.cores} cores, {format_bytes(self.memory)}",
            "gpus": ("\n" + 21 * " ").join(map(str, self.gpu_abilities)) or f"none: {self.gpu_problem}",
            **({} if self.mps is None else {"mps": self.mps}),
            "background priority": self.background_priority,
            "control groups": self.control_groups or "none may be made here: a share of a core becomes a nice level",
            "packages": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }
        return "\n".join(f"{name:20s} {value}" for name, value in rows.items())


def environment() -> Environment:
    """Describes this machine; loads torch only to test the abilities of GPUs."""
    import os

    import psutil

    with Nvml() as nvml:
        gpus, problem, abilities = nvml.names, nvml.problem, gpu_abilities(nvml)
    return Environment(
        python=sys.version.split()[0],
        platform=platform.platform(),
        processor=processor_name(),
        cores=len(usable_cores()),
        memory=psutil.virtual_memory().total,
        gpus=gpus,
        gpu_abilities=abilities,
        mps=mps() if gpus else None,
        gpu_problem=problem,
        background_priority="SCHED_IDLE" if hasattr(os, "SCHED_IDLE") else "nice 19",
        control_groups=None if (group := control_group.home()) is None else str(group),
        versions=package_versions(*PACKAGES),
    )
