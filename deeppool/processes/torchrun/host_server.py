"""An agent: starts processes on its machine for the launcher, and relays what is said to and by them."""

import itertools
import os
import platform
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from deeppool.device.cpu import usable_cores
from deeppool.errors import RunError
from deeppool.processes.fork_server_client import fork_server
from deeppool.processes.managed_process import Inbox, ManagedProcess, Message, ProcessHandle
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.clock import ClockOffset

PING_SECONDS = 2.0
FIRST_PINGS = 8


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Where one of torchrun's processes is, and what it finds there."""

    rank: int
    local_rank: int
    """Among torchrun's processes of its node."""
    local_ranks: int
    node: int
    host: str
    cores: tuple[int, ...]
    """That it may use."""
    memory: int
    """Bytes available on the node."""
    gpus: int
    folder: str
    """Private, for the files of a run."""


def find_host_slot(folder: Path) -> HostSlot:
    """This process's."""
    import psutil
    import torch

    rank, local_ranks = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return HostSlot(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK", rank % local_ranks)),
        local_ranks=local_ranks,
        node=int(os.environ.get("GROUP_RANK", rank // local_ranks)),
        host=platform.node(),
        cores=tuple(usable_cores()),
        memory=psutil.virtual_memory().available,
        gpus=torch.cuda.device_count(),
        folder=str(folder),
    )


class HostServer:
    """Serves one launcher. A context manager that ends every process it has started."""

    def __init__(self, wire: Channel, folder: Path, *, same_clock: bool) -> None:
        """Listens to nobody yet.

        Args:
            wire: to the launcher.
            folder: for the files that it sends.
            same_clock: whether the launcher is on this machine.
        """
        self._wire, self._folder = wire, folder
        self._answers: Inbox = queue.SimpleQueue()
        self._children: dict[int, ManagedProcess] = {}
        self._numbers: dict[ProcessHandle, int] = {}
        self._changing = threading.Lock()
        self.offset = ClockOffset()
        threading.Thread(target=self._relay, daemon=True).start()
        if not same_clock:
            threading.Thread(target=self._ping, daemon=True).start()

    def serve(self) -> bool | None:
        """Obeys until the end; whether the run went well, None if the launcher is gone."""
        obey = {
            "folder": self._on_folder,
            "file": self._on_file,
            "start": self._on_start,
            "command": self._on_command,
            "cpu": self._on_cpu,
            "close": self._on_close,
            "pong": self._on_pong,
        }
        try:
            for message in self._wire:
                if message["event"] == "end":
                    return bool(message["well"])
                obey[message["event"]](message)
        except OSError as error:
            raise RunError(
                f"cannot keep the files of the run in {self._folder}: {error.strerror} (is the disk full?)"
            ) from error
        return None

    def _on_folder(self, message: Message) -> None:
        """Another attempt begins."""
        for path in self._folder.iterdir():
            path.unlink()

    def _on_file(self, message: Message) -> None:
        self._wire.receive_file(self._folder / Path(message["name"]).name, message["size"])

    def _on_start(self, message: Message) -> None:
        # It may say something before it has its number.
        with self._changing:
            child = ManagedProcess(message["module"], message["name"], self._answers, fork_server=fork_server())
            self._children[message["process"]] = child
            self._numbers[child] = message["process"]

    def _on_command(self, message: Message) -> None:
        child = self._children.get(message["process"])
        if child is not None:
            child.send(message["command"], **message["arguments"], clock=self.offset.seconds)

    def _on_cpu(self, message: Message) -> None:
        child = self._children.get(message["process"])
        self._wire.send("cpu", process=message["process"], seconds=child and child.cpu_seconds())

    def _on_close(self, message: Message) -> None:
        child = self._forget(message["process"])
        if child is not None:
            self._end(message["process"], child, message["grace"])

    def _on_pong(self, message: Message) -> None:
        self.offset.add(message["sent"], message["there"], time.perf_counter())

    def _end(self, process: int, child: ManagedProcess, grace: float) -> None:
        if grace:
            child.close(grace)
        else:
            child.kill()
        self._wire.send("ended", process=process, code=child.exit_code(), fate="was ended")

    def _forget(self, process: int) -> ManagedProcess | None:
        with self._changing:
            return self._children.pop(process, None)

    def _relay(self) -> None:
        while True:
            child, message = self._answers.get()
            with self._changing:
                process = self._numbers[child] if message is not None else self._numbers.pop(child)
            if message is not None:
                self._wire.send("answer", process=process, message=message)
                continue
            with self._changing:
                # Whoever closes a child forgets it first: its last words are gone then.
                if process not in self._children:
                    continue
                code, fate = child.exit_code(), child.exit_reason()
            self._wire.send("ended", process=process, code=code, fate=fate)

    def _ping(self) -> None:
        for number in itertools.count():
            self._wire.send("ping", sent=time.perf_counter())
            time.sleep(PING_SECONDS if number >= FIRST_PINGS else 0.05)

    def __enter__(self) -> "HostServer":
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self._children):
            child = self._forget(process)
            if child is not None:
                child.kill()
