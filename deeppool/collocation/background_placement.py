"""Chooses where a background runs: in a process of its own, or in a thread of the rank beside which it runs.

Two threads of one process share a GPU by the priorities of their streams and see each other's stamps, so every
mechanism works; but what ends the device's context ends both. Two processes take turns on a GPU, and each survives the
other; under MPS they run at once, and a fault of one may end both: whether it does was not measured. An emulated
device is one process's: a background of another process would share only the machine's cores with the rank.
"""

from dataclasses import dataclass

from deeppool.base.sharing import Sharing
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.device.abilities import mps
from deeppool.device.kinds import find_kind
from deeppool.errors import InvalidValueError

THREAD = "thread of the rank"
PROCESS = "process"
PROCESS_UNDER_MPS = "process, under MPS"


@dataclass(frozen=True, slots=True)
class BackgroundSetup:
    """The background job of a measured run, the same beside every rank."""

    job: BackgroundJob
    sharing: Sharing
    """Mechanisms by which it shares a device with a rank."""
    placement: str
    """:data:`THREAD`, :data:`PROCESS` or :data:`PROCESS_UNDER_MPS`."""


def place_background(sharing: Sharing, device: str) -> str:
    """Chooses where a background runs; returns the placement as in :class:`BackgroundSetup`.

    Never starts or stops an MPS daemon; processes use one that runs.

    Args:
        sharing: sharing mechanisms that the caller requested.
        device: kind of the device.

    Raises:
        InvalidValueError: a thread or a process was asked for and is not possible.
    """
    kind = find_kind(device)
    on_cores = kind.on_cores
    if sharing.home == "thread" and on_cores and (sharing.share is not None or sharing.priority != "normal"):
        raise InvalidValueError(
            f"a background in a thread of the rank runs at the rank's own priority on a CPU, got {sharing} "
            "(give it priority 'normal' and no share, or home 'process')"
        )
    if sharing.home == "process" and kind.emulated:
        raise InvalidValueError(
            f"device {device} belongs to one process: a background in a process of its own would have a device of its "
            "own, and share with the rank only the cores of this machine, got home 'process' (leave it 'auto')"
        )
    if sharing.home == "thread" or (sharing.home == "auto" and not on_cores):
        return THREAD
    return PROCESS_UNDER_MPS if not on_cores and mps().startswith("running") else PROCESS
