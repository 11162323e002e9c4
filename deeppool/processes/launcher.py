"""Launchers start the processes of a live run, on this machine or through a cluster engine."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from deeppool.device import control_group
from deeppool.device.cpu import usable_cores
from deeppool.device.cuda import gpu_count
from deeppool.device.kinds import find_kind
from deeppool.errors import RunError
from deeppool.processes.gpu_probe import computing_gpus
from deeppool.processes.managed_process import Inbox, ManagedProcess, ProcessHandle
from deeppool.units import format_bytes


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Machine resources of one rank, sent to it in its ``setup`` command."""

    folder: str
    """Private folder with the files of the run."""
    rendezvous: str
    """URL of torch.distributed's rendezvous."""
    interface: str | None
    """Network interface that gloo listens on; None: gloo chooses."""
    index: int
    """Index of its device on its machine."""
    core: int | None
    """Core to run on; None: any."""


@runtime_checkable
class Launcher(Protocol):
    """Starts the ranks of a run on one machine or several."""

    cores: int
    """Cores or GPUs that the ranks use exclusively; fewer than ranks if they share them."""
    same_files: bool
    """Whether all ranks and the launcher share a file system."""
    gpus: tuple[int, ...]
    """Number of each rank's GPU, or core, among those of the launcher."""

    def available(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the GPUs on which ranks could be started now, in the order of ranks.

        Args:
            in_use: GPUs that are not tried: ranks run on them, or the caller wants none there.
        """

    def assign(self, gpus: Sequence[int]) -> None:
        """Assigns the GPU of each rank, before any is started; they may be fewer than before."""

    def check(self, model: str, needed: int) -> None:
        """Raises RunError if the ranks do not fit.

        Args:
            model: name of the model, for the message.
            needed: bytes of memory per rank.
        """

    def distribute_files(self, folder: Path) -> None:
        """Copies the files of a private folder to every machine of the run, before a process starts."""

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Returns the resources of one rank, known after :meth:`distribute_files`."""

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ProcessHandle:
        """Starts ``python -m module`` on the machine of a rank; answers go to ``inbox``, or to an inbox of its own."""


class LocalLauncher:
    """Starts all ranks on this machine, each on its own core while there are enough, or on its own GPU."""

    same_files = True

    def __init__(self, device: str, ranks: int) -> None:
        """Reads which cores this process may use.

        Args:
            device: ``cpu`` or ``cuda``.
            ranks: number of ranks of the run.
        """
        self._device, self._count = device, ranks
        self._usable = usable_cores()
        self._folder = Path()
        self.assign(range(ranks))

    def available(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the GPUs that compute, of those it was made for, or those whose core this process may still use."""
        kind = find_kind(self._device)
        numbers = range(self._count)
        if kind.on_gpus:
            present = {*in_use} | computing_gpus(self._device, set(numbers) - {*in_use})
            return tuple(gpu for gpu in numbers if gpu in present)
        cores = set(usable_cores())
        return tuple(gpu for gpu in numbers if not kind.on_cores or self._core(gpu) in cores)

    def assign(self, gpus: Sequence[int]) -> None:
        """Assigns the GPU, or the share of a core, of each rank."""
        self.gpus = tuple(gpus)
        self.cores = len(self.gpus)
        if find_kind(self._device).on_cores:
            self.cores = len({self._core(gpu) for gpu in self.gpus})
            if (quota := control_group.quota()) is not None:
                # As of a container with --cpus: what is beyond it stands still for a part of each period.
                self.cores = max(1, min(self.cores, int(quota)))

    def _core(self, gpu: int) -> int:
        return self._usable[gpu % len(self._usable)]

    def check(self, model: str, needed: int) -> None:
        """Raises RunError if there are too few GPUs, or too little memory."""
        if find_kind(self._device).on_gpus:
            present = gpu_count()
            if len(self.gpus) > present:
                step = f"plan with --gpus {present}" if present else "plan for its cores: profile with --device cpu"
                raise RunError(f"the plan needs {len(self.gpus)} GPUs, this machine has {present} ({step})")
            return
        import psutil

        memory, cores, ranks = psutil.virtual_memory().available, len(self._usable), len(self.gpus)
        if ranks * needed > memory:
            fit = min(cores, int(memory // needed))
            step = f"plan with --gpus {fit}" if fit else "end what else uses memory, or take a smaller model"
            raise RunError(
                f"the plan needs {ranks} ranks of {model}, about {format_bytes(ranks * needed)} of memory; "
                f"this machine has {format_bytes(memory)} available and {cores} cores ({step})"
            )

    def distribute_files(self, folder: Path) -> None:
        """Stores the folder: the ranks read the same files."""
        self._folder = folder

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Returns a rank's resources, on the loopback interface: gloo would listen on the machine's public address."""
        return WorkerSpec(
            folder=str(self._folder),
            rendezvous=(self._folder / "rendezvous").as_uri(),
            interface="lo",
            index=self.gpus[rank],
            core=self._core(self.gpus[rank]) if find_kind(self._device).on_cores else None,
        )

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ManagedProcess:
        """Starts a child process."""
        return ManagedProcess(module, name, inbox)
