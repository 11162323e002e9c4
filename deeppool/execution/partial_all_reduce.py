"""Partial all-reduces of tensors between the ranks of a process group.

    sums = dp.PartialAllReduce(elements=gradient.numel(), mode="majority")
    received = sums.all_reduce(gradient)     # returns without the ranks that are late
    for each in received.sums:
        weights -= rate * each.total / sums.ranks
    ...
    for each in sums.drain():                # delivers what late ranks could not, and ends
        weights -= rate * each.total / sums.ranks

A late rank's gradient is in the sum of a later round.
"""

import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from deeppool.base.arguments import typed
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.rounds import RoundResult
from deeppool.collectives.partial.state import Delivery, RoundSpec
from deeppool.device.host_buffer import HostBuffer
from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.transports.native.native_tcp import NativeTcpRounds
from deeppool.execution.transports.received import TIMEOUT
from deeppool.execution.transports.shared_memory import SharedMemoryRounds, create
from deeppool.execution.transports.tcp import TcpRounds
from deeppool.execution.transports.tcp_engine import tcp_rounds
from deeppool.execution.transports.tcp_peers import Address, Peers

PartialRounds = SharedMemoryRounds | TcpRounds | NativeTcpRounds
"""One rank's side of partial all-reduces."""

_MEMORY = Path("/dev/shm")
"""Folder whose files lie in memory; where there is none, that of temporary files."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""File that differs between hosts."""


@dataclass(frozen=True, slots=True)
class PartialSum:
    """The sum of one round, on the device of the gradients."""

    number: int
    """Of the round, from 0."""
    counts: tuple[int, ...]
    """Gradients of each rank in the sum; 0: the rank was late, and its gradient is in a later round."""
    total: torch.Tensor


@dataclass(frozen=True, slots=True)
class PartialSums:
    """What one partial all-reduce returns."""

    sums: tuple[PartialSum, ...]
    """The rounds to apply, in order: ``latest`` returns one, ``log`` all that this rank had not received."""
    accepted: bool
    """Whether this call's own gradient is in them; if not, it is in a later round."""


class PartialAllReduce:
    """All-reduces of one vector per step that do not wait for every rank.

    Ranks of one host sum in memory that they share; other ranks send each other messages over TCP.
    """

    @typed
    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        elements: int,
        dtype: torch.dtype = torch.float32,
        mode: Mode = "solo",
        quorum: int | None = None,
        grace: float = 0.0,
        delivery: Delivery = "log",
        staleness_limit: int | None = 32,
        synchronous_every: int | None = None,
        seed: int = 0,
        timeout: float = TIMEOUT,
        address: str | None = None,
    ) -> None:
        """Joins the ranks; all of them call it, with equal arguments.

        Args:
            group: the ranks. Default: all of torch.distributed.
            elements: of a gradient.
            dtype: of an element.
            mode: which arrival fires a round: ``solo`` the first, ``majority`` that of a rank drawn for each round,
                ``full`` the last, ``quorum`` the one with the number ``quorum``.
            quorum: arrivals that mode ``quorum`` waits for.
            grace: seconds for which a round that could fire waits for more ranks.
            delivery: what a late rank receives: ``log`` all rounds, so that all ranks apply the same sums; ``latest``
                only the newest, as published.
            staleness_limit: consecutive rounds that may go without a gradient of a rank; the next waits for all.
            synchronous_every: the last of every so many rounds waits for all ranks. None: none does for its number.
            seed: of the draws of ``majority``.
            timeout: seconds to wait for other ranks.
            address: name or address of this rank's host, for TCP; ``127.0.0.1`` for TCP between ranks of one host.
                Default: ranks of one host share memory, and ranks of several are refused.
        """
        elements, timeout = whole_number("elements", elements, None), positive_number("timeout", timeout, "seconds")
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        rule = FiringRule(self.ranks, mode, quorum, grace, seed, staleness_limit, synchronous_every)
        # On all ranks, before any waits for another: wrong arguments are refused.
        spec = RoundSpec(rule, elements, str(dtype).removeprefix("torch."), delivery)
        self._rounds: PartialRounds
        if address is None:
            _check_host(group, self.ranks)
            self._rounds = _share_memory(group, spec, timeout)
        else:
            peers = _connect(group, address, timeout)
            self._rounds = tcp_rounds(self.rank, peers, spec, timeout=timeout)
        self._device, self._host = torch.device("cpu"), HostBuffer()

    def all_reduce(self, gradient: torch.Tensor, number: int | None = None) -> PartialSums:
        """Adds a gradient to this rank's contribution, and returns the rounds that this rank has not received.

        Waits only where there are none. The gradient itself is left as it is.

        Args:
            gradient: a vector.
            number: of the round that the call is for: if this rank has received it, the call waits for no other.

        Raises:
            RankFailedError: another rank ended.
            RunError: no round completed within the timeout.
        """
        self._device = gradient.device
        received = self._rounds.all_reduce(self._host.copy_of(gradient.detach()).numpy(), number)
        return PartialSums(tuple(self._sum(result) for result in received.results), received.accepted)

    def drain(self) -> Iterator[PartialSum]:
        """Delivers what is left of all ranks; yields the rounds to apply, and ends when all ranks have called it."""
        for result in self._rounds.drain():
            yield self._sum(result)

    def pending(self) -> tuple[torch.Tensor, int]:
        """Returns the sum of this rank's gradients that no round has taken yet, and their number."""
        total, count = self._rounds.pending()
        return torch.from_numpy(total), count

    def restore(self, pending: torch.Tensor, count: int) -> None:
        """Adds gradients that no round of an earlier run has taken; the next round takes them."""
        if count:
            self._rounds.restore(pending.cpu().numpy(), count)

    def close(self, *, agreed: bool = False) -> None:
        """Ends this rank's part.

        Args:
            agreed: whether all ranks end now; else, if this one has not drained, the others end in an error.
        """
        self._rounds.close(agreed=agreed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sum(self, result: RoundResult) -> PartialSum:
        return PartialSum(result.number, result.counts, torch.from_numpy(result.total).to(self._device))


class OneRankSum:
    """The sum over a single rank, by the same calls."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        """Starts with nothing."""
        self._pending, self._count = torch.zeros(elements, dtype=dtype), 0
        self._number = 0

    def all_reduce(self, gradient: torch.Tensor, number: int | None = None) -> PartialSums:
        """Returns the gradient, and what was restored, as one round."""
        if self._count:
            gradient = gradient + self._pending.to(gradient.device)
        found = PartialSum(self._number, (1 + self._count,), gradient)
        self._pending.zero_()
        self._count, self._number = 0, self._number + 1
        return PartialSums((found,), accepted=True)

    def pending(self) -> tuple[torch.Tensor, int]:
        """Returns what was restored and is in no round yet."""
        return self._pending.clone(), self._count

    def restore(self, pending: torch.Tensor, count: int) -> None:
        """Adds gradients of an earlier run to the next round."""
        self._pending += pending
        self._count += count

    def close(self, *, agreed: bool = False) -> None:
        """Does nothing."""


def _check_host(group: dist.ProcessGroup | None, ranks: int) -> None:
    hosts: list[str] = [""] * ranks
    dist.all_gather_object(hosts, _BOOT.read_text(encoding="ascii") if _BOOT.exists() else "", group=group)
    if len(set(hosts)) > 1:
        raise InvalidValueError(
            f"the {ranks} ranks of a partial all-reduce lie on {len(set(hosts))} hosts and cannot share memory "
            "(give each the address of its host, for TCP)"
        )


def _share_memory(group: dist.ProcessGroup | None, spec: RoundSpec, timeout: float) -> SharedMemoryRounds:
    rank = dist.get_rank(group)
    path = _shared_folder(group, rank) / "rounds"
    try:
        if rank == 0:
            create(path, spec)
        dist.barrier(group)
        rounds = SharedMemoryRounds(path, rank, spec, timeout=timeout)
        dist.barrier(group)
    finally:
        # Mapped memory outlives its name, and a killed run then leaves nothing behind.
        if rank == 0:
            shutil.rmtree(path.parent)
    return rounds


def _connect(group: dist.ProcessGroup | None, address: str, timeout: float) -> dict[int, socket.socket]:
    """Connects each rank with all others, by a secret that only they know."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    secret: list[bytes] = [secrets.token_bytes() if rank == 0 else b""]
    dist.broadcast_object_list(secret, group=group, group_src=0)
    peers = Peers(rank, address, secret[0], timeout)
    addresses: list[Address] = [peers.address] * ranks
    dist.all_gather_object(addresses, peers.address, group=group)
    return peers.connect(addresses)


def _shared_folder(group: dist.ProcessGroup | None, rank: int) -> Path:
    """Returns a new folder that all ranks see, and only this user."""
    names: list[str] = [""]
    if rank == 0:
        names[0] = tempfile.mkdtemp(prefix="deeppool-", dir=_MEMORY if _MEMORY.is_dir() else None)
    dist.broadcast_object_list(names, group=group, group_src=0)
    if not (folder := Path(names[0])).is_dir():
        raise RunError(f"rank {rank} does not see {folder} of rank 0 (run all ranks in one container)")
    return folder
