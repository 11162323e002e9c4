"""Finds the GPUs of this machine that compute, each in a process of its own, which a broken one cannot take along."""

import subprocess
import sys
import time
from collections.abc import Iterable

from deeppool.device.find import find_device

PROBE_SECONDS = 120.0
"""Time limit for all processes to import torch, initialise their GPU and compute on it; a lost GPU may hang."""


def computing_gpus(kind: str, indices: Iterable[int]) -> set[int]:
    """Returns the devices, of those with some indices, on which a small computation succeeds."""
    probes = {
        index: subprocess.Popen(
            [sys.executable, "-m", "deeppool.device.probe", kind, str(index)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in indices
    }
    deadline = time.monotonic() + PROBE_SECONDS
    try:
        return {index for index, probe in probes.items() if _succeeds(probe, deadline)}
    finally:
        for probe in probes.values():
            probe.kill()
            probe.wait()


def _succeeds(probe: "subprocess.Popen[bytes]", deadline: float) -> bool:
    try:
        return probe.wait(max(0.0, deadline - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Computes on one device; fails if it cannot."""
    import torch

    kind, index = sys.argv[1], int(sys.argv[2])
    device = find_device(kind)
    device.select(index)
    total = torch.ones(1024, device=device.torch_device(index)).sum().item()
    sys.exit(0 if total == 1024 else 1)


if __name__ == "__main__":
    main()
