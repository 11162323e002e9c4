"""How torchrun's processes find each other: the launcher leaves its address and a secret in torchrun's store.

Whoever can read that store can start processes: keep its port to the nodes of the run, as torch.distributed asks.
On one node, and between "nodes" whose master address is the loopback, the launcher listens on the loopback only.
"""

import hmac
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
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from deeppool.errors import RunError
from deeppool.processes.rank_group import private_folder
from deeppool.processes.torchrun.channel import Channel
from deeppool.processes.torchrun.host_server import HostServer, HostSlot, find_host_slot
from deeppool.processes.torchrun.launcher import LOOPBACK, HostConnection, TorchrunLauncher, is_loopback, listen

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

GATHERING_SECONDS = 120.0
"""For every node to start Python, import torch and find the launcher."""
HELLO_SECONDS = 5.0
POLL_SECONDS = 0.1
GRACE_SECONDS = 3
"""torchrun ends all of its processes when one has failed; the launcher finds out why, and says so, in these."""


class WorkerGroup:
    """All of torchrun's processes, seen from rank 0."""

    def __init__(self, agents: dict[int, HostConnection], seat: HostSlot, address: str) -> None:
        """The agents of the ranks from 1, and this process's seat."""
        self._agents, self._seat, self._address = agents, seat, address
        self.ranks = len(agents) + 1

    def launcher(self, device: str, ranks: int) -> TorchrunLauncher:
        """For the ranks of a plan.

        Raises:
            RunError: the plan is for more ranks, or fewer.
        """
        if ranks != self.ranks:
            raise RunError(
                f"the plan is for {ranks} ranks, torchrun has started {self.ranks} processes "
                f"(plan with --gpus {self.ranks}, or change --nnodes and --nproc-per-node)"
            )
        return TorchrunLauncher(self._agents, self._seat, self._address, device)


@contextmanager
def rendezvous() -> Iterator[WorkerGroup]:
    """The crew, on rank 0; the other processes serve it for as long as the block lasts there, and exit.

        with gathered() as crew:
            record = dp.train(plan, job, steps=1000, launcher=crew.launcher(plan.device, plan.gpus))

    Raises:
        RunError: some process does not come, or rank 0 is gone.
        SystemExit: on the ranks from 1; 0 when all went well on rank 0, else 1, in silence: rank 0 says why.
    """
    _end_with_torchrun()
    with private_folder() as folder:
        seat = find_host_slot(folder)
        store = _join_store()
        if seat.rank:
            try:
                sys.exit(_serve(store, seat))
            except KeyboardInterrupt:
                sys.exit(1)
        address = _own_address(seat)
        agents = _gather(store, address)
        well = False
        try:
            yield WorkerGroup(agents, seat, address)
            well = True
        finally:
            for agent in agents.values():
                agent.wire.send("end", well=well)
            for agent in agents.values():
                agent.close()


def _join_store() -> "Store":
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=GATHERING_SECONDS))))
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(f"torchrun's processes cannot meet: {_first_line(error)}") from error
    # torchrun has its own store when it starts processes; those that it starts again must not find the old address.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    # The ranks are clients of the launcher's store, wherever torchrun's own one is.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    return PrefixStore(f"deeppool/{attempt}", store)


def _own_address(seat: HostSlot) -> str:
    """Of rank 0's machine, as the others know it."""
    known = os.environ["MASTER_ADDR"]
    return LOOPBACK if is_loopback(known) or seat.local_ranks == int(os.environ["WORLD_SIZE"]) else known


def _gather(store: "Store", address: str) -> dict[int, HostConnection]:
    """Listens until every other rank has come."""
    ranks = int(os.environ["WORLD_SIZE"])
    token = secrets.token_hex(32)
    agents: dict[int, HostConnection] = {}
    deadline = time.monotonic() + GATHERING_SECONDS
    with listen(address) as listener:
        port = listener.getsockname()[1]
        store.set("launcher", json.dumps({"address": address, "port": port, "token": token}))
        while len(agents) < ranks - 1:
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(1, ranks) if rank not in agents)
                raise RunError(
                    f"torchrun's ranks {missing} did not reach rank 0 at {address}:{port} within "
                    f"{GATHERING_SECONDS:.0f} s (does a firewall close the port between the nodes?)"
                ) from None
            wire = Channel(connection)
            said = wire.first(HELLO_SECONDS)
            if said is None or not hmac.compare_digest(str(said.get("token")), token):
                wire.close()
                continue
            found = HostSlot(**{**said["seat"], "cores": tuple(said["seat"]["cores"])})
            agents[found.rank] = HostConnection(wire, found)
    return agents


def _serve(store: "Store", seat: HostSlot) -> int:
    """An agent's life; its exit code."""
    try:
        # Not by store.get, which hears no signal while it waits.
        while not store.check(["launcher"]):
            time.sleep(POLL_SECONDS)
        found = json.loads(store.get("launcher"))
        connection = socket.create_connection((found["address"], found["port"]), timeout=GATHERING_SECONDS)
    except (RuntimeError, OSError) as error:
        raise RunError(f"rank {seat.rank} of torchrun cannot reach rank 0: {_first_line(error)}") from error
    wire = Channel(connection)
    wire.send("hello", token=found["token"], seat=asdict(seat))
    same_clock = seat.local_ranks == int(os.environ["WORLD_SIZE"])
    try:
        with HostServer(wire, Path(seat.folder), same_clock=same_clock) as agent:
            well = agent.serve()
    finally:
        wire.close()
    if well is None:
        raise RunError(f"rank 0 of torchrun is gone; what rank {seat.rank} had started was ended")
    return 0 if well else 1


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _end_with_torchrun() -> None:
    """Makes SIGTERM, and the death of torchrun, end this process as Ctrl-C does, but not at once on rank 0."""

    def on_terminate(*_: object) -> None:
        if os.environ["RANK"] == "0":
            signal.alarm(GRACE_SECONDS)
        else:
            raise KeyboardInterrupt

    def follow(parent: int) -> None:
        waiting = select.poll()
        waiting.register(parent, select.POLLIN)
        waiting.poll()
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.signal(signal.SIGTERM, on_terminate)
    # Of Linux; elsewhere a torchrun that is killed leaves its processes behind, as it does those of any program.
    if hasattr(os, "pidfd_open"):
        threading.Thread(target=follow, args=(os.pidfd_open(os.getppid()),), daemon=True).start()
