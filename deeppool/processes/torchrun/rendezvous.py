"""Rendezvous of torchrun's processes: the launcher publishes its address and an authentication key in torchrun's store.

On one node, and between "nodes" whose master address is the loopback, the launcher listens on the loopback only, else
at the master address. Connections are authenticated and not encrypted: plans, jobs and their code go in clear between
nodes. torch's own store and transfers are neither: every process that can read that store can start processes, so
restrict its port to the nodes of the run, as torch.distributed asks.
"""

import contextlib
import itertools
import json
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from deeppool.errors import RunError
from deeppool.processes.meeting_point import LOOPBACK, is_loopback, listen
from deeppool.processes.rank_group import private_folder
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostServer, HostSlot, find_host_slot
from deeppool.processes.torchrun.launcher import HostConnection, TorchrunLauncher

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

RENDEZVOUS_SECONDS = 120.0
"""Time limit for every node to start Python, import torch and connect to the launcher."""
POLL_SECONDS = 0.1
GRACE_SECONDS = 3
"""Seconds for rank 0 to report the cause when one process fails and torchrun ends all."""


class WorkerGroup:
    """All of torchrun's processes, as connected to rank 0."""

    def __init__(self, connections: dict[int, HostConnection], slot: HostSlot, address: str) -> None:
        """Stores the connections to the ranks from 1, and the slot of this process."""
        self._connections, self._slot, self._address = connections, slot, address
        self.ranks = len(connections) + 1

    @property
    def exposure(self) -> str | None:
        """Returns what others on the network can read, to be shown to the user; None on the loopback."""
        if self._address == LOOPBACK:
            return None
        return (
            f"jobs, plans and gradients go between nodes unencrypted (rank 0 at {self._address}); who can reach "
            "torchrun's port can start processes: keep its network private"
        )

    def launcher(self, device: str, ranks: int, *, min_ranks: int | None = None) -> TorchrunLauncher:
        """Creates the launcher for the ranks of a plan.

        Args:
            device: ``cpu`` or ``cuda``.
            ranks: number of ranks of the plan.
            min_ranks: least number of processes; None: one for each rank of the plan.

        Raises:
            RunError: the plan is for more ranks, or fewer.
        """
        if not (ranks if min_ranks is None else min_ranks) <= self.ranks <= ranks:
            raise RunError(
                f"the plan is for {ranks} ranks, torchrun has started {self.ranks} processes "
                f"(plan with --gpus {self.ranks}, or change --nnodes and --nproc-per-node)"
            )
        return TorchrunLauncher(self._connections, self._slot, self._address, device)


@contextlib.contextmanager
def rendezvous() -> Iterator[WorkerGroup]:
    """Connects all of torchrun's processes: rank 0 runs the block, the others serve it until it ends, and exit.

        with rendezvous() as workers:
            record = dp.train(plan, job, steps=1000, launcher=workers.launcher(plan.device, plan.gpus))

    Raises:
        RunError: a process does not connect, or rank 0 is gone.
        SystemExit: on the ranks from 1; 0 if rank 0 succeeded, else 1, without a message: rank 0 prints one.
    """
    _end_with_torchrun()
    with private_folder() as folder:
        slot = find_host_slot(folder)
        store = _join_store()
        if slot.rank:
            try:
                sys.exit(_serve(store, slot))
            except KeyboardInterrupt:
                sys.exit(1)
        address = _own_address(slot)
        connections = _gather(store, address)
        succeeded = False
        try:
            yield WorkerGroup(connections, slot, address)
            succeeded = True
        finally:
            for connection in connections.values():
                connection.channel.send("end", succeeded=succeeded)
            for connection in connections.values():
                connection.close()


def _join_store() -> "Store":
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=RENDEZVOUS_SECONDS))))
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(f"torchrun's processes cannot connect: {_first_line(error)}") from error
    # torchrun keeps its store when it restarts processes: they must not find the old address.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"deeppool/{attempt}", store)


def _own_address(slot: HostSlot) -> str:
    """Returns the address of rank 0's machine as the others reach it."""
    address = os.environ["MASTER_ADDR"]
    return LOOPBACK if is_loopback(address) or slot.local_ranks == int(os.environ["WORLD_SIZE"]) else address


def _gather(store: "Store", address: str) -> dict[int, HostConnection]:
    """Accepts connections until every other rank has one."""
    ranks = int(os.environ["WORLD_SIZE"])
    authkey = secrets.token_bytes(32)
    connections: dict[int, HostConnection] = {}

    def admit(connection: socket.socket) -> None:
        """Authenticates in a thread, so that a connection that sends nothing does not delay the others."""
        with contextlib.suppress(ConnectionError):
            channel = Channel(connection, authkey, accepted=True)
            for hello in itertools.islice(channel, 1):
                slot = HostSlot(**{**hello["slot"], "cores": tuple(hello["slot"]["cores"])})
                connections[slot.rank] = HostConnection(channel, slot)

    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    with listen(address) as listener:
        port = listener.getsockname()[1]
        store.set("launcher", json.dumps({"address": address, "port": port, "authkey": authkey.hex()}))
        listener.settimeout(POLL_SECONDS)
        while len(connections) < ranks - 1:
            if time.monotonic() > deadline:
                missing = ", ".join(str(rank) for rank in range(1, ranks) if rank not in connections)
                raise RunError(
                    f"torchrun's ranks {missing} did not reach rank 0 at {address}:{port} within "
                    f"{RENDEZVOUS_SECONDS:.0f} s (does a firewall close the port between the nodes?)"
                )
            with contextlib.suppress(TimeoutError):
                threading.Thread(target=admit, args=listener.accept()[:1], daemon=True).start()
    return connections


def _serve(store: "Store", slot: HostSlot) -> int:
    """Runs the host server of this process; returns its exit code."""
    try:
        # Not store.get, which handles no signal while it waits.
        while not store.check(["launcher"]):
            time.sleep(POLL_SECONDS)
        found = json.loads(store.get("launcher"))
        connection = socket.create_connection((found["address"], found["port"]), timeout=RENDEZVOUS_SECONDS)
        channel = Channel(connection, bytes.fromhex(found["authkey"]), accepted=False)
    except (RuntimeError, OSError) as error:
        raise RunError(f"rank {slot.rank} of torchrun cannot reach rank 0: {_first_line(error)}") from error
    channel.send("hello", slot=asdict(slot))
    same_clock = slot.local_ranks == int(os.environ["WORLD_SIZE"])
    try:
        with HostServer(channel, Path(slot.folder), same_clock=same_clock) as server:
            succeeded = server.serve()
    finally:
        channel.close()
    if succeeded is None:
        raise RunError(f"rank 0 of torchrun is gone; what rank {slot.rank} had started was ended")
    return 0 if succeeded else 1


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _end_with_torchrun() -> None:
    """Makes SIGTERM and the end of torchrun interrupt this process as Ctrl-C does, after a delay on rank 0."""

    def on_sigterm(*_: object) -> None:
        if os.environ["RANK"] == "0":
            signal.alarm(GRACE_SECONDS)
        else:
            raise KeyboardInterrupt

    def watch_parent(parent: int) -> None:
        select.select([parent], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.signal(signal.SIGTERM, on_sigterm)
    # Linux only: elsewhere a torchrun that is killed leaves its processes behind, as with any program.
    if hasattr(os, "pidfd_open"):
        threading.Thread(target=watch_parent, args=(os.pidfd_open(os.getppid()),), daemon=True).start()
