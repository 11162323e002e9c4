"""Abilities of each GPU for two jobs that share it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppool.device.nvml import Nvml

MPS_FOLDER = "/tmp/nvidia-mps"


@dataclass(frozen=True, slots=True)
class GpuAbilities:
    """Abilities of one GPU; each answer is ``yes``, a description, or ``no:`` and the reason."""

    name: str
    cuda_graphs: str
    stream_priorities: str
    """Range of stream priorities, from the lowest to the highest."""
    green_contexts: str
    """Whether green contexts give one job a share of the multiprocessors (:mod:`deeppool.device.sm_share`)."""
    gpm: str
    """Whether performance monitors (GPM) report how many multiprocessors are busy."""
    mig: str
    """Whether the GPU is split into MIG instances, which share nothing."""

    def __str__(self) -> str:
        of: dict[str, list[str]] = {}
        for what, answer in (
            ("CUDA graphs", self.cuda_graphs),
            ("stream priorities", self.stream_priorities),
            ("green contexts", self.green_contexts),
            ("GPM", self.gpm),
            ("MIG", self.mig),
        ):
            of.setdefault(answer, []).append(what)
        return f"{self.name}: " + "; ".join(f"{', '.join(whats)} {answer}" for answer, whats in of.items())


def gpu_abilities(nvml: Nvml) -> tuple[GpuAbilities, ...]:
    """Returns the abilities of all GPUs of the driver. Loads torch and initialises CUDA, unless there is none."""
    seen = _seen_by_torch() if nvml.handles else {}
    return tuple(_abilities(nvml, handle, name, seen) for handle, name in zip(nvml.handles, nvml.names, strict=True))


def mps() -> str:
    """Reports whether the MPS daemon runs, through which processes of several jobs share a GPU."""
    control = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_FOLDER)) / "control"
    try:
        return f"running ({control})" if control.exists() else f"not running (there is no {control})"
    except OSError as error:  # a daemon of another user, to whom this process is no client
        return f"not running for this user ({control}: {error.strerror})"


def _abilities(nvml: Nvml, handle: Any, name: str, seen: dict[str, int] | str) -> GpuAbilities:
    support = nvml.ask("nvmlGpmQueryDeviceSupport", handle)
    gpm = "yes" if support is not None and support.isSupportedDevice else "no: this GPU or its driver has none"
    mode = nvml.ask("nvmlDeviceGetMigMode", handle)
    mig = "no: this GPU has none" if mode is None else "on" if mode[0] else "off"
    identity = str(nvml.ask("nvmlDeviceGetUUID", handle)).removeprefix("GPU-")
    try:
        if isinstance(seen, dict) and identity in seen:
            return GpuAbilities(name, "yes", *_of_torch(seen[identity]), gpm, mig)
        why = seen if isinstance(seen, str) else "torch does not see it (CUDA_VISIBLE_DEVICES?)"
    except RuntimeError as error:  # CUDA's, for example of a GPU that another process has for itself
        why = str(error).splitlines()[0]
    return GpuAbilities(name, f"no: {why}", f"no: {why}", f"no: {why}", gpm, mig)


def _seen_by_torch() -> dict[str, int] | str:
    """Returns UUID → index of the GPUs that torch detects, or the reason why it detects none."""
    from deeppool.device.cuda import cuda_problem
    from deeppool.device.find import find_device

    if find_device("auto").kind != "cuda":
        return cuda_problem() or "torch does not see it"
    import torch

    return {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}


def _of_torch(index: int) -> tuple[str, str]:
    """Returns stream priorities and green contexts, tested on the GPU."""
    import torch

    from deeppool.device.cuda import CudaDevice
    from deeppool.device.sm_share import sm_share

    with torch.cuda.device(index):
        lowest, highest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # static, contrary to its types
        share = sm_share(CudaDevice(), 0.5)
    if share.problem is not None:
        return f"{lowest} to {highest}", f"no: {share.problem}"
    known = "an unknown number" if share.granted is None else share.granted
    return f"{lowest} to {highest}", f"yes, {known} of {share.multiprocessors} multiprocessors granted"
