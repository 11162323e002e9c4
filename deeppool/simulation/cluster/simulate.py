"""Simulation of a cluster on a virtual clock: jobs arrive, are placed, train collocated, and finish.

The placement is the coordinator's (``deeppool.scheduling.placement``); here it
runs on a virtual clock. Time advances from event
to event: an arrival, the end of a job, the end of a background's training on one of its GPUs. Between two events every
job has a constant rate (``job_costs``), so a job of a million iterations costs no more than one of ten.

A foreground has precedence. Where a strategy gives it exclusive GPUs, or where it leaves a background no room in the
memory of one, a background on them is suspended with its progress and resumes on other GPUs. A plan is priced as on the
first GPUs of the cluster, wherever the job is placed: a job that is spread over more nodes than that would be slower.
"""

from collections.abc import Mapping

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import real_number, whole_number
from deeppool.base.sharing import Policy, Sharing, find_sharing
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.job import Progress
from deeppool.simulation.cluster.engine import Engine
from deeppool.simulation.cluster.job_costs import STRATEGIES, ClusterStrategy, CostCache
from deeppool.simulation.cluster.record import ClusterSimulation
from deeppool.simulation.cluster.workload import Source, WorkloadTrace, cluster_of_jobs, load_sources
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.conditions import Conditions
from deeppool.units import format_count


@interruptible
@typed
def simulate_cluster(
    trace: WorkloadTrace,
    cluster: Cluster | int,
    *,
    strategy: ClusterStrategy = "collocated",
    sources: Mapping[str, Source] | None = None,
    foreground_gpus: int | None = None,
    interference: Interference | None = None,
    policy: Policy | Sharing = "priority",
    max_slowdown: float | None = None,
    harvest_of_idle: float = 1.0,
    conditions: Conditions | None = None,
    until: float | None = None,
    on_progress: Progress | None = None,
) -> ClusterSimulation:
    """Simulates a workload trace on a cluster; the same arguments give the same record.

        trace = dp.load("trace.json")
        found = dp.simulate_cluster(trace, 64)
        print(found)
        dp.figures.cluster(found)

    Args:
        trace: the jobs.
        cluster: its GPUs and links, or a number of GPUs: of the DGX of the profiles' GPU, or cores of this machine.
        strategy: placement of the jobs, see :data:`deeppool.simulation.cluster.job_costs.ClusterStrategy`.
        sources: the profiles and plans that the trace names; loaded by name or file by default.
        foreground_gpus: size of the foreground part of a partition, its first GPUs.
        interference: measured between kernels; None: backgrounds do not slow foregrounds down.
        policy: name of the sharing mechanisms of backgrounds, where interference is given.
        max_slowdown: bound on the foreground's slowdown that a controller enforces; needs interference.
        harvest_of_idle: fraction of a foreground's gaps that a background uses, without interference.
        conditions: deviations of the cluster's GPUs and links from the plan.
        until: seconds at which the simulation ends; by default when all jobs have finished.
        on_progress: receives a description and the fraction of finished jobs.

    Raises:
        InvalidValueError: a job that the cluster or the strategy cannot run, jobs of different devices, or an argument
            out of its bounds.
        PlanError, MissingProfileError, DocumentError: from planning a job or loading its sources.
    """
    known = load_sources(trace) if sources is None else sources
    cluster = cluster_of_jobs(trace, known, cluster)
    if foreground_gpus is not None:
        note = f"the cluster has {format_count(cluster.gpus, 'GPU')}"
        foreground_gpus = whole_number("foreground_gpus", foreground_gpus, 1, cluster.gpus, note)
    harvest_of_idle = real_number("harvest_of_idle", harvest_of_idle)
    until = None if until is None else real_number("until", until)
    _check(strategy, foreground_gpus, harvest_of_idle, until)
    if conditions is not None:
        conditions.check_gpus(cluster.gpus, "the cluster")
    sharing = find_sharing(policy, max_slowdown)
    if interference is None and sharing is not None and max_slowdown is not None:
        raise InvalidValueError(
            f"max_slowdown {sharing.max_slowdown:g} bounds what backgrounds cost, which no interference says "
            "(give it, or leave the bound out)"
        )
    if sharing is None:
        raise InvalidValueError("policy 'none' has no background (the strategy burst-parallel keeps them apart)")
    costs = CostCache(
        cluster,
        strategy,
        known,
        foreground_gpus=foreground_gpus,
        interference=interference,
        sharing=sharing,
        harvest_of_idle=harvest_of_idle,
        conditions=conditions,
    )
    engine = Engine(trace, cluster, strategy, foreground_gpus, costs, conditions or Conditions())
    engine.run(until, on_progress or (lambda what, share: None))
    modelled = "no interference modelled"
    if interference is not None:
        modelled = f"interference as on {interference.device_name}, {interference.date}"
    return ClusterSimulation(
        trace=trace.name,
        cluster=cluster,
        strategy=strategy,
        foreground_gpus=foreground_gpus,
        sharing=None if interference is None else sharing,
        interference=modelled,
        conditions=conditions,
        provenance="estimated" if any(known[x.source].provenance == "estimated" for x in trace.jobs) else "measured",
        makespan=engine.now,
        gpu_seconds=engine.history.gpu_seconds(),
        jobs=tuple(job.outcome() for job in engine.jobs),
        steps=tuple(engine.history.steps),
        groups=engine.history.groups(engine.now, [job.name for job in trace.jobs]),
        caveats=costs.caveats,
    )


def _check(strategy: str, foreground_gpus: int | None, harvest_of_idle: float, until: float | None) -> None:
    if strategy not in STRATEGIES:
        raise InvalidValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got '{strategy}'")
    if (strategy == "partition") != (foreground_gpus is not None):
        raise InvalidValueError(
            "foreground_gpus and the strategy partition need each other: got "
            f"{foreground_gpus} with strategy {strategy}"
        )
    if not 0 <= harvest_of_idle <= 1:
        raise InvalidValueError(f"harvest_of_idle must be from 0 to 1, got {harvest_of_idle:g}")
    if until is not None and not until > 0:
        raise InvalidValueError(f"until must be later than 0 s, got {until:g} s")
