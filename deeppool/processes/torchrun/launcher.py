"""Launcher whose processes are started by host servers, one per process of torchrun."""

import itertools
import queue
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.device.kinds import find_kind
from deeppool.errors import RankFailedError, RunError
from deeppool.processes.launcher import WorkerSpec
from deeppool.processes.managed_process import Inbox, ManagedProcess, Message, ProcessHandle
from deeppool.processes.meeting_point import LOOPBACK, listen, open_store, store_url
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostSlot
from deeppool.units import format_bytes

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

ANSWER_SECONDS = 5.0
"""Time limit in seconds for an immediate answer of a host server."""


class HostConnection:
    """Connection to one host server, and the processes that it runs."""

    def __init__(self, channel: Channel, slot: HostSlot) -> None:
        """Starts reading its messages."""
        self.channel, self.slot = channel, slot
        self.lost = False
        self._numbers = itertools.count()
        self._processes: dict[int, TorchrunProcess] = {}
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, module: str, name: str, inbox: Inbox | None) -> "TorchrunProcess":
        """Starts a process on the host.

        Raises:
            RankFailedError: the host server is gone.
        """
        with self._lock:
            if self.lost:
                raise RankFailedError(f"{name} cannot start: {self.gone} (start torchrun again)")
            process = TorchrunProcess(self, next(self._numbers), name, inbox)
            self._processes[process.number] = process
        self.channel.send("start", process=process.number, module=module, name=name)
        return process

    @property
    def gone(self) -> str:
        """Returns the message that the host server is gone."""
        return f"torchrun's process of rank {self.slot.rank} on {self.slot.host} is gone"

    def _listen(self) -> None:
        for message in self.channel:
            if message["event"] == "ping":
                self.channel.send("pong", sent=message["sent"], there=time.perf_counter())
            else:
                self._processes[message["process"]].receive(message)
        with self._lock:
            self.lost = True
            left = list(self._processes.values())
        for process in left:
            # SIGHUP: the process may still be computing for a moment, but its answers are lost.
            process.receive({"event": "ended", "code": -signal.SIGHUP, "exit_reason": f"was lost: {self.gone}"})

    def close(self) -> None:
        """Waits for the end of a host server that was released."""
        self._listener.join(ANSWER_SECONDS)
        self.channel.close()


class TorchrunProcess:
    """Handle of a process that a host server has started."""

    def __init__(self, connection: HostConnection, number: int, name: str, inbox: Inbox | None) -> None:
        """Creates the handle: see :meth:`HostConnection.start`."""
        self.name = name
        self.number = number
        self.inbox: Inbox = inbox if inbox is not None else queue.SimpleQueue()
        self._connection = connection
        self._cpu: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._code: int | None = None
        self._exit_reason = "is running"

    def receive(self, message: Message) -> None:
        """Handles a message of the host server about this process."""
        if message["event"] == "answer":
            self.inbox.put((self, message["message"]))
        elif message["event"] == "cpu":
            self._cpu.put(message["seconds"])
        elif not self._ended.is_set():
            self._code, self._exit_reason = message["code"], message["exit_reason"]
            self._ended.set()
            self._cpu.put(None)
            self.inbox.put((self, None))

    def send(self, command: str, **arguments: Any) -> None:
        """Sends a command; a process that has ended is noticed when its answer is awaited."""
        self._connection.channel.send("command", process=self.number, command=command, arguments=arguments)

    def exit_code(self) -> int | None:
        """Returns the exit code, minus a signal's number if killed (SIGHUP: its host server is gone), or None."""
        return self._code

    def cpu_seconds(self) -> float | None:
        """Returns the CPU seconds used so far, or None once it has ended."""
        if self._ended.is_set():
            return None
        # An answer that came too late for the question before.
        while not self._cpu.empty():
            self._cpu.get()
        self._connection.channel.send("cpu", process=self.number)
        try:
            return self._cpu.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            return None

    def exit_reason(self) -> str:
        """Returns how the process ended, with the last line of its standard error."""
        return self._exit_reason

    def kill(self) -> None:
        """Kills the process."""
        self.close(0)

    def close(self, grace: float = 2.0) -> None:
        """Requests the exit of the process, and kills it after ``grace`` seconds."""
        if not self._ended.is_set():
            self._connection.channel.send("close", process=self.number, grace=grace)
            self._ended.wait(grace + ANSWER_SECONDS)


class TorchrunLauncher:
    """Launcher that starts one rank on the host of each of torchrun's processes, this one included."""

    def __init__(self, connections: Mapping[int, HostConnection], slot: HostSlot, address: str, device: str) -> None:
        """Creates the launcher without starting a process.

        Args:
            connections: connections to the ranks from 1.
            slot: slot of this process, which has rank 0.
            address: address of this machine as the others reach it; the loopback if all are on it.
            device: ``cpu`` or ``cuda``.
        """
        self._connections, self._address, self._device = connections, address, device
        self.gpus = tuple(range(1 + len(connections)))
        """torchrun's rank of each rank."""
        self._slots = [slot, *(connections[rank].slot for rank in sorted(connections))]
        self._folder = Path()
        self._store: TCPStore | None = None
        self.one_node = len({slot.node for slot in self._slots}) == 1
        nodes = {slot.node: slot for slot in self._slots}.values()
        self.same_files = self.one_node
        self.cores = (
            sum(min(slot.local_ranks, len(slot.cores)) for slot in nodes)
            if find_kind(device).on_cores
            else len(self._slots)
        )

    def available(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        """Returns torchrun's ranks whose process is connected; with any process torchrun ends all of its node."""
        return (0, *(rank for rank in sorted(self._connections) if not self._connections[rank].lost))

    def assign(self, gpus: Sequence[int]) -> None:
        """Assigns the process of torchrun that starts each rank."""
        self.gpus = tuple(gpus)

    def check(self, model: str, needed: int) -> None:
        """Raises RunError if a node has too few GPUs, or too little memory."""
        kind = find_kind(self._device)
        for slot in self._slots:
            if kind.on_gpus and slot.local_rank >= slot.gpus:
                raise RunError(
                    f"{slot.host} has {slot.gpus} GPUs for {slot.local_ranks} ranks "
                    f"(torchrun --nproc-per-node {slot.gpus}, and a plan for as many)"
                )
            if not kind.on_gpus and slot.local_ranks * needed > slot.memory:
                raise RunError(
                    f"{slot.host} has {slot.local_ranks} ranks of {model}, about "
                    f"{format_bytes(slot.local_ranks * needed)} of memory; {format_bytes(slot.memory)} are available "
                    "(fewer ranks per node)"
                )

    def distribute_files(self, folder: Path) -> None:
        """Sends the files to other nodes; on one node the ranks read them where the launcher wrote them."""
        self._folder = folder
        if self.one_node:
            return
        for connection in self._connections.values():
            connection.channel.send("folder")
            for path in sorted(folder.iterdir()):
                connection.channel.send_file(path)
        self._store = open_store(listen(self._address), self._address)

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Returns a rank's resources; between nodes each rank finds the interface that leads to the rendezvous."""
        slot = self._slots[self.gpus[rank]]
        own = slot.rank == 0 or self.one_node
        return WorkerSpec(
            folder=str(self._folder) if own else slot.folder,
            rendezvous=(self._folder / "rendezvous").as_uri() if self._store is None else store_url(self._store),
            interface="lo" if self._address == LOOPBACK else None,
            index=slot.local_rank,
            core=slot.cores[slot.local_rank % len(slot.cores)] if find_kind(self._device).on_cores else None,
        )

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ProcessHandle:
        """Starts a process here or through the rank's host server."""
        if self.gpus[rank] == 0:
            return ManagedProcess(module, name, inbox)
        return self._connections[self.gpus[rank]].start(module, name, inbox)
