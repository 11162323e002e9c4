"""Finds the GPUs of this machine that compute, each in a process of its own, which a broken one cannot take along."""

import queue
import time
from collections.abc import Iterable

from deeppool.base.cancellation import wait
from deeppool.device.find import find_device
from deeppool.processes.managed_process import CommandChannel, Inbox, ManagedProcess, ProcessHandle, close_all

PROBE_SECONDS = 60.0
"""Time limit for all processes to initialise their GPU and compute on it; a broken one may hang."""


def computing_gpus(kind: str, indices: Iterable[int]) -> set[int]:
    """Returns the devices, of those with some indices, on which a small computation succeeds.

    Raises:
        RunCancelledError: this thread's run was cancelled.
    """
    inbox: Inbox = queue.SimpleQueue()
    probes: dict[ProcessHandle, int] = {}
    computing = set()
    try:
        for index in indices:
            probe = ManagedProcess("deeppool.processes.gpu_probe", f"probe {index}", inbox)
            probes[probe] = index
            probe.send("compute", kind=kind, index=index)
        waiting, deadline = set(probes), time.monotonic() + PROBE_SECONDS
        while waiting and (left := deadline - time.monotonic()) > 0:
            try:
                process, message = wait(inbox, left)
            except queue.Empty:
                break
            if message is not None:
                computing.add(probes[process])
            waiting.discard(process)
    finally:
        close_all(list(probes), grace=0)
    return computing


def main() -> None:
    """Computes on one device, and answers if that succeeds."""
    import torch

    commands = CommandChannel()
    setup = commands.next()
    device = find_device(setup["kind"])
    device.select(setup["index"])
    ones = torch.ones(1024, device=device.torch_device(setup["index"]))
    if ones.sum().item() == len(ones):
        commands.answer("computes")


if __name__ == "__main__":
    main()
