"""What is done to a command: a signal or a memory limit to one of its processes, a disk, its clock, or its network."""

import contextlib
import os
import random
import resource
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

HERE = Path(__file__).parent
DISK_MEBIBYTES = 256
ROOM = 16 * 2**20
"""Bytes that a process whose memory is limited may still map."""
JUMP = 3600.0
"""Seconds by which the wall clock jumps, forwards or backwards."""
STOPS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}


LOST_GPU = "lost GPU"
ON_PROCESSES = (*STOPS, "out of memory", LOST_GPU)
"""Faults that hit one process."""


def needs_root(fault: str) -> bool:
    """Whether a fault cannot be made by another user."""
    return fault in ("full disk", "read-only output", "partition")


@contextmanager
def disk(folder: Path, fault: str) -> Iterator[None]:
    """Makes a folder a small disk for the faults that need one; for one of them it cannot be written."""
    if fault not in ("full disk", "read-only output"):
        yield
        return
    mode = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEBIBYTES}m" + (",ro" if fault == "read-only output" else "")]
    subprocess.run([*mode, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def clock_environment(folder: Path) -> dict[str, str]:
    """Returns variables by which a command has a wall clock that can be shifted; compiles what it preloads."""
    library, shift = folder / "clock.so", folder / "clock"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "clock.c")], check=True)
    shift.write_bytes(struct.pack("d", 0.0))
    return {"LD_PRELOAD": str(library), "DEEPPOOL_FAULTS_CLOCK": str(shift)}


def apply(fault: str, victim: psutil.Process, folder: Path, draw: random.Random) -> None:
    """Makes the fault; one that was there from the start needs nothing."""
    if fault in STOPS:
        victim.send_signal(STOPS[fault])
    elif fault == "out of memory":
        bytes_now = victim.memory_info().vms + ROOM
        resource.prlimit(victim.pid, resource.RLIMIT_AS, (bytes_now, bytes_now))
    elif fault == "full disk":
        _fill(folder / "output" / "filler")
    elif fault == "clock jump":
        with (folder / "clock").open("r+b") as stream:
            stream.write(struct.pack("d", draw.choice((-JUMP, JUMP))))
    elif fault == "partition":
        subprocess.run(["ip", "link", "set", "deeppool-p1", "down"], check=True)


def lose_gpu(launcher: psutil.Process, rank: psutil.Process) -> None:
    """Takes the core of a rank from its launcher, as when a container's cpuset shrinks, and kills the rank."""
    left = sorted({*launcher.cpu_affinity()} - {*rank.cpu_affinity()})
    # Each thread has its own cores.
    for thread in launcher.threads():
        os.sched_setaffinity(thread.id, left)
    rank.kill()


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while True:
            stream.write(os.urandom(4096) * 16)
