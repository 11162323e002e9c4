"""What each technique gains, predicted from the same layer times and network as a plan.

The baseline is what a user would run instead: DDP on the number of GPUs on which it is fastest.
"""

import math
from dataclasses import replace

from deeppool.advice.record import Finding
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, TUNED_DDP
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable
from deeppool.interleaving.crossover.round_time import JobCosts, crossover_round_time
from deeppool.interleaving.wavelet.predict import tick_tock_costs
from deeppool.interleaving.wavelet.tick_tock_time import tick_tock_time
from deeppool.planning.evaluate.baselines import WORTH, DataParallelComparison, DataParallelTime, verdict_on
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.search.optimality import optimality_factor
from deeppool.profiling.table import Profile
from deeppool.simulation.transfers.compare import compare_transfers
from deeppool.units import format_bytes, format_count, format_rate, format_seconds


def judge(technique: str, gain: float, error: float | None, evidence: str, next_step: str) -> Finding:
    """Returns the finding on a predicted gain, which the evidence states.

    Args:
        technique: see :class:`Finding`, as the other texts.
        gain: speed or throughput in times that of the baseline.
        error: relative error of the layer times; None: they were measured, or it is unknown.
        evidence: facts behind the gain.
        next_step: command or call that makes use of the technique.
    """
    verdict = verdict_on(gain, error)
    doubt = f"; within the ± {100 * (error or 0.0):.0f} % of the estimate" if verdict == "unknown" else ""
    return Finding(technique, verdict, gain, evidence + doubt, next_step)


def burst_parallelism(fastest: Plan, plan_command: str) -> Finding:
    """Judges the fastest plan, which the command makes."""
    step = f"{plan_command} -o burst-plan.json"
    if fastest.data_parallel_kept:
        # No plan is faster than DDP by more than the claim.
        verdict = verdict_on(optimality_factor(fastest.optimality), math.inf)
        return Finding("burst parallelism", verdict, None, fastest.caveats[-1], f"another profile, then {step}")
    gain, compared = fastest.comparison.gain, fastest.comparison
    if not compared.fitting:
        evidence = f"the fastest plan fits and takes {format_seconds(fastest.iteration_time)}, DDP does not fit"
        return Finding("burst parallelism", compared.verdict, None, evidence, step)
    evidence = "no plan is faster than DDP"
    if gain > 1 + TOLERANCE:
        evidence = f"the fastest plan takes {format_seconds(fastest.iteration_time)}, {gain:.2f} times as fast as DDP"
    return judge("burst parallelism", gain, fastest.error, evidence, step)


def replicas_too_large() -> tuple[Finding, ...]:
    """Returns the findings on techniques in which GPUs train the whole model each, where none holds it."""
    evidence = "a GPU trains the whole model, which does not fit into its memory"
    techniques = ("collocation", "ordered transfers", "crossover", "two waves")
    return tuple(Finding(technique, "no", None, evidence, "") for technique in techniques)


def collocation(
    found: Frontier, profile: Profile, baseline: DataParallelTime, profile_name: str, plan_command: str
) -> Finding:
    """Judges a second job of the same model in the idle time of the plans that are as fast as DDP.

    The gain is in the samples per second of both jobs, over DDP with the second job on the GPUs that it leaves free,
    which is one of these plans.
    """
    batch = profile.batch_sizes[-1]
    second = batch / profile.step_time(batch)
    limit = baseline.seconds * (1 + TOLERANCE)
    kept = (found.global_batch / baseline.seconds, float(found.gpus - baseline.gpus))
    fast = [point for point in found.points if point.iteration_time <= limit]
    plans = [
        (found.global_batch / x.iteration_time, max(0.0, found.gpus - x.gpu_seconds / x.iteration_time)) for x in fast
    ]
    first, idle = max((kept, *plans), key=lambda plan: plan[0] + plan[1] * second)
    gain = (first + idle * second) / (kept[0] + kept[1] * second)
    evidence = f"plans as fast as DDP leave {idle / found.gpus:.0%} of the GPU time idle"
    if gain < WORTH and baseline.gpus < found.gpus:
        evidence += f", and DDP on {baseline.gpus} leaves {1 - baseline.gpus / found.gpus:.0%}"
    if gain >= WORTH:
        evidence += (
            f": a second job there trains {format_rate(idle * second, 4)} samples/s beside {format_rate(first, 4)}, "
            f"{gain:.2f} times as many as with DDP, if nothing interferes"
        )
    command = f"{plan_command} --goal cluster_throughput --background {profile_name} -o shared-plan.json"
    return judge("collocation", gain, profile.error, evidence, command)


def ordered_transfers(profile: Profile, costs: CostTable, baseline: DataParallelTime) -> Finding:
    """Judges gradients that are sent in the order of need, in batches and patterns that suit model and network.

    The gain is over DDP with its best bucket size, which takes only a parameter of DDP to have.
    """
    step = "dp.train(plan, job, gradient_sync=dp.TransferScheduler())"
    if baseline.gpus == 1 or not profile.graph.parameter_bytes:
        return Finding("ordered transfers", "no", 1.0, "DDP has nothing to send where it is fastest", step)
    cluster = replace(costs.network.cluster, gpus=baseline.gpus)
    found = compare_transfers(profile, cluster, costs.global_batch)
    gain = found.speedup(TUNED_DDP)
    seconds = {method: format_seconds(found.plan(method).iteration_time) for method in (CARAMEL, DDP, TUNED_DDP, DEAR)}
    evidence = (
        f"forward and backward take {seconds[CARAMEL]} with them, {seconds[DDP]} by DDP ({seconds[TUNED_DDP]} with its "
        f"best bucket size), {seconds[DEAR]} by DeAR"
    )
    return judge("ordered transfers", gain, profile.error, evidence, step)


def crossover(profile: Profile, costs: CostTable, compared: DataParallelComparison) -> Finding:
    """Judges two jobs of the model that cross over: one computes while the gradients of the other travel.

    The gain is over the same two jobs by DDP: one after the other, or on GPUs of their own if that is faster.
    """
    cluster, memory = costs.network.cluster, memory_model(profile, costs.global_batch)
    capacity = math.inf if cluster.memory is None else cluster.memory
    jobs, needed = {}, {}
    for option, gpus in enumerate(costs.gpu_counts):
        compute = float(costs.compute[:, option].sum() + costs.update.sum())
        transfer = costs.network.all_reduce_time(gpus, profile.graph.parameter_bytes)
        jobs[gpus] = JobCosts(profile.graph.model, compute, transfer)
        needed[gpus] = 2 * memory.peak([tuple(range(gpus))] * len(profile.graph.layers)) if memory.known else 0
    # The fastest round of those that fit; on all GPUs the jobs need the least memory.
    rounds = {gpus: crossover_round_time((job, job)) for gpus, job in jobs.items()}
    fitting = [gpus for gpus in rounds if needed[gpus] <= capacity]
    gpus = min(fitting, key=rounds.__getitem__, default=cluster.gpus)
    in_turn = 2 * compared.fastest.seconds
    apart = min((one.seconds for one in compared.fitting if 2 * one.gpus <= cluster.gpus), default=in_turn)
    gain = min(in_turn, apart) / rounds[gpus]
    where = "" if gpus == cluster.gpus else f" on {format_count(gpus, 'GPU')}"
    evidence = (
        f"two such jobs compute {format_seconds(jobs[gpus].compute)} and transfer "
        f"{format_seconds(jobs[gpus].communication)} a step each{where}: together {gain:.2f} "
        f"times as fast as {'one after the other' if in_turn <= apart else 'by DDP on half of the GPUs each'}"
    )
    step = "dp.CrossoverScheduler([job, other]), two training jobs on the same ranks"
    if gain >= WORTH and needed[gpus] > capacity:
        evidence += f", but they need {format_bytes(needed[gpus])} of {format_bytes(int(capacity))}"
        return Finding("crossover", "no", gain, evidence, step)
    return judge("crossover", gain, profile.error, evidence, step)


def two_waves(profile: Profile, costs: CostTable, baseline: DataParallelTime) -> Finding:
    """Judges two replicas on each GPU, of which one's forward runs in the other's backward and in its memory.

    They are worth it where a GPU computes twice the samples in less than twice the time, but has no memory for them:
    on all GPUs, as two replicas on half of them hold more than one of twice the batch on all.
    """
    cluster, batch = costs.network.cluster, costs.global_batch
    parts = tick_tock_costs(profile, costs.network, -(-batch // cluster.gpus))
    gain = baseline.seconds / tick_tock_time(parts)
    evidence = (
        f"a pass of one wave runs at {parts.beside:.0%} of its speed beside one of the other, and sums take "
        f"{format_seconds(parts.exchange)}: two waves are {gain:.2f} times as fast"
    )
    step = "dp.train(plan, job, gradient_sync=dp.WaveletDataParallel())"
    memory = memory_model(profile, batch)
    if gain < WORTH:
        return Finding("two waves", "no", gain, evidence, step)
    if cluster.memory is None or not memory.known:
        return Finding("two waves", "unknown", gain, f"{evidence}, if memory has no room for twice the batch", step)
    everywhere = [tuple(range(cluster.gpus))] * len(profile.graph.layers)
    has = format_bytes(int(cluster.memory))
    larger = memory_model(profile, 2 * batch).peak(everywhere)
    waves = memory.peak(everywhere) + memory.state(profile.graph.parameter_bytes)
    if larger <= cluster.memory:
        evidence += f", but one of twice the batch, which {has} hold, computes as much at once"
        return Finding("two waves", "no", gain, evidence, step)
    if waves > cluster.memory:
        return Finding("two waves", "no", gain, f"{evidence}, but they need {format_bytes(waves)} of {has}", step)
    return judge("two waves", gain, profile.error, f"{evidence}, and {has} hold no batch of twice the size", step)


def partial_collectives(
    plan_command: str | None = None, *, ranks: bool = True, plan_file: str = "plan.json"
) -> Finding:
    """Says how to measure the load imbalance, without which nobody knows what partial all-reduces gain.

    Args:
        plan_command: command that makes the plan to measure it with; None: there is one.
        ranks: whether there is more than one, by DDP or by the fastest plan.
        plan_file: file of the plan, as a command takes it.
    """
    if not ranks:
        return Finding("partial all-reduces", "no", None, "on one GPU no rank waits for another", "")
    first = "" if plan_command is None else f"{plan_command} -o {plan_file}, then "
    return Finding(
        "partial all-reduces",
        "unknown",
        None,
        "they help where ranks differ from one iteration to the next, which no profile shows",
        f"{first}deeppool train {plan_file} package.module:job --steps 100, whose record says how long each rank "
        "computes",
    )
