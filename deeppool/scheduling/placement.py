"""Chooses the waiting jobs that start now, and their GPUs.

A GPU runs one foreground and one background job at a time. Each role has its own first-come, first-served queue
without overtaking, so a large job never waits for later ones, and GPUs may stay free for it meanwhile. The two queues
are independent.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["foreground", "background"]


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


def place(waiting: Sequence[Request], running: Iterable[JobPlacement], gpus: Sequence[Gpu]) -> tuple[JobPlacement, ...]:
    """Returns the jobs that start now, with their GPUs.

    Args:
        waiting: waiting jobs in the order of submission.
        running: jobs that hold GPUs, lost GPUs included.
        gpus: all GPUs of the cluster.
    """
    held = list(running)
    starting = []
    blocked: set[Role] = set()
    # A background placed first could get a foreground on its GPUs at once.
    for request in sorted(waiting, key=lambda request: request.role == "background"):
        if request.role in blocked:
            continue
        chosen = _choose(request, held, gpus)
        if chosen is None:
            blocked.add(request.role)
            continue
        starting.append(chosen)
        held.append(chosen)
    return tuple(starting)


def _choose(request: Request, held: Sequence[JobPlacement], gpus: Sequence[Gpu]) -> JobPlacement | None:
    taken = {gpu for placement in held if placement.role == request.role for gpu in placement.gpus}
    free = [gpu for gpu in gpus if gpu.number not in taken]
    if len(free) < request.gpu_count:
        return None
    if request.role == "foreground":
        chosen = _pack_nodes(free, request.gpu_count)
    else:
        # Its processes do not communicate; its throughput is highest on GPUs without a foreground.
        busy = {gpu for placement in held if placement.role == "foreground" for gpu in placement.gpus}
        chosen = sorted((gpu.number for gpu in free), key=lambda number: (number in busy, number))
    return JobPlacement(request.job, request.role, tuple(chosen[: request.gpu_count]))


def _pack_nodes(free: Sequence[Gpu], count: int) -> list[int]:
    """Prefers the fullest node with enough free GPUs, to leave emptier ones for larger jobs; else the fewest nodes."""
    nodes: dict[str, list[int]] = defaultdict(list)
    for gpu in sorted(free, key=lambda gpu: gpu.number):
        nodes[gpu.node].append(gpu.number)
    candidates = [numbers for numbers in nodes.values() if len(numbers) >= count]
    if candidates:
        return min(candidates, key=len)
    return [number for numbers in sorted(nodes.values(), key=len, reverse=True) for number in numbers]
