"""Discrete-event loop of a simulated cluster."""

import math
from collections.abc import Sequence

import numpy as np

from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.job import Progress
from deeppool.scheduling.placement import Gpu, JobPlacement, Request, place
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
                    f"job '{job.job.name}' needs {job.gpu_count} GPUs, the cluster has {cluster.gpus}"
                )
        self._strategy, self._costs = strategy, costs
        gpus = tuple(Gpu(number, str(number // cluster.gpus_per_node)) for number in range(cluster.gpus))
        self._all = gpus
        # In a partition, foregrounds use the first part and backgrounds the rest.
        self._foreground_gpus = gpus[:foreground_gpus]
        self._background_gpus = gpus if foreground_gpus is None else gpus[foreground_gpus:]
        self._speed = np.array([conditions.speed(number) for number in range(cluster.gpus)])
        self._arrivals = sorted(self.jobs, key=lambda job: (job.job.arrival, job.number), reverse=True)
        self._waiting: list[SimulatedJob] = []
        self._running: dict[int, SimulatedJob] = {}
        self._backgrounds = {job.number: job.cost for job in self.jobs if isinstance(job, SimulatedBackground)}

    def run(self, until: float | None, report: Progress) -> None:
        """Runs until every finite job has finished, or nothing more can start."""
        ending = sum(not _endless(job) for job in self.jobs)
        while True:
            self._arrive()
            self._place()
            if not self._arrivals and all(_endless(job) for job in self._running.values()):
                return
            next_event = min(self._next_event(), math.inf if until is None else until)
            self._advance_to(next_event)
            self._finish()
            done = sum(job.finished is not None for job in self.jobs)
            report(f"{done} of {ending} jobs have ended", done / ending)
            if until is not None and self.now >= until:
                return

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[-1].job.arrival <= self.now * (1 + SIMULTANEOUS):
            self._waiting.append(self._arrivals.pop())

    def _place(self) -> None:
        """Places and starts waiting jobs."""
        if not self._waiting:
            return
        if self._strategy == "collocated":
            self._start(place(_requests(self._waiting), self._placements(), self._all))
            return
        front = [job for job in self._waiting if isinstance(job, SimulatedForeground)]
        self._start(place(_requests(front), self._placements(), self._foreground_gpus))
        free = self._background_gpus
        if self._strategy in EXCLUSIVE:
            held = {gpu for job in self._running.values() if isinstance(job, SimulatedForeground) for gpu in job.gpus}
            self._suspend(held)
            free = tuple(gpu for gpu in self._all if gpu.number not in held)
        behind = [job for job in self._waiting if isinstance(job, SimulatedBackground)]
        self._start(place(_requests(behind), self._placements(), free))

    def _placements(self) -> list[JobPlacement]:
        return [JobPlacement(job.number, job.job.role, job.gpus) for job in self._running.values()]

    def _start(self, placements: Sequence[JobPlacement]) -> None:
        for placement in placements:
            job = self.jobs[placement.job]
            self._waiting.remove(job)
            self._running[job.number] = job
            # Simultaneous arrivals start at their own arrival time.
            start = max(self.now, job.job.arrival)
            if isinstance(job, SimulatedForeground):
                job.start(start, placement.gpus, self._costs)
            else:
                job.start(start, placement.gpus)

    def _suspend(self, held: set[int]) -> None:
        """Suspends backgrounds on GPUs that foregrounds hold; they rejoin the queue in order of arrival."""
        for job in list(self._running.values()):
            if isinstance(job, SimulatedBackground) and not held.isdisjoint(job.gpus):
                del self._running[job.number]
                job.suspend()
                self._waiting.append(job)
        self._waiting.sort(key=lambda job: (job.job.arrival, job.number))

    def _next_event(self) -> float:
        """Updates every job's rate; returns the time of the next arrival or finish."""
        self._rate()
        arrival = self._arrivals[-1].job.arrival if self._arrivals else math.inf
        return min([arrival, *(job.end(self.now) for job in self._running.values())])

    def _rate(self) -> None:
        size = len(self._all)
        foreground, background = (np.full(size, NO_JOB, dtype=np.intp) for _ in range(2))
        behind = [job for job in self._running.values() if isinstance(job, SimulatedBackground)]
        for job in behind:
            background[job.columns[job.training]] = job.number
        # Without a foreground, a background has the whole GPU.
        held, harvested, work = np.zeros(size), (background != NO_JOB).astype(np.float64), np.ones(size)
        for front in self._running.values():
            if isinstance(front, SimulatedForeground):
                where = front.columns
                front.collocate(background[where], self._backgrounds, self._costs)
                foreground[where] = front.number
                held[where], harvested[where], work[where] = front.held, front.harvested, front.work
        self._occupancy = Occupancy(foreground, background, held, harvested)
        for job in behind:
            job.set_rates((work * self._speed)[job.columns])

    def _advance_to(self, event: float) -> None:
        """Advances time to the next event and records the interval."""
        seconds = event - self.now
        throughput = {"foreground": 0.0, "background": 0.0}
        for job in self._running.values():
            throughput[job.job.role] += job.throughput
            job.advance(seconds)
        if seconds > 0:
            self.history.record(
                self.now,
                event,
                self._occupancy,
                throughput=(throughput["foreground"], throughput["background"]),
                queued=len(self._waiting),
            )
        self.now = event

    def _finish(self) -> None:
        tolerance = SIMULTANEOUS * self.now
        for job in list(self._running.values()):
            if isinstance(job, SimulatedForeground):
                over = job.end(self.now) <= self.now + tolerance
                if over:
                    job.finish(self.now)
            else:
                over = job.finish_training(self.now, tolerance)
            if over:
                del self._running[job.number]


def _job(number: int, job: TraceJob, costs: CostCache) -> SimulatedJob:
    return (SimulatedForeground if job.role == "foreground" else SimulatedBackground)(number, job, costs)


def _endless(job: SimulatedJob) -> bool:
    return isinstance(job, SimulatedBackground) and job.endless


def _requests(jobs: Sequence[SimulatedJob]) -> list[Request]:
    return [Request(job.number, job.job.role, job.gpu_count) for job in jobs]
