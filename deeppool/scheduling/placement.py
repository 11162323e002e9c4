"""Chooses the waiting jobs that start now, and their GPUs.

A GPU runs one foreground and one background job at a time. Each role has its own first-come, first-served queue
without overtaking, so a large job never waits for later ones, and GPUs may stay free for it meanwhile. The two queues
are independent.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["foreground", "background"]
Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or core, of the cluster."""

    number: int
    node: str


@dataclass(frozen=True, slots=True)
class Request:
    """A waiting job."""

    job: int
    role: Role
    gpu_count: int


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """A job and its GPUs, in rank order."""

    job: int
    role: Role
    gpus: tuple[int, ...]


class GpuPool:
    """The GPUs of a cluster that are free for a job of either role."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        """Starts with all GPUs free."""
        ordered = sorted(gpus, key=lambda gpu: gpu.number)
        self.numbers = np.array([gpu.number for gpu in ordered], dtype=np.intp)
        nodes: dict[str, int] = {}
        self._node = np.array([nodes.setdefault(gpu.node, len(nodes)) for gpu in ordered], dtype=np.intp)
        self._nodes = len(nodes)
        self._free = {role: np.full(len(ordered), True) for role in ("foreground", "background")}

    def hold(self, placement: JobPlacement, *, held: bool = True) -> None:
        """Marks the GPUs of a job as held, or as free again; numbers of lost GPUs are ignored."""
        wanted = np.array(placement.gpus, dtype=np.intp)
        found = np.searchsorted(self.numbers, wanted)
        known = found < len(self.numbers)
        known[known] = self.numbers[found[known]] == wanted[known]
        self._free[placement.role][found[known]] = not held

    def free_count(self, role: Role) -> int:
        """Returns the number of GPUs that are free for a role."""
        return int(self._free[role].sum())

    def choose(self, request: Request, allowed: NDArray[np.bool_] | None = None) -> JobPlacement | None:
        """Returns GPUs for a job, or None if too few are free; it holds none.

        Args:
            request: the job.
            allowed: whether each GPU, by ascending number, may be used; None: all.
        """
        free = self._free[request.role]
        found = np.flatnonzero(free if allowed is None else free & allowed)
        if len(found) < request.gpu_count:
            return None
        if request.role == "foreground":
            chosen = self._pack_nodes(found, request.gpu_count)
        else:
            # Its processes do not communicate; its throughput is highest on GPUs without a foreground.
            alone = self._free["foreground"][found]
            chosen = np.concatenate([found[alone], found[~alone]])[: request.gpu_count]
        return JobPlacement(request.job, request.role, tuple(self.numbers[chosen].tolist()))

    def _pack_nodes(self, free: Positions, count: int) -> Positions:
        """Prefers the fullest node with enough free GPUs, to leave emptier ones for larger jobs; else the fewest nodes.

        Of equal nodes, the one of the lowest free number comes first.
        """
        node = self._node[free]
        rooms = np.bincount(node, minlength=self._nodes)
        fitting = rooms[rooms >= count]
        if len(fitting):
            first = node[np.argmax(rooms[node] == fitting.min())]
            chosen: Positions = free[node == first][:count]
            return chosen
        _, earliest = np.unique(node, return_index=True)
        rank = np.zeros(self._nodes, dtype=np.intp)
        rank[node[earliest]] = earliest
        order = np.lexsort((free, rank[node], -rooms[node]))
        return free[order][:count]


def place(waiting: Sequence[Request], running: Iterable[JobPlacement], gpus: Sequence[Gpu]) -> tuple[JobPlacement, ...]:
    """Returns the jobs that start now, with their GPUs.

    Args:
        waiting: waiting jobs in the order of submission.
        running: jobs that hold GPUs, lost GPUs included.
        gpus: all GPUs of the cluster.
    """
    pool = GpuPool(gpus)
    for placement in running:
        pool.hold(placement)
    starting = []
    blocked: set[Role] = set()
    # A background placed first could get a foreground on its GPUs at once.
    for request in sorted(waiting, key=lambda request: request.role == "background"):
        if request.role in blocked:
            continue
        chosen = pool.choose(request)
        if chosen is None:
            blocked.add(request.role)
            continue
        starting.append(chosen)
        pool.hold(chosen)
    return tuple(starting)


def refill(job: JobPlacement, gpu_count: int, running: Iterable[JobPlacement], gpus: Sequence[Gpu]) -> JobPlacement:
    """Returns a running job without its lost GPUs, and with free ones in place of them as far as there are.

    It comes before waiting jobs. The GPUs of the node with the most come first, as plans fill one node after the other.

    Args:
        job: the job.
        gpu_count: number of GPUs that it wants.
        running: jobs that hold GPUs, this one included.
        gpus: all GPUs of the cluster.
    """
    pool = GpuPool(gpus)
    for placement in running:
        pool.hold(placement)
    node = {gpu.number: gpu.node for gpu in gpus}
    kept = tuple(gpu for gpu in job.gpus if gpu in node)
    missing = min(gpu_count - len(kept), pool.free_count(job.role))
    added = pool.choose(Request(job.job, job.role, missing)) if missing > 0 else None
    held = kept if added is None else kept + added.gpus
    if held == job.gpus:
        return job
    nodes = [node[gpu] for gpu in held]
    on_node = Counter(nodes)
    ordered = sorted(held, key=lambda gpu: (-on_node[node[gpu]], nodes.index(node[gpu])))
    return JobPlacement(job.job, job.role, tuple(ordered))
