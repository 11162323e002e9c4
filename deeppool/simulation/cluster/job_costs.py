"""Costs of the jobs of a workload: iteration times alone and collocated.

A foreground alone takes an iteration time T, of which GPU i is held for ``held_i`` seconds; the rest are gaps. A
background on GPU i stretches the held time by a factor ``stretch_i``, delays the foreground by ``wait_i`` seconds in
which its launched work cannot be recalled, uses the fraction ``gaps_i`` of the gaps, and completes ``overlapped_i``
seconds of its own work per second of the stretched held time. All ranks wait for the slowest, so with backgrounds
beside some of them

    T'      = max(T, max over i of  T + (stretch_i - 1) held_i + wait_i)
    work_i  = gaps_i (T' - stretch_i held_i)  +  overlapped_i stretch_i held_i

seconds of background work are done on GPU i per iteration. These four numbers come from one simulation of a GPU with
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
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.baselines import (
    DataParallelComparison,
    DataParallelTime,
    data_parallel_times,
)
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.goal import background_beside, background_jobs, check_fits
from deeppool.planning.plan import Plan
from deeppool.planning.planner import plan as make_plan
from deeppool.planning.renumber_gpus import renumber_gpus
from deeppool.planning.request import cost_table
from deeppool.profiling.table import Profile
from deeppool.simulation.cluster.workload import Source, TraceJob
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.collocated_plan import simulate_gpu
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.simulate import GpuActivity, gpu_activities, mean_held
from deeppool.units import format_bytes, format_count

ClusterStrategy = Literal["data-parallel", "partition", "burst-parallel", "collocated"]
"""Placement of foregrounds and backgrounds:

data-parallel    data-parallel foregrounds on GPUs of their own; backgrounds train on the others
partition        data-parallel foregrounds on a fixed part of the cluster; backgrounds on the other part
burst-parallel   burst-parallel foregrounds on GPUs of their own; backgrounds train on the others
collocated       burst-parallel foregrounds, with backgrounds in their gaps

Foregrounds of all strategies use no more of their GPUs than make them faster. Data parallelism is that which plans are
compared with: in the buckets in which it is fastest, and in micro-steps where the whole batch does not fit.
"""
STRATEGIES: tuple[ClusterStrategy, ...] = get_args(ClusterStrategy)
DATA_PARALLEL: tuple[ClusterStrategy, ...] = ("data-parallel", "partition")
"""Strategies whose foregrounds are data parallel."""
SAMPLED_ITERATIONS = 200
"""Iterations whose mean is a job's iteration time under random conditions."""
COLLOCATED_ITERATIONS, LEARNING_ITERATIONS = 20, 200
"""Simulated iterations per distinct combination of a GPU's work and a background; more where a controller learns."""


@dataclass(frozen=True, slots=True)
class InterferenceEffect:
    """Effect of a background on one GPU of a foreground; see the module docstring."""

    stretch: float = 1.0
    wait: float = 0.0
    """Seconds per iteration by which launched work delays the foreground."""
    gaps: float = 1.0
    overlapped: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ForegroundCost:
    """Iteration time and busy time of a foreground alone on some GPUs."""

    plan: Plan
    """Plan in which all GPUs are used; of data parallelism the whole batch at once."""
    work: tuple[GpuActivity, ...]
    """Activity of its ranks as planned; ranks with the same activity share an entry."""
    kind: NDArray[np.intp]
    """Index of each rank's activity in ``work``."""
    planned_time: float
    """Seconds per iteration as planned."""
    iteration_time: float
    """Seconds per iteration under the conditions of its GPUs; a mean where they are random."""
    held: NDArray[np.float64]
    """Seconds of an iteration in which the foreground holds the GPU of each rank; means where they are random."""


@dataclass(frozen=True, slots=True)
class BackgroundCost:
    """Step time of a background alone on a GPU."""

    profile: Profile
    batch: int
    step_time: float
    """Seconds per step."""
    memory: int | None
    """Bytes that it needs; None: unknown."""


class CostCache:
    """Computes the costs of each distinct combination once."""

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
        """Stores what costs depend on; see :func:`deeppool.simulation.cluster.simulate.simulate_cluster`."""
        self._cluster = cluster
        self._strategy = strategy
        self._sources = sources
        self._foreground_limit = cluster.gpus if foreground_gpus is None else foreground_gpus
        self._interference = interference
        self._sharing = sharing
        self._harvest = harvest_of_idle
        self._conditions = conditions
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._scales: dict[int, float] = {}
        """Iteration time of data parallelism over that of its plan, by the identity of the plan."""
        self._costs: dict[tuple[int, Conditions | None], ForegroundCost] = {}
        self._backgrounds: dict[tuple[str, int | None], BackgroundCost] = {}
        self._effects: dict[tuple[int, int, int], InterferenceEffect] = {}

    @property
    def caveats(self) -> tuple[str, ...]:
        """Uncertainties of the layer times of all jobs so far, a sentence each."""
        plans = (plan.caveats for plan in self._plans.values())
        beside = (background.profile.caveats() for background in self._backgrounds.values())
        return tuple(dict.fromkeys(sentence for sentences in (*plans, *beside) for sentence in sentences))

    def plan(self, job: TraceJob) -> Plan:
        """Returns the plan of a foreground under the strategy; it uses all of its GPUs.

        Raises:
            InvalidValueError: the job lacks GPUs or batch, or its source is a plan where the strategy needs a profile.
            PlanError: no plan fits into memory.
        """
        key = (job.source, job.gpus, job.batch, job.amplification_limit)
        if key not in self._plans:
            self._plans[key] = self._make_plan(job)
        return self._plans[key]

    def _make_plan(self, job: TraceJob) -> Plan:
        source = self._sources[job.source]
        burst = self._strategy not in DATA_PARALLEL
        if isinstance(source, Plan):
            if not burst:
                raise InvalidValueError(
                    f"the source of job '{job.name}' is a plan, and the strategy {self._strategy} needs a profile "
                    "(name the profile, its GPUs and its batch)"
                )
            return renumber_gpus(source)
        if job.gpus is None or job.batch is None:
            raise InvalidValueError(f"foreground job '{job.name}' of a profile needs gpus and batch")
        cluster = replace(self._cluster, gpus=min(job.gpus, self._foreground_limit))
        if burst:
            return renumber_gpus(make_plan(source, cluster, job.batch, job.amplification_limit))
        found = fastest_data_parallelism(job.name, source, cluster, job.batch)
        made = data_parallel_plan(source, replace(cluster, gpus=found.gpus), job.batch)
        # The plan has the whole batch at once.
        self._scales[id(made)] = found.seconds / made.iteration_time
        return made

    def foreground(self, job: TraceJob, gpus: tuple[int, ...] | None = None) -> ForegroundCost:
        """Returns the cost of a foreground alone on some GPUs; by default under planned conditions."""
        plan = self.plan(job)
        conditions = None if self._conditions is None or gpus is None else self._conditions.on(gpus)
        key = (id(plan), conditions)
        if key not in self._costs:
            self._costs[key] = _cost(plan, conditions, self._scales.get(id(plan), 1.0))
        return self._costs[key]

    def background(self, job: TraceJob) -> BackgroundCost:
        """Returns the cost of a background alone on a GPU.

        Raises:
            InvalidValueError: its source is a plan, or its batch is above its profile's largest.
            PlanError: it does not fit into the memory of a GPU.
        """
        key = (job.source, job.batch)
        if key not in self._backgrounds:
            profile = self._sources[job.source]
            if isinstance(profile, Plan):
                raise InvalidValueError(f"the source of background job '{job.name}' is a plan, it needs a profile")
            if job.batch is not None and job.batch > profile.batch_sizes[-1]:
                raise InvalidValueError(
                    f"batch of background job '{job.name}' must be at most {profile.batch_sizes[-1]}, the largest in "
                    f"its profile, got {job.batch}"
                )
            if job.batch is None:
                found, *_ = background_jobs(profile, profile, self._cluster.memory)
            else:
                found = background_beside(None, profile, job.batch)
                check_fits(found, self._cluster.memory)
            batch = found.batch or 0
            self._backgrounds[key] = BackgroundCost(profile, batch, profile.step_time(batch), found.memory)
        return self._backgrounds[key]

    def effect(self, cost: ForegroundCost, kind: int, background: BackgroundCost) -> InterferenceEffect:
        """Returns the effect of a background on a GPU of a foreground with activity number ``kind``."""
        work = cost.work[kind]
        if self._interference is None or self._sharing is None or not work.spans:
            return InterferenceEffect(gaps=self._harvest)
        # Simulated as planned: conditions change durations, not which kernels slow each other down.
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


def fastest_data_parallelism(name: str, profile: Profile, cluster: Cluster, batch: int) -> DataParallelTime:
    """Returns data parallelism of a job on as many GPUs of a cluster as it is fastest on, of those on which it fits.

    Raises:
        PlanError: it fits on none, or there are more GPUs than samples.
    """
    times = data_parallel_times(profile, cost_table(profile, cluster, batch), memory_model(profile, batch))
    everywhere = times[-1]
    compared = DataParallelComparison(everywhere.seconds, times, capacity=cluster.memory)
    if not compared.fitting:
        raise PlanError(
            f"job '{name}' does not fit by data parallelism on {format_count(cluster.gpus, 'GPU')}: each needs "
            f"{format_bytes(everywhere.memory or 0)}, and has {format_bytes(cluster.memory or 0)} (give it more, a "
            "smaller batch, or a strategy of burst-parallel plans)"
        )
    return compared.fastest


def _cost(plan: Plan, conditions: Conditions | None, scale: float) -> ForegroundCost:
    """Returns the cost of a plan whose iterations, of data parallelism, take ``scale`` times as long as planned."""
    work, planned_time = gpu_activities(plan)
    kind = np.zeros(plan.gpus, dtype=np.intp)
    for index, one in enumerate(work):
        kind[list(one.gpus)] = index
    if conditions is None:
        held = np.zeros(plan.gpus)
        for one in work:
            held[list(one.gpus)] = one.held
        return ForegroundCost(plan, tuple(work), kind, planned_time, scale * planned_time, scale * held)
    held, times = mean_held(plan, conditions, SAMPLED_ITERATIONS)
    time = fmean(times)
    # Both are sums of the same spans, so a GPU without gaps may exceed the time by a rounding error.
    return ForegroundCost(plan, tuple(work), kind, planned_time, scale * time, scale * np.minimum(held, time))


def interference_effect(
    plan: Plan,
    work: GpuActivity,
    iteration_time: float,
    background: Profile,
    batch: int,
    interference: Interference,
    sharing: Sharing,
) -> InterferenceEffect:
    """Simulates one GPU of a plan with a background; the arguments are those of :func:`simulate_gpu`."""
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
