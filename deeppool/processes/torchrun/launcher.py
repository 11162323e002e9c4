"""The launcher's end of its agents: a place for ranks whose processes they start."""

import itertools
import queue
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.errors import RankFailedError, RunError
from deeppool.processes.fork_server_client import fork_server
from deeppool.processes.launcher import WorkerSpec
from deeppool.processes.managed_process import Inbox, ManagedProcess, Message, ProcessHandle
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostSlot
from deeppool.units import format_bytes

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
PATIENCE = 5.0
"""Seconds that an agent gets for what takes it no time."""


class HostConnection:
    """The wire to one agent, and the processes that it runs."""

    def __init__(self, wire: Channel, seat: HostSlot) -> None:
        """Begins to listen."""
        self.wire, self.seat = wire, seat
        self.lost = False
        self._numbers = itertools.count()
        self._processes: dict[int, TorchrunProcess] = {}
        self._changing = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, module: str, name: str, inbox: Inbox | None) -> "TorchrunProcess":
        """Starts a process there.

        Raises:
            RankFailedError: the agent is gone.
        """
        with self._changing:
            if self.lost:
                raise RankFailedError(f"{name} cannot start: {self.gone} (start torchrun again)")
            process = TorchrunProcess(self, next(self._numbers), name, inbox)
            self._processes[process.number] = process
        self.wire.send("start", process=process.number, module=module, name=name)
        return process

    @property
    def gone(self) -> str:
        """That the agent is."""
        return f"torchrun's process of rank {self.seat.rank} on {self.seat.host} is gone"

    def _listen(self) -> None:
        for message in self.wire:
            if message["event"] == "ping":
                self.wire.send("pong", sent=message["sent"], there=time.perf_counter())
            else:
                self._processes[message["process"]].hear(message)
        with self._changing:
            self.lost = True
            left = list(self._processes.values())
        for process in left:
            # As if it had hung up: its rank can still be computing for a moment, but nobody hears of it.
            process.hear({"event": "ended", "code": -signal.SIGHUP, "fate": f"was lost: {self.gone}"})

    def close(self) -> None:
        """Waits until an agent that was let go is gone."""
        self._listener.join(PATIENCE)
        self.wire.close()


class TorchrunProcess:
    """A process that an agent has started."""

    def __init__(self, agent: HostConnection, number: int, name: str, inbox: Inbox | None) -> None:
        """See :meth:`HostConnection.start`."""
        self.name = name
        self.number = number
        self.inbox: Inbox = inbox if inbox is not None else queue.SimpleQueue()
        self._agent = agent
        self._cpu: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._code: int | None = None
        self._fate = "is running"

    def hear(self, message: Message) -> None:
        """What the agent says of it."""
        if message["event"] == "answer":
            self.inbox.put((self, message["message"]))
        elif message["event"] == "cpu":
            self._cpu.put(message["seconds"])
        elif not self._ended.is_set():
            self._code, self._fate = message["code"], message["fate"]
            self._ended.set()
            self._cpu.put(None)
            self.inbox.put((self, None))

    def send(self, command: str, **arguments: Any) -> None:
        """Gives a command; a process that has died is noticed when its answer is awaited."""
        self._agent.wire.send("command", process=self.number, command=command, arguments=arguments)

    def exit_code(self) -> int | None:
        """None while it runs; minus a signal's number where that killed it, SIGHUP where its agent is gone."""
        return self._code

    def cpu_seconds(self) -> float | None:
        """That it has used so far; None once it has ended."""
        if self._ended.is_set():
            return None
        self._agent.wire.send("cpu", process=self.number)
        try:
            return self._cpu.get(timeout=PATIENCE)
        except queue.Empty:
            return None

    def exit_reason(self) -> str:
        """How the process ended, with the last thing it said on standard error."""
        return self._fate

    def kill(self) -> None:
        """Ends it now."""
        self.close(0)

    def close(self, grace: float = 2.0) -> None:
        """Asks it to exit, and kills it after ``grace`` seconds."""
        if not self._ended.is_set():
            self._agent.wire.send("close", process=self.number, grace=grace)
            self._ended.wait(grace + PATIENCE)


class TorchrunLauncher:
    """All of torchrun's processes, this one included: a rank beside each."""

    def __init__(self, agents: Mapping[int, HostConnection], seat: HostSlot, address: str, device: str) -> None:
        """Nothing starts yet.

        Args:
            agents: of the ranks from 1.
            seat: of this process, which has rank 0.
            address: of this machine, as the others know it; the loopback where all are on it.
            device: ``cpu`` or ``cuda``.
        """
        self._agents, self._seat, self._address, self._device = agents, seat, address, device
        self._seats = [seat, *(agents[rank].seat for rank in sorted(agents))]
        self._folder = Path()
        self._store: TCPStore | None = None
        self.one_node = len({found.node for found in self._seats}) == 1
        nodes = {found.node: found for found in self._seats}.values()
        self.same_files = self.one_node
        self.cores = (
            sum(min(found.local_ranks, len(found.cores)) for found in nodes) if device == "cpu" else len(self._seats)
        )

    def check(self, model: str, needed: int) -> None:
        """Raises RunError where a node has too few GPUs, or too little memory."""
        for found in self._seats:
            if self._device == "cuda" and found.local_rank >= found.gpus:
                raise RunError(
                    f"{found.host} has {found.gpus} GPUs for {found.local_ranks} ranks "
                    f"(torchrun --nproc-per-node {found.gpus}, and a plan for as many)"
                )
            if self._device == "cpu" and found.local_ranks * needed > found.memory:
                raise RunError(
                    f"{found.host} has {found.local_ranks} ranks of {model}, about "
                    f"{format_bytes(found.local_ranks * needed)} of memory; {format_bytes(found.memory)} are available "
                    "(fewer ranks per node)"
                )

    def distribute_files(self, folder: Path) -> None:
        """On one node the ranks read where the launcher wrote; to others the files are sent."""
        self._folder = folder
        if self.one_node:
            return
        for agent in self._agents.values():
            agent.wire.send("folder")
            for path in sorted(folder.iterdir()):
                agent.wire.send_file(path)
        self._store = _meeting_point(self._address)

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Between nodes, gloo finds the interface itself, or by ``GLOO_SOCKET_IFNAME``."""
        seat = self._seats[rank]
        own = rank == 0 or self.one_node
        return WorkerSpec(
            folder=str(self._folder) if own else seat.folder,
            rendezvous=(self._folder / "rendezvous").as_uri() if self._store is None else _url(self._store),
            interface="lo" if self._address == LOOPBACK else None,
            index=seat.local_rank,
            core=seat.cores[seat.local_rank % len(seat.cores)] if self._device == "cpu" else None,
        )

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ProcessHandle:
        """A child of this process, or of the rank's agent."""
        if rank == 0:
            return ManagedProcess(module, name, inbox, fork_server=fork_server())
        return self._agents[rank].start(module, name, inbox)


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from its own machine only."""
    return address in ("localhost", "::1") or address.startswith("127.")


def listen(address: str) -> socket.socket:
    """Listens at a port that the system chooses: on the loopback, or on every interface."""
    if address == LOOPBACK or not socket.has_dualstack_ipv6():
        return socket.create_server((address if address == LOOPBACK else "", 0))
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)


def _meeting_point(address: str) -> "TCPStore":
    """Where the ranks of one attempt meet; the launcher keeps it, at a port that the system has chosen."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # A socket of ours: the store's own would listen wherever this machine can be reached.
    with listen(address) as listener:
        port = listener.getsockname()[1]
        return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _url(store: "TCPStore") -> str:
    host = f"[{store.host}]" if ":" in store.host else store.host
    return f"tcp://{host}:{store.port}"
