"""Where the processes of a live run are: on this machine, or wherever an engine puts them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deeppool.device.cpu import usable_cores
from deeppool.errors import RunError
from deeppool.processes.fork_server_client import fork_server
from deeppool.processes.managed_process import Inbox, ManagedProcess, ProcessHandle
from deeppool.units import format_bytes


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a rank must know of where it runs; travels in its ``setup`` command."""

    folder: str
    """Private, with the files of the run."""
    rendezvous: str
    """URL at which torch.distributed meets."""
    interface: str | None
    """Network interface that gloo listens on; None: its own choice."""
    index: int
    """Of its device, among those of its machine."""
    core: int | None
    """To run on; None: any."""


class Launcher(Protocol):
    """A machine or several, with room for the ranks of a run."""

    cores: int
    """Cores or GPUs that the ranks of the run have to themselves; fewer than ranks where they share."""
    same_files: bool
    """Whether every rank reads what the launcher writes, in whatever folder."""

    def check(self, model: str, needed: int) -> None:
        """Raises RunError where the ranks find no room.

        Args:
            model: for the message.
            needed: bytes of memory of each rank.
        """

    def distribute_files(self, folder: Path) -> None:
        """Brings the files of a private folder to every machine of the run, before a process starts."""

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Of one rank; known when the files were handed over."""

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ProcessHandle:
        """Starts ``python -m module`` where a rank is; its answers go to an inbox of its own unless one is given."""


class LocalLauncher:
    """All ranks on this machine: each on a core of its own as far as there are, or a GPU each."""

    same_files = True

    def __init__(self, device: str, ranks: int) -> None:
        """Looks at the cores.

        Args:
            device: ``cpu`` or ``cuda``.
            ranks: of the run.
        """
        self._device, self._ranks = device, ranks
        self._usable = usable_cores()
        self._folder = Path()
        self.cores = min(ranks, len(self._usable)) if device == "cpu" else ranks

    def check(self, model: str, needed: int) -> None:
        """Raises RunError where there are too few GPUs, or too little memory."""
        if self._device == "cuda":
            import torch

            present = torch.cuda.device_count()
            if self._ranks > present:
                raise RunError(
                    f"the plan needs {self._ranks} GPUs, this machine has {present} (plan with --gpus {present})"
                )
            return
        import psutil

        memory, cores = psutil.virtual_memory().available, len(self._usable)
        if self._ranks * needed > memory:
            raise RunError(
                f"the plan needs {self._ranks} ranks of {model}, about {format_bytes(self._ranks * needed)} of memory; "
                f"this machine has {format_bytes(memory)} available and {cores} cores (plan with --gpus {cores})"
            )

    def distribute_files(self, folder: Path) -> None:
        """The ranks read where the launcher wrote."""
        self._folder = folder

    def worker_spec(self, rank: int) -> WorkerSpec:
        """On the loopback interface: gloo would listen on the machine's public address."""
        return WorkerSpec(
            folder=str(self._folder),
            rendezvous=(self._folder / "rendezvous").as_uri(),
            interface="lo",
            index=rank,
            core=self._usable[rank % len(self._usable)] if self._device == "cpu" else None,
        )

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ManagedProcess:
        """A child of this process."""
        return ManagedProcess(module, name, inbox, fork_server=fork_server())
