"""Host server: starts processes on its machine for the launcher, and relays commands and answers."""

import itertools
import os
import platform
import queue
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from deeppool.device.cpu import usable_cores
from deeppool.device.cuda import gpu_count
from deeppool.errors import RunError
from deeppool.processes.clock_offset import ClockOffset
from deeppool.processes.managed_process import Inbox, ManagedProcess, Message, ProcessHandle
from deeppool.processes.torchrun.channel import Channel

PING_SECONDS = 2.0
FIRST_PINGS = 8


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Slot of one of torchrun's processes: its rank, its machine and the resources there."""

    rank: int
    local_rank: int
    """Index among torchrun's processes on its node."""
    local_ranks: int
    """Number of torchrun's processes on its node."""
    node: int
    host: str
    cores: tuple[int, ...]
    """Numbers of the cores that it may use."""
    memory: int
    """Bytes available on the node."""
    gpus: int
    folder: str
    """Private folder for the files of a run."""


def find_host_slot(folder: Path) -> HostSlot:
    """Returns the slot of this process."""
    import psutil

    rank, local_ranks = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return HostSlot(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK", rank % local_ranks)),
        local_ranks=local_ranks,
        node=int(os.environ.get("GROUP_RANK", rank // local_ranks)),
        host=platform.node(),
        cores=tuple(usable_cores()),
        memory=psutil.virtual_memory().available,
        gpus=gpu_count(),
        folder=str(folder),
    )


class HostServer:
    """Starts and commands processes for one launcher. A context manager that ends every one of them."""

    def __init__(self, channel: Channel, folder: Path, *, same_clock: bool) -> None:
        """Starts relaying answers; commands are read by :meth:`serve`.

        Args:
            channel: to the launcher.
            folder: for the files that the launcher sends.
            same_clock: whether the launcher is on this machine.
        """
        self._channel, self._folder = channel, folder
        self._inbox: Inbox = queue.SimpleQueue()
        self._processes: dict[int, ManagedProcess] = {}
        self._numbers: dict[ProcessHandle, int] = {}
        self._lock = threading.Lock()
        self.offset = ClockOffset()
        threading.Thread(target=self._relay, daemon=True).start()
        if not same_clock:
            threading.Thread(target=self._ping, daemon=True).start()

    def serve(self) -> bool | None:
        """Handles messages until the end; returns whether the run succeeded, None if the launcher is gone."""
        handlers = {
            "folder": self._on_folder,
            "file": self._on_file,
            "start": self._on_start,
            "command": self._on_command,
            "cpu": self._on_cpu,
            "close": self._on_close,
            "pong": self._on_pong,
        }
        try:
            for message in self._channel:
                if message["event"] == "end":
                    return bool(message["succeeded"])
                handlers[message["event"]](message)
        except OSError as error:
            raise RunError(
                f"cannot keep the files of the run in {self._folder}: {error.strerror} (is the disk full?)"
            ) from error
        return None

    def _on_folder(self, message: Message) -> None:
        """Removes what the previous attempt left: files, and the folders of its loader workers' sockets."""
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _on_file(self, message: Message) -> None:
        self._channel.receive_file(self._folder / Path(message["name"]).name, message["size"])

    def _on_start(self, message: Message) -> None:
        # Its first answer may come before it is registered.
        with self._lock:
            try:
                handle = ManagedProcess(message["module"], message["name"], self._inbox)
            except RunError as error:
                why = str(error).removeprefix(f"{message['name']} cannot start: ")
                reason = f"cannot start on {platform.node()}: {why}"
                self._channel.send("ended", process=message["process"], code=1, exit_reason=reason)
                return
            self._processes[message["process"]] = handle
            self._numbers[handle] = message["process"]

    def _on_command(self, message: Message) -> None:
        handle = self._processes.get(message["process"])
        if handle is not None:
            handle.send(message["command"], **message["arguments"], clock=self.offset.seconds)

    def _on_cpu(self, message: Message) -> None:
        handle = self._processes.get(message["process"])
        self._channel.send("cpu", process=message["process"], seconds=handle and handle.cpu_seconds())

    def _on_close(self, message: Message) -> None:
        handle = self._unregister(message["process"])
        if handle is not None:
            self._end(message["process"], handle, message["grace"])

    def _on_pong(self, message: Message) -> None:
        self.offset.add(message["sent"], message["there"], time.perf_counter())

    def _end(self, process: int, handle: ManagedProcess, grace: float) -> None:
        if grace:
            handle.close(grace)
        else:
            handle.kill()
        self._channel.send("ended", process=process, code=handle.exit_code(), exit_reason="was ended")

    def _unregister(self, process: int) -> ManagedProcess | None:
        with self._lock:
            return self._processes.pop(process, None)

    def _relay(self) -> None:
        while True:
            handle, message = self._inbox.get()
            with self._lock:
                process = self._numbers[handle] if message is not None else self._numbers.pop(handle)
            if message is not None:
                self._channel.send("answer", process=process, message=message)
                continue
            ended = self._unregister(process)
            # The caller that closes a process unregisters it first; its exit reason can then not be read any more.
            if ended is not None:
                code, exit_reason = ended.exit_code(), ended.exit_reason()
                ended.kill()
                self._channel.send("ended", process=process, code=code, exit_reason=exit_reason)

    def _ping(self) -> None:
        for number in itertools.count():
            self._channel.send("ping", sent=time.perf_counter())
            time.sleep(PING_SECONDS if number >= FIRST_PINGS else 0.05)

    def __enter__(self) -> "HostServer":
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self._processes):
            handle = self._unregister(process)
            if handle is not None:
                handle.kill()
