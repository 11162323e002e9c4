"""The cluster on which a profile is planned when none is named."""

import re
from dataclasses import replace

from deeppool.cluster.cluster import Cluster, find_cluster
from deeppool.device.datasheet import sheet_of
from deeppool.device.kinds import emulated_sheet, find_kind
from deeppool.profiling.table import Profile


def cluster_of(profile: Profile, cluster: Cluster | int) -> Cluster:
    """Returns the cluster itself, or of a number of GPUs the one of the profile's device with so many.

    Raises:
        InvalidValueError: fewer than one GPU.
    """
    return cluster if isinstance(cluster, Cluster) else cluster_for(profile, cluster)


def cluster_for(profile: Profile, gpus: int, name_or_file: str | None = None) -> Cluster:
    """Returns a named cluster; by default that of the profile's device.

    The loopback for a CPU and for an emulated device in the machine's time, whose ranks communicate over it; a DGX of
    the profile's GPU for the others. That of a GPU that comes in none of :data:`deeppool.cluster.cluster.PRESETS` is a
    DGX A100 whose GPUs have the memory of the profile's.

    Raises:
        InvalidValueError, DocumentError: as :func:`deeppool.find_cluster`.
    """
    if name_or_file is None and find_kind(profile.device).backend == "gloo" and not emulated_sheet(profile.device):
        name_or_file = "loopback"
    if name_or_file is not None:
        return find_cluster(name_or_file, gpus)
    # Whole words: a GH200 is no H200.
    found = (f"dgx-{gpu.lower()}" for gpu in ("H100", "H200") if re.search(rf"\b{gpu}\b", profile.device_name))
    dgx, sheet = find_cluster(next(found, "dgx-a100"), gpus), sheet_of(profile.device_name)
    if sheet is None:
        return dgx
    # GPUs of one data sheet come with more or less of it, and their names say how much; last that of a MIG slice.
    named = re.findall(r"\b(\d+)GB\b", profile.device_name, re.IGNORECASE)
    return replace(dgx, memory=1e9 * int(named[-1]) if named else sheet.memory)
