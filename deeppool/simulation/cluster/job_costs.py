"""What the jobs of a workload cost: iterations alone, on which GPUs, and beside one another.

A foreground alone takes an iteration time T, of which GPU i is held for ``held_i`` seconds; the rest are gaps. A
background beside it on GPU i makes what is held longer by a factor ``stretch_i``, delays it by ``wait_i`` seconds that
it cannot be recalled in, uses the part ``gaps_i`` of the gaps, and gets ``overlapped_i`` seconds of its own work done per
second beside the foreground's. All ranks wait for the slowest, so with backgrounds beside some of them

    T'      = max(T, max over i of  T + (stretch_i - 1) held_i + wait_i)
    work_i  = gaps_i (T' - stretch_i held_i)  +  overlapped_i stretch_i held_i

seconds of background work are done on GPU i per iteration. The four numbers come from one simulation of a GPU with
both jobs (``collocated``), once per distinct combination; without measured interference they are 1, 0, 1 and 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from deeppool.base.sharing import Sharing
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.plan import Plan
from deeppool.planning.planner import plan as make_plan
from deeppool.planning.renumber_gpus import renumber_gpus
from deeppool.profiling.table import Profile
from deeppool.simulation.cluster.workload import Source, TraceJob
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.collocated_plan import simulate_gpu
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.simulate import GpuActivity, gpu_activities, median_activities

ClusterStrategy = Literal["data-parallel", "partition", "burst-parallel", "collocated"]
"""Who trains where:

data-parallel    foregrounds are data parallel and have their GPUs to themselves; backgrounds train on the others
partition        the same, on a fixed part of the cluster; backgrounds train on the other part
burst-parallel   as data-parallel, with burst-parallel plans
collocated       burst-parallel plans, and backgrounds in their gaps
"""
STRATEGIES: tuple[ClusterStrategy, ...] = get_args(ClusterStrategy)
SAMPLED_ITERATIONS = 200
"""Whose mean is a job's iteration time under random conditions."""
COLLOCATED_ITERATIONS, LEARNING_ITERATIONS = 20, 200
"""Of each distinct combination of a GPU's work and a background; where a governor first learns what it costs."""


@dataclass(frozen=True, slots=True)
class InterferenceEffect:
    """A background beside one GPU of a foreground; see above."""

    stretch: float = 1.0
    wait: float = 0.0
    """Seconds of an iteration."""
    gaps: float = 1.0
    overlapped: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ForegroundCost:
    """A foreground alone on some GPUs."""

    plan: Plan
    """Whose GPUs are all in use."""
    work: tuple[GpuActivity, ...]
    """Of its ranks, as planned; those that do the same together."""
    kind: NDArray[np.intp]
    """Per rank, which of ``work`` it does."""
    planned_time: float
    """Seconds of an iteration."""
    iteration_time: float
    """Under the conditions of its GPUs; a mean where they are random."""
    held: NDArray[np.float64]
    """Per rank, seconds of such an iteration in which the foreground holds its GPU."""


@dataclass(frozen=True, slots=True)
class BackgroundCost:
    """A background alone on a GPU."""

    profile: Profile
    batch: int
    step_time: float
    """Seconds."""


class CostCache:
    """Prices each distinct combination once."""

    def __init__(
        self,
        cluster: Cluster,
        strategy: ClusterStrategy,
        sources: Mapping[str, Source],
        *,
        foreground_gpus: int | None = None,
        interference: Interference | None = None,
        sharing: Sharing | None = None,
        harvest_of_idle: float = 1.0,
        conditions: Conditions | None = None,
    ) -> None:
        """Takes what prices depend on; see :func:`deeppool.simulation.cluster.simulate.simulate_cluster`."""
        self._cluster = cluster
        self._strategy = strategy
        self._sources = sources
        self._foreground_limit = cluster.gpus if foreground_gpus is None else foreground_gpus
        self._interference = interference
        self._sharing = sharing
        self._harvest = harvest_of_idle
        self._conditions = conditions
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._costs: dict[tuple[int, Conditions | None], ForegroundCost] = {}
        self._backgrounds: dict[tuple[str, int | None], BackgroundCost] = {}
        self._effects: dict[tuple[int, int, int], InterferenceEffect] = {}

    def plan(self, job: TraceJob) -> Plan:
        """Of a foreground, by the strategy; all of its GPUs are in use.

        Raises:
            InvalidValueError: the job does not say what it wants, or brings a plan where the strategy needs a profile.
            PlanError: there is none.
        """
        key = (job.source, job.gpus, job.batch, job.amplification_limit)
        if key not in self._plans:
            self._plans[key] = renumber_gpus(self._make_plan(job))
        return self._plans[key]

    def _make_plan(self, job: TraceJob) -> Plan:
        source = self._source(job)
        burst = self._strategy in ("burst-parallel", "collocated")
        if isinstance(source, Plan):
            if not burst:
                raise InvalidValueError(
                    f"job '{job.name}' brings a plan, and the strategy {self._strategy} needs its profile to plan by "
                    "itself (name the profile, its GPUs and its batch)"
                )
            return source
        if job.gpus is None or job.batch is None:
            raise InvalidValueError(f"foreground job '{job.name}' of a profile needs gpus and batch")
        cluster = replace(self._cluster, gpus=min(job.gpus, self._foreground_limit))
        if not burst:
            return data_parallel_plan(source, cluster, job.batch)
        return make_plan(source, cluster, job.batch, job.amplification_limit)

    def foreground(self, job: TraceJob, gpus: tuple[int, ...] | None = None) -> ForegroundCost:
        """Alone on some GPUs of the cluster; on such as planned unless given."""
        plan = self.plan(job)
        conditions = None if self._conditions is None or gpus is None else self._conditions.on(gpus)
        key = (id(plan), conditions)
        if key not in self._costs:
            self._costs[key] = _cost(plan, conditions)
        return self._costs[key]

    def background(self, job: TraceJob) -> BackgroundCost:
        """Alone on a GPU.

        Raises:
            InvalidValueError: its source is a plan, or its batch is above its profile's largest.
        """
        key = (job.source, job.batch)
        if key not in self._backgrounds:
            profile = self._source(job)
            if isinstance(profile, Plan):
                raise InvalidValueError(f"background job '{job.name}' brings a plan, it needs a profile")
            batch = profile.batch_sizes[-1] if job.batch is None else job.batch
            if batch > profile.batch_sizes[-1]:
                raise InvalidValueError(
                    f"batch of background job '{job.name}' must be at most {profile.batch_sizes[-1]}, the largest in "
                    f"its profile, got {batch}"
                )
            self._backgrounds[key] = BackgroundCost(profile, batch, profile.iteration_time(batch))
        return self._backgrounds[key]

    def effect(self, cost: ForegroundCost, kind: int, background: BackgroundCost) -> InterferenceEffect:
        """A background beside a GPU of a foreground that does work number ``kind``."""
        work = cost.work[kind]
        if self._interference is None or self._sharing is None or not work.spans:
            return InterferenceEffect(gaps=self._harvest)
        # As planned, whatever the conditions: they change how long work is held, not what suffers beside what.
        key = (id(cost.plan), kind, id(background))
        if key not in self._effects:
            self._effects[key] = interference_effect(
                cost.plan,
                work,
                cost.planned_time,
                background.profile,
                background.batch,
                self._interference,
                self._sharing,
            )
        return self._effects[key]

    def _source(self, job: TraceJob) -> Source:
        if job.source not in self._sources:
            known = ", ".join(self._sources) or "none"
            raise InvalidValueError(f"job '{job.name}' names the source '{job.source}', known are: {known}")
        return self._sources[job.source]


def _cost(plan: Plan, conditions: Conditions | None) -> ForegroundCost:
    work, planned_time = gpu_activities(plan)
    kind = np.zeros(plan.gpus, dtype=np.intp)
    for index, one in enumerate(work):
        kind[list(one.gpus)] = index
    time, ranks = planned_time, work
    if conditions is not None:
        ranks, times = median_activities(plan, conditions, SAMPLED_ITERATIONS)
        time = fmean(times)
    held = np.zeros(plan.gpus)
    for one in ranks:
        # The iteration of median length may be longer than the mean.
        held[list(one.gpus)] = min(one.held, time)
    return ForegroundCost(plan, tuple(work), kind, planned_time, time, held)


def interference_effect(
    plan: Plan,
    work: GpuActivity,
    iteration_time: float,
    background: Profile,
    batch: int,
    interference: Interference,
    sharing: Sharing,
) -> InterferenceEffect:
    """Simulates a GPU of a plan with a background beside it; see :func:`simulate_gpu` for the arguments."""
    iterations = LEARNING_ITERATIONS if sharing.learns else COLLOCATED_ITERATIONS
    found = simulate_gpu(plan, work, iteration_time, background, batch, interference, sharing, iterations=iterations)
    busy = found.elapsed - found.gap_time
    stretch = max(1.0, busy / found.iterations / work.held)
    return InterferenceEffect(
        stretch=stretch,
        wait=max(0.0, found.iteration_time - found.alone_time - (stretch - 1) * work.held),
        gaps=min(1.0, found.gap_work / found.gap_time) if found.gap_time else 1.0,
        overlapped=(found.work - found.gap_work) / busy,
    )
