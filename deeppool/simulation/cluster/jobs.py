"""Jobs of a simulated cluster: remaining work and current rate."""

import math

import numpy as np
from numpy.typing import NDArray

from deeppool.simulation.cluster.job_costs import BackgroundCost, CostCache, ForegroundCost
from deeppool.simulation.cluster.record import JobOutcome
from deeppool.simulation.cluster.workload import TraceJob

Floats = NDArray[np.float64]
Gpus = NDArray[np.intp]


class _SimulatedJob:
    """State common to both roles; a job waits, trains on some GPUs, and may be suspended in between."""

    def __init__(self, number: int, job: TraceJob, gpu_count: int) -> None:
        self.number, self.job, self.gpu_count = number, job, gpu_count
        self.gpus: tuple[int, ...] = ()
        """GPUs it trains on; kept after it has finished."""
        self.columns: Gpus = np.zeros(0, dtype=np.intp)
        """The same as an index into arrays over all GPUs."""
        self.version = 0
        """Grows whenever the rate changes."""
        self._updated = 0.0
        """Time up to which its progress is counted."""
        self.started: float | None = None
        self.finished: float | None = None
        self.samples = 0.0
        self.alone_time: float | None = None
        self.suspensions = 0

    def _occupy(self, now: float, gpus: tuple[int, ...]) -> None:
        self.gpus, self.columns, self._updated = gpus, np.array(gpus, dtype=np.intp), now
        self.started = now if self.started is None else self.started

    def _outcome(self, iterations: float, single_gpu_iteration_time: float | None) -> JobOutcome:
        return JobOutcome(
            name=self.job.name,
            role=self.job.role,
            gpu_count=self.gpu_count,
            gpus=self.gpus,
            arrival=self.job.arrival,
            start=self.started,
            finish=self.finished,
            iterations=iterations,
            samples=self.samples,
            alone_time=self.alone_time,
            suspensions=self.suspensions,
            single_gpu_iteration_time=single_gpu_iteration_time,
        )


class SimulatedForeground(_SimulatedJob):
    """A foreground job that trains by a plan."""

    def __init__(self, number: int, job: TraceJob, costs: CostCache) -> None:
        """Creates the job, waiting."""
        self._plan = costs.plan(job)
        super().__init__(number, job, self._plan.gpus)
        self.bytes = np.zeros(self._plan.gpus)
        """Bytes that it holds on each of its GPUs; 0 where that is unknown."""
        for use in self._plan.memory:
            self.bytes[list(use.gpus)] = use.total
        assert job.iterations is not None
        self._iterations = job.iterations
        self._left = float(job.iterations)
        self._cost: ForegroundCost | None = None
        self._period = math.inf
        self._collocated_with: bytes | None = None
        self.held = self.harvested = self.work = np.zeros(0)
        """Per GPU of the job, fractions of time: held by it, used by a background alone, and background work done."""

    def start(self, now: float, gpus: tuple[int, ...], costs: CostCache) -> None:
        """Starts on the given GPUs."""
        self._occupy(now, gpus)
        self._cost = costs.foreground(self.job, gpus)
        self._collocated_with = None
        self.alone_time = self._iterations * self._cost.iteration_time

    def collocate(self, backgrounds: Gpus, background_costs: dict[int, BackgroundCost], costs: CostCache) -> None:
        """Sets the rates beside the background of each of the job's GPUs, given by number, negative for none."""
        cost, key = self._cost, backgrounds.tobytes()
        assert cost is not None
        if key == self._collocated_with:
            return
        self._collocated_with = key
        stretch, gaps, wait, overlapped = np.ones_like(cost.held), *np.zeros((3, len(cost.held)))
        for number in {*backgrounds.tolist()} - {-1}:
            mine = backgrounds == number
            for kind in {*cost.kind[mine].tolist()}:
                here = mine & (cost.kind == kind)
                effect = costs.effect(cost, kind, background_costs[number])
                stretch[here], wait[here] = effect.stretch, effect.wait
                gaps[here], overlapped[here] = effect.gaps, effect.overlapped
        delay = float(np.max((stretch - 1) * cost.held + wait))
        self._period = cost.iteration_time + delay
        busy = np.minimum(stretch * cost.held, self._period)
        alone = gaps * (self._period - busy)
        self.held, self.harvested = busy / self._period, alone / self._period
        self.work = (alone + overlapped * busy) / self._period

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self._plan.global_batch / self._period

    def end(self) -> float:
        """Returns the time at which it finishes at the current rate."""
        return self._updated + self._left * self._period

    def advance(self, now: float) -> None:
        """Trains until ``now`` at the current rate."""
        # A job placed with others that arrived with it starts at its own arrival, which may be a rounding error later.
        done = min(self._left, max(0.0, now - self._updated) / self._period)
        self._updated = max(now, self._updated)
        self._left -= done
        self.samples += done * self._plan.global_batch

    def finish(self, now: float) -> None:
        """Marks the job as finished."""
        self._left, self.finished = 0.0, now
        self.samples = float(self._iterations * self._plan.global_batch)

    def outcome(self) -> JobOutcome:
        """Returns the outcome so far."""
        return self._outcome(self._iterations - self._left, self._plan.single_gpu_iteration_time)


class SimulatedBackground(_SimulatedJob):
    """A background job: an independent training per GPU, finished when all of them are."""

    def __init__(self, number: int, job: TraceJob, costs: CostCache) -> None:
        """Creates the job, waiting."""
        super().__init__(number, job, job.gpus or 1)
        self.cost = costs.background(job)
        self._whole = math.inf if job.iterations is None else float(job.iterations)
        self._left: Floats = np.full(self.gpu_count, self._whole)
        self._done: Floats = np.zeros(self.gpu_count)
        self._rate: Floats = np.zeros(self.gpu_count)
        if job.iterations is not None:
            self.alone_time = job.iterations * self.cost.step_time

    @property
    def endless(self) -> bool:
        """Whether it trains until all other jobs have finished."""
        return math.isinf(self._whole)

    @property
    def training(self) -> NDArray[np.bool_]:
        """Per GPU of the job, whether work remains."""
        return self._left > 0

    def start(self, now: float, gpus: tuple[int, ...]) -> None:
        """Starts or resumes on the given GPUs."""
        self._occupy(now, gpus)

    def suspend(self) -> None:
        """Releases its GPUs and waits."""
        self.suspensions += 1
        self._rate = np.zeros(self.gpu_count)

    def set_rates(self, speed: Floats) -> None:
        """Sets the relative speed on each of its GPUs; 1 is as fast as alone."""
        self._rate = np.where(self.training, speed / self.cost.step_time, 0.0)

    @property
    def throughputs(self) -> Floats:
        """Samples per second on each of its GPUs."""
        found: Floats = self._rate * self.cost.batch
        return found

    def end(self) -> float:
        """Returns the time at which the next of its trainings finishes at the current rates."""
        moving = self._rate > 0
        return self._updated + float(np.min(self._left[moving] / self._rate[moving])) if moving.any() else math.inf

    def advance(self, now: float) -> None:
        """Trains until ``now`` at the current rates."""
        done = np.minimum(self._left, max(0.0, now - self._updated) * self._rate)
        self._updated = max(now, self._updated)
        self._done += done
        self._left -= done
        self.samples = float(self._done.sum()) * self.cost.batch

    def finish_training(self, now: float, tolerance: float) -> bool:
        """Finishes the trainings that end now; returns whether all are finished."""
        over = (self._rate > 0) & (self._left <= tolerance * self._rate)
        self._done[over], self._left[over], self._rate[over] = self._whole, 0.0, 0.0
        if self._left.any():
            return False
        self.finished = now
        self.samples = float(self._done.sum()) * self.cost.batch
        return True

    def outcome(self) -> JobOutcome:
        """Returns the outcome so far."""
        return self._outcome(float(self._done.mean()), None)
