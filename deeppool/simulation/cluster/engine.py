"""Discrete-event loop of a simulated cluster.

A job's rate changes only when a job starts, ends or is suspended on one of its GPUs. So each event updates the jobs
on those GPUs alone: a job is brought up to date when its rate changes, and its next end waits in a heap.
"""

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.job import Progress
from deeppool.scheduling.placement import Gpu, GpuPool, JobPlacement, Request, Role
from deeppool.simulation.cluster.history import Occupancy, SimulationHistory
from deeppool.simulation.cluster.job_costs import ClusterStrategy, CostCache
from deeppool.simulation.cluster.jobs import SimulatedBackground, SimulatedForeground
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace
from deeppool.simulation.plan.conditions import Conditions

NO_JOB = -1
SIMULTANEOUS = 1e-12
"""Relative difference of times below which events count as simultaneous."""
EXCLUSIVE: tuple[ClusterStrategy, ...] = ("data-parallel", "burst-parallel")
"""Strategies under which a foreground evicts the backgrounds on its GPUs."""

SimulatedJob = SimulatedForeground | SimulatedBackground


class Engine:
    """The state of the cluster; :meth:`run` drives it to the end."""

    def __init__(
        self,
        trace: WorkloadTrace,
        cluster: Cluster,
        strategy: ClusterStrategy,
        foreground_gpus: int | None,
        costs: CostCache,
        conditions: Conditions,
    ) -> None:
        """Computes the cost of every job.

        Raises:
            InvalidValueError: a job is larger than the cluster.
        """
        self.now = 0.0
        self.history = SimulationHistory(cluster.gpus)
        self.jobs: list[SimulatedJob] = [_job(number, job, costs) for number, job in enumerate(trace.jobs)]
        for job in self.jobs:
            if job.gpu_count > cluster.gpus:
                raise InvalidValueError(
                    f"job '{job.job.name}' needs {job.gpu_count} GPUs, the cluster has {cluster.gpus} "
                    "(simulate a larger one, or leave the job out)"
                )
        self._exclusive, self._costs = strategy in EXCLUSIVE, costs
        self._capacity = math.inf if cluster.memory is None else cluster.memory
        size = cluster.gpus
        self._pool = GpuPool([Gpu(number, str(number // cluster.gpus_per_node)) for number in range(size)])
        self._speed = np.array([conditions.speed(number) for number in range(size)])
        self._allowed = _parts(size, foreground_gpus)
        self._holders = {role: np.full(size, NO_JOB, dtype=np.intp) for role in ("foreground", "background")}
        """The job of each role that holds each GPU, whether it still trains there or not."""
        nobody = np.full(size, NO_JOB, dtype=np.intp)
        self._state = Occupancy(nobody, nobody.copy(), np.zeros(size), np.zeros(size))
        self._work = np.ones(size)
        self._bytes = np.zeros(size)
        """Memory of each GPU that its foreground holds."""
        self._throughput = {role: np.zeros(size) for role in ("foreground", "background")}
        """Samples per second of each GPU's jobs."""
        self._arrivals = sorted(self.jobs, key=lambda job: (job.job.arrival, job.number), reverse=True)
        self._queues: dict[Role, list[tuple[float, int]]] = {"foreground": [], "background": []}
        """Waiting jobs in the order of arrival, as heaps: a suspended background returns to its place."""
        self._ends: list[tuple[float, int, int]] = []
        """Next end of every running job's training: time, number, and the version of the job's rate."""
        self._running: set[int] = set()
        self._unfinished = self._finite = sum(not _endless(job) for job in self.jobs)
        self._finite_running = 0
        self._changed: set[int] = set()
        """GPUs on which a job started, ended or was suspended since the rates were updated."""

    def run(self, until: float | None, report: Progress) -> None:
        """Runs until every finite job has finished, or nothing more can start.

        Raises:
            InvalidValueError: nothing can start at all.
        """
        while True:
            self._arrive()
            self._place()
            if not self._arrivals and not self._finite_running:
                if not self.history.steps:
                    raise InvalidValueError(_never_starts([job for job in self.jobs if not _endless(job)]))
                break
            next_event = min(self._next_event(), math.inf if until is None else until)
            self._advance_to(next_event)
            self._finish()
            done = self._finite - self._unfinished
            report(f"{done} of {self._finite} jobs have ended", done / self._finite)
            if until is not None and self.now >= until:
                break
        for number in self._running:
            self.jobs[number].advance(self.now)

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[-1].job.arrival <= self.now * (1 + SIMULTANEOUS):
            job = self._arrivals.pop()
            heapq.heappush(self._queues[job.job.role], (job.job.arrival, job.number))

    def _place(self) -> None:
        """Places and starts waiting jobs, foregrounds first: a background could get one on its GPUs at once."""
        self._start("foreground", self._allowed["foreground"])
        self._suspend()
        allowed = self._holders["foreground"] == NO_JOB if self._exclusive else self._allowed["background"]
        self._start("background", allowed)
        self._update()

    def _start(self, role: Role, allowed: NDArray[np.bool_]) -> None:
        """Starts the jobs at the head of a queue until one does not fit."""
        queue = self._queues[role]
        while queue:
            job = self.jobs[queue[0][1]]
            free = allowed & self._has_room(job, slice(None)) if isinstance(job, SimulatedBackground) else allowed
            placement = self._pool.choose(Request(job.number, role, job.gpu_count), free)
            if placement is None:
                break
            heapq.heappop(queue)
            self._hold(placement, job.number)
            self._running.add(job.number)
            self._finite_running += not _endless(job)
            # Simultaneous arrivals start at their own arrival time.
            start = max(self.now, job.job.arrival)
            if isinstance(job, SimulatedForeground):
                job.start(start, placement.gpus, self._costs)
                self._bytes[list(placement.gpus)] = job.bytes
            else:
                job.start(start, placement.gpus)

    def _hold(self, placement: JobPlacement, holder: int) -> None:
        self._pool.hold(placement, held=holder != NO_JOB)
        self._holders[placement.role][list(placement.gpus)] = holder
        self._changed.update(placement.gpus)

    def _release(self, job: SimulatedJob) -> None:
        self._hold(JobPlacement(job.number, job.job.role, job.gpus), NO_JOB)
        if isinstance(job, SimulatedForeground):
            self._bytes[list(job.gpus)] = 0
        self._running.remove(job.number)
        self._finite_running -= not _endless(job)
        job.version += 1

    def _suspend(self) -> None:
        """Suspends backgrounds on GPUs whose foreground is alone there, or leaves them no room in memory.

        They rejoin the queue in order of arrival.
        """
        where = np.fromiter(self._changed, dtype=np.intp)
        for number in self._on("background", where[self._holders["foreground"][where] != NO_JOB]):
            job = self._background(number)
            if not self._exclusive and self._has_room(job, job.columns).all():
                continue
            job.advance(self.now)
            self._release(job)
            job.suspend()
            heapq.heappush(self._queues["background"], (job.job.arrival, number))

    def _has_room(self, job: SimulatedBackground, where: slice | NDArray[np.intp]) -> NDArray[np.bool_]:
        """Returns whether each of some GPUs has room for a background beside the foreground on it."""
        found: NDArray[np.bool_] = self._bytes[where] <= self._capacity - (job.cost.memory or 0)
        return found

    def _update(self) -> None:
        """Updates occupancy and rates of the jobs on GPUs where a job started, ended or was suspended."""
        changed, self._changed = self._changed, set()
        if not changed:
            return
        state, where = self._state, np.fromiter(changed, dtype=np.intp)
        state.foreground[where] = self._holders["foreground"][where]
        state.background[where] = NO_JOB
        for back in map(self._background, self._on("background", where)):
            back.advance(self.now)
            state.background[back.columns] = np.where(back.training, back.number, NO_JOB)
        # Without a foreground, a background has the whole GPU.
        state.held[where], self._work[where] = 0.0, 1.0
        state.harvested[where] = state.background[where] != NO_JOB
        for throughput in self._throughput.values():
            throughput[where] = 0.0
        # A foreground's rate depends on the backgrounds of all its GPUs, and theirs on it.
        fronts = self._on("foreground", where)
        moved = [where, *map(self._collocate, fronts)]
        for back in map(self._background, self._on("background", np.concatenate(moved))):
            columns = back.columns
            back.advance(self.now)
            back.set_rates(self._work[columns] * self._speed[columns])
            self._throughput["background"][columns] = back.throughputs
            self._expect_end(back)
        self.history.changed(self.now, state, np.concatenate([where, *(self.jobs[front].columns for front in fronts)]))

    def _on(self, role: Role, where: NDArray[np.intp]) -> set[int]:
        """Returns the jobs of a role that hold any of some GPUs."""
        return {*self._holders[role][where].tolist()} - {NO_JOB}

    def _collocate(self, number: int) -> NDArray[np.intp]:
        """Updates a foreground's rate; returns its GPUs on which a background's rate changes."""
        front, state = self.jobs[number], self._state
        assert isinstance(front, SimulatedForeground)
        where = front.columns
        front.advance(self.now)
        backgrounds = state.background[where]
        costs = {back: self._background(back).cost for back in {*backgrounds.tolist()} - {NO_JOB}}
        front.collocate(backgrounds, costs, self._costs)
        moved: NDArray[np.intp] = where[self._work[where] != front.work]
        state.held[where], state.harvested[where], self._work[where] = front.held, front.harvested, front.work
        self._throughput["foreground"][where] = front.throughput / front.gpu_count
        self._expect_end(front)
        return moved

    def _background(self, number: int) -> SimulatedBackground:
        job = self.jobs[number]
        assert isinstance(job, SimulatedBackground)
        return job

    def _expect_end(self, job: SimulatedJob) -> None:
        job.version += 1
        end = job.end()
        if end < math.inf:
            heapq.heappush(self._ends, (end, job.number, job.version))

    def _next_event(self) -> float:
        """Returns the time of the next arrival or end."""
        while self._ends and self.jobs[self._ends[0][1]].version != self._ends[0][2]:
            heapq.heappop(self._ends)
        arrival = self._arrivals[-1].job.arrival if self._arrivals else math.inf
        return min(arrival, self._ends[0][0] if self._ends else math.inf)

    def _advance_to(self, event: float) -> None:
        """Advances time to the next event and records the interval."""
        if event > self.now:
            self.history.record(
                self.now,
                event,
                self._state,
                throughput=(float(self._throughput["foreground"].sum()), float(self._throughput["background"].sum())),
                queued=sum(map(len, self._queues.values())),
            )
        self.now = event

    def _finish(self) -> None:
        """Ends the jobs, and the trainings of backgrounds, that are due."""
        tolerance = SIMULTANEOUS * self.now
        while self._ends and self._ends[0][0] <= self.now + tolerance:
            _, number, version = heapq.heappop(self._ends)
            job = self.jobs[number]
            if version != job.version:
                continue
            self._changed.update(job.gpus)
            job.advance(self.now)
            if isinstance(job, SimulatedForeground):
                job.finish(self.now)
            elif not job.finish_training(self.now, tolerance):
                continue
            self._release(job)
            self._unfinished -= 1


def _parts(size: int, foreground_gpus: int | None) -> dict[Role, NDArray[np.bool_]]:
    """Returns the GPUs that each role may use: in a partition, foregrounds the first part and backgrounds the rest."""
    everywhere = np.full(size, True)
    if foreground_gpus is None:
        return {"foreground": everywhere, "background": everywhere}
    first = np.arange(size) < foreground_gpus
    return {"foreground": first, "background": ~first}


def _never_starts(jobs: Sequence[SimulatedJob]) -> str:
    return (
        f"job '{jobs[0].job.name}' can never start, and neither can any other with a number of iterations: there are "
        "too few GPUs for its role, or with room for it, or a background without such a number is before it (simulate "
        "more GPUs, or give that background a number of iterations)"
    )


def _job(number: int, job: TraceJob, costs: CostCache) -> SimulatedJob:
    return (SimulatedForeground if job.role == "foreground" else SimulatedBackground)(number, job, costs)


def _endless(job: SimulatedJob) -> bool:
    return isinstance(job, SimulatedBackground) and job.endless
