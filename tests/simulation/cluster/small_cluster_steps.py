"""Brute-force simulation of the cluster of ``deeppool.simulation.cluster.engine`` in equal small time steps.

No costs, no events, no shares: each step determines the job of each GPU. One foreground and one background a
GPU, first come first served by role, lowest free numbers first; a cluster of one node. Times are multiples of a tick.
"""

from dataclasses import dataclass

TICK = 0.25


@dataclass
class Foreground:
    """A foreground whose iteration holds its GPU number ``i`` for the first ``held[i]`` of ``period`` seconds."""

    arrival: float
    iterations: int
    period: float
    held: tuple[float, ...]


@dataclass
class Background:
    """A background that trains ``seconds`` on each of some GPUs."""

    arrival: float
    seconds: float
    gpus: int


def simulate(gpus, foregrounds, backgrounds, *, exclusive):
    """Finish of every foreground and background; GPU-seconds held, harvested and idle."""
    now, seconds = 0.0, [0.0, 0.0, 0.0]
    where = [{}, {}]
    trained = [0.0] * len(foregrounds)
    left = [[job.seconds] * job.gpus for job in backgrounds]
    finish = [[None] * len(foregrounds), [None] * len(backgrounds)]
    while any(x is None for x in (*finish[0], *finish[1])):
        _start(now, gpus, where[0], foregrounds, finish[0], lambda job: len(job.held), [])
        held_gpus = [gpu for taken in where[0].values() for gpu in taken]
        if exclusive:
            for job in [job for job, taken in where[1].items() if {*taken} & {*held_gpus}]:
                del where[1][job]
        _start(now, gpus, where[1], backgrounds, finish[1], lambda job: job.gpus, held_gpus, strict=exclusive)
        for gpu in range(gpus):
            foreground = next((job for job, taken in where[0].items() if gpu in taken), None)
            background = next((job for job, taken in where[1].items() if gpu in taken), None)
            busy = False
            if foreground is not None:
                job, rank = foregrounds[foreground], where[0][foreground].index(gpu)
                busy = trained[foreground] % job.period < job.held[rank]
            unit = None if background is None else where[1][background].index(gpu)
            works = background is not None and left[background][unit] > 0
            if busy:
                seconds[0] += TICK
            elif works:
                seconds[1] += TICK
                left[background][unit] -= TICK
            else:
                seconds[2] += TICK
        now += TICK
        for job in list(where[0]):
            trained[job] += TICK
            if trained[job] == foregrounds[job].iterations * foregrounds[job].period:
                finish[0][job] = now
                del where[0][job]
        for job in list(where[1]):
            if not any(left[job]):
                finish[1][job] = now
                del where[1][job]
    return finish, seconds, now


def _start(now, gpus, running, jobs, finished, size, avoided, *, strict=False):
    order = sorted(range(len(jobs)), key=lambda job: jobs[job].arrival)
    for job in order:
        if job in running or finished[job] is not None or jobs[job].arrival > now:
            continue
        taken = {gpu for others in running.values() for gpu in others}
        free = [gpu for gpu in range(gpus) if gpu not in taken and not (strict and gpu in avoided)]
        if len(free) < size(jobs[job]):
            return
        free.sort(key=lambda gpu: (gpu in avoided, gpu))
        running[job] = tuple(free[: size(jobs[job])])
