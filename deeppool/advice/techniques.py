"""What each technique gains over DDP, predicted from the same layer times and network as a plan."""

from deeppool.advice.record import Finding, Verdict
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.interleaving.crossover.round_time import JobCosts, crossover_round_time
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier, FrontierPoint
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_seconds

WORTH = 1.03
"""Least gain that is worth another way to train: a few percent are within the error of most predictions."""


def verdict_on(gain: float) -> Verdict:
    """Returns whether a predicted gain is worth it."""
    return "yes" if gain >= WORTH else "no"


def burst_parallelism(fastest: Plan, profile_name: str) -> Finding:
    """Judges the fastest plan."""
    gain = fastest.data_parallel_iteration_time / fastest.iteration_time
    taken = f"the fastest plan takes {format_seconds(fastest.iteration_time)}"
    evidence = f"{taken}, {gain:.2f} times as fast as DDP" if gain > 1 else "no plan is faster than DDP"
    command = f"deeppool plan {profile_name} --gpus {fastest.gpus} --global-batch {fastest.global_batch} -o plan.json"
    return Finding("burst parallelism", verdict_on(gain), gain, evidence, command)


def collocation(found: Frontier, profile: Profile, profile_name: str) -> Finding:
    """Judges a second job of the same model in the idle time of the plans that are as fast as DDP.

    The gain is in the samples per second of the cluster, both jobs counted.
    """
    batch = profile.batch_sizes[-1]
    second = batch / profile.iteration_time(batch)
    ddp = found.data_parallel_iteration_time
    idle = max(found.gpus - point.gpu_seconds / point.iteration_time for point in as_fast_as_ddp(found))
    alone, beside = found.global_batch / ddp, max(0.0, idle) * second
    gain = 1 + beside / alone
    evidence = (
        f"plans as fast as DDP leave {max(0.0, idle) / found.gpus:.0%} of the GPU time idle; a second job there trains "
        f"{beside:.4g} samples/s beside {alone:.4g}, if nothing interferes"
    )
    command = (
        f"deeppool plan {profile_name} --gpus {found.gpus} --global-batch {found.global_batch} "
        f"--goal cluster_throughput --background {profile_name} -o plan.json"
    )
    return Finding("collocation", verdict_on(gain), gain, evidence, command)


def as_fast_as_ddp(found: Frontier) -> list[FrontierPoint]:
    """Returns the efficient plans that take no longer than DDP."""
    limit = found.data_parallel_iteration_time * (1 + TOLERANCE)
    return [point for point in found.points if point.iteration_time <= limit]


def crossing_jobs(profile: Profile, costs: CostTable) -> Finding:
    """Judges two jobs of the model that cross over: one computes while the gradients of the other travel.

    The gain is over the same two jobs one after the other, each by DDP.
    """
    cluster, batch = costs.network.cluster, costs.global_batch
    ddp = data_parallel_plan(profile, cluster, batch, network_model=costs.network.model)
    compute = float(costs.compute[:, -1].sum() + costs.update.sum())
    transfer = costs.network.all_reduce_time(cluster.gpus, profile.graph.parameter_bytes)
    job = JobCosts(profile.graph.model, compute, transfer)
    gain = 2 * ddp.iteration_time / crossover_round_time((job, job))
    evidence = (
        f"two such jobs compute {format_seconds(compute)} and transfer {format_seconds(transfer)} a step each: "
        f"together {gain:.2f} times as fast as one after the other by DDP"
    )
    needed = 2 * max((use.total for use in ddp.memory), default=0.0)
    verdict = verdict_on(gain)
    if cluster.memory is not None and needed > cluster.memory:
        verdict = "no"
        evidence += f", but they need {format_bytes(int(needed))} of {format_bytes(int(cluster.memory))} of memory"
    step = "dp.CrossoverScheduler([job, other]), two training jobs on the same ranks"
    return Finding("crossing jobs", verdict, gain, evidence, step)


def partial_collectives() -> Finding:
    """Says how to measure the load imbalance, without which nobody knows what partial all-reduces gain."""
    return Finding(
        "partial all-reduces",
        "unknown",
        None,
        "they help where ranks differ from one iteration to the next, which no profile shows",
        "deeppool train plan.json package.module:job --steps 100 (its record says how long each rank waits)",
    )
