"""Actor of one GPU, or core, which starts the processes of its foreground and of its background.

Both have the same parent, this process or its fork server, so the same session: Linux divides the CPU between sessions
before it applies priorities. When this process ends, its children read the end of their input and exit.
"""

import itertools
import queue
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.device.cpu import usable_cores
from deeppool.device.kinds import find_kind
from deeppool.errors import RunError
from deeppool.processes.clock_offset import clock_identity
from deeppool.processes.launcher import WorkerSpec
from deeppool.processes.managed_process import ManagedProcess, Message
from deeppool.processes.meeting_point import interface_of, listen, open_store, store_url

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Started:
    job: int
    child: ManagedProcess


class Runtime:
    """Runtime of one GPU of the cluster. Its methods run in several threads at once."""

    CALLS = 16
    """Maximum number of concurrent calls: two for each of its processes, one of them waiting for answers, and a
    reserve."""

    def __init__(self, device: str, address: str, index: int) -> None:
        """Creates the runtime without a process.

        Args:
            device: ``cpu`` or ``cuda``.
            address: address of the machine.
            index: index of the core among the cluster's on the machine; unused for a GPU: Ray shows only that one.
        """
        cores = usable_cores()
        self._core = cores[index % len(cores)] if find_kind(device).on_cores else None
        self._address = address
        self._started: dict[int, _Started] = {}
        self._folders: dict[int, Path] = {}
        self._stores: dict[int, TCPStore] = {}
        self._ended: set[int] = set()
        self._keys = itertools.count()

    def free_memory(self) -> int:
        """Returns the bytes of the machine's memory that are available."""
        import psutil

        return int(psutil.virtual_memory().available)

    def prepare(self, job: int, files: dict[str, bytes]) -> WorkerSpec:
        """Writes the files of a job into a private folder; the rendezvous is for ranks on this machine.

        What is left of an earlier attempt is removed: its launcher may have given up waiting for this runtime.
        """
        self._kill(job)
        folder = Path(tempfile.mkdtemp(prefix="deeppool-"))
        before, self._folders[job] = self._folders.get(job), folder
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        self._check_goes_on(job)
        return WorkerSpec(
            folder=str(folder),
            rendezvous=(folder / "rendezvous").as_uri(),
            interface=interface_of(self._address),
            index=0,
            core=self._core,
        )

    def rendezvous(self, job: int) -> str:
        """Opens the rendezvous of a job's ranks on several machines; it is held until the job ends."""
        self._stores[job] = store = open_store(listen(self._address), self._address)
        self._check_goes_on(job)
        return store_url(store)

    def clock(self) -> tuple[str, float]:
        """Returns the identity of this machine's clock, that of its ranks' spans, and the time on it."""
        return clock_identity(), time.perf_counter()

    def start(self, job: int, module: str, name: str, folder: str) -> int:
        """Starts ``python -m module`` in a folder; returns the number that identifies the process in this runtime."""
        self._check_goes_on(job)
        if not Path(folder).is_dir():
            raise RunError(
                f"the machine {self._address} has no folder {folder}, from which job {job} was submitted "
                "(submit from a folder that all machines share)"
            )
        key = next(self._keys)
        self._started[key] = _Started(job, ManagedProcess(module, name, folder=folder))
        self._check_goes_on(job)
        return key

    def messages(self, key: int) -> list[Message | None]:
        """Waits for answers of a process; None is the last one, after its end."""
        inbox = self._started[key].child.inbox
        messages = [inbox.get()[1]]
        try:
            while messages[-1] is not None:
                messages.append(inbox.get_nowait()[1])
        except queue.Empty:
            pass
        return messages

    def call(self, key: int, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of :class:`deeppool.processes.managed_process.ProcessHandle` on one of the processes."""
        return getattr(self._started[key].child, method)(*arguments, **named)

    def end(self, job: int) -> bool:
        """Kills every process of a job, removes its files, and rejects new ones; returns True when that is done."""
        self._ended.add(job)
        self._kill(job)
        self._stores.pop(job, None)
        folder = self._folders.pop(job, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def _check_goes_on(self, job: int) -> None:
        """Raises if a job has ended, maybe during this call, and removes what the call has made for it."""
        if job in self._ended:
            self.end(job)
            raise RunError(f"job {job} has ended")

    def _kill(self, job: int) -> None:
        for key, started in list(self._started.items()):
            if started.job == job:
                started.child.kill()
                self._started.pop(key, None)
