"""What a command leaves: processes, shared memory, files in its temporary folder, and records that must be readable."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

import deeppool as dp
from deeppool.errors import DeeppoolError
from deeppool.execution.checkpoint import latest, load_weights

MARK = "DEEPPOOL_FAULTS_MARK"
"""Variable of the environment, which descendants inherit."""

RANK = "execution.worker"
"""Kind of a rank, and of its processes that load data."""


def processes(mark: str) -> list[psutil.Process]:
    """Returns the living processes of an event."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kind(process: psutil.Process, launcher: int) -> str:
    """Returns the kind of a process, by the module that it runs."""
    if process.pid == launcher:
        return "launcher"
    with contextlib.suppress(psutil.Error):
        words = [word for each in process.cmdline() for word in each.split()]
        for word in words:
            if word.startswith(("deeppool.", "ipykernel", "jupyter", "torch.")):
                return word.rstrip(":").removeprefix("deeppool.")
        if scripts := [Path(word).name for word in words if word.endswith(".py")]:
            return scripts[0]
        if words:
            return Path(words[0]).name if not words[0].endswith("python") else Path(words[-1]).name[:30]
    return "unknown"


def pinned_ranks(known: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Returns the ranks among processes that have a core each."""
    found, names = [], {process.pid: kind(process, launcher=0) for process in known}
    for process in known:
        with contextlib.suppress(psutil.Error):
            is_rank = names[process.pid] == RANK and names.get(process.ppid()) != RANK
            found += [process] if is_rank and len(process.cpu_affinity()) == 1 else []
    return found


def shared_memory() -> set[str]:
    """Returns the shared memory that no process uses or names: other processes of the machine may have some."""
    # A semaphore is mapped under a name that it had for a moment only: its inode identifies it.
    # Only processes with the same mounts have this /dev/shm.
    used, commands, mounts = set(), "", Path("/proc/self/ns/mnt").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns" / "mnt").readlink() != mounts:
                continue
            lines = (process / "maps").read_text().splitlines()
            used |= {int(line.split()[4]) for line in lines if "/dev/shm/" in line}
            # A folder there is removed by a process that has it as an argument.
            commands += (process / "cmdline").read_text(errors="replace")
    found = set()
    for path in Path("/dev/shm").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= {path.name} if path.stat().st_ino not in used and path.name not in commands else set()
    return found


def damaged(output: Path) -> str:
    """Returns which file of a command cannot be read afterwards; empty: all can."""
    for path in output.glob("*.json"):
        try:
            dp.load(path)
        except DeeppoolError as error:
            return str(error)
    kept = latest(output / "kept") if (output / "kept").is_dir() else None
    if kept is not None and not all(value.isfinite().all() for value in load_weights(kept).values()):
        return f"{kept} has weights that are not finite"
    return ""


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Returns whether a condition holds within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
