"""What each technique gains, predicted from the same layer times and network as a plan.

The baseline is what a user would run instead: DDP on the number of GPUs on which it is fastest.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from deeppool.advice.record import Finding
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, TUNED_DDP
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.communication import Network
from deeppool.costs.table import CostTable
from deeppool.interleaving.crossover.round_time import JobCosts, crossover_round_time
from deeppool.interleaving.wavelet.predict import tick_tock_costs
from deeppool.interleaving.wavelet.tick_tock_time import tick_tock_time
from deeppool.planning.evaluate.baselines import (
    WORTH,
    DataParallelComparison,
    DataParallelTime,
    data_parallel_times,
    verdict_on,
)
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.goal import GoalBackground, background_job
from deeppool.planning.plan import Plan
from deeppool.planning.request import cost_table
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.search.goal_query import idle_beside
from deeppool.planning.search.optimality import optimality_factor
from deeppool.profiling.table import Profile
from deeppool.simulation.transfers.compare import compare_transfers
from deeppool.units import format_bytes, format_count, format_rate, format_seconds

MOST_SIMULATED = 64
"""GPUs whose transfers an advice simulates, in seconds; twice as many take four times as long."""


def judge(technique: str, gain: float, error: float | None, evidence: str, next_step: str) -> Finding:
    """Returns the finding on a predicted gain, which the evidence states.

    Args:
        technique: see :class:`Finding`, as the other texts.
        gain: speed or throughput in times that of the baseline.
        error: relative median error of the layer times; None: they were measured, or it is unknown.
        evidence: facts behind the gain.
        next_step: command or call that makes use of the technique.
    """
    verdict = verdict_on(gain, error)
    doubt = f"; within the median error of estimates, {100 * (error or 0.0):.0f} %" if verdict == "unknown" else ""
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
    found: Frontier,
    profile: Profile,
    costs: CostTable,
    compared: DataParallelComparison,
    profile_name: str,
    command: str,
) -> Finding:
    """Judges a second job of the same model in the idle time of the plans that are as fast as DDP.

    The gain is the least of two. In samples per second of both jobs over DDP where it is fastest, with the second job
    on the GPUs that it leaves free. And over DDP on fewer GPUs with the second job on the others, in what each job
    trains relative to itself with all GPUs, as a run is judged: samples of the second job, of large batches, cost less.
    The second job trains as :mod:`deeppool.planning.goal` says.
    """
    baseline = compared.fastest
    memory, capacity = memory_model(profile, found.global_batch), found.cluster.memory
    limit, kept = baseline.seconds * (1 + TOLERANCE), found.gpus - baseline.gpus
    fast = [point for point in found.fitting if point.iteration_time <= limit]

    def shared(jobs: Sequence[GoalBackground]) -> tuple[float, float, float, float]:
        """Returns the gain, idle GPUs, and samples per second of both jobs with the plan that trains the most."""
        alone = min((job.sample_time for job in jobs), default=math.inf)
        ways = [(found.global_batch / baseline.seconds, kept / alone, float(kept))]
        for point in fast:
            seconds = point.iteration_time
            trained = max((idle_beside(point, costs, job, memory) / job.sample_time for job in jobs), default=0.0)
            ways.append((found.global_batch / seconds, trained / seconds, found.gpus - point.gpu_seconds / seconds))
        first, other, idle = max(ways, key=lambda way: way[0] + way[1])
        return (first + other) / (ways[0][0] + ways[0][1]), idle, first, other

    jobs = [background_job(profile, profile, batch) for batch in profile.batch_sizes]
    fitting = [job for job in jobs if job.fits(capacity)]
    gain, idle, first, other = shared(fitting)
    # What each job trains relative to itself with all GPUs, over that on GPUs of their own.
    worth = first * baseline.seconds / found.global_batch
    worth += other * min((job.sample_time for job in fitting), default=0.0) / found.gpus
    apart = {one.gpus: baseline.seconds / one.seconds + 1 - one.gpus / found.gpus for one in compared.fitting}
    gpus = max(apart, key=apart.__getitem__)
    beside = worth / apart[gpus]
    _, wanted, *_ = most = shared([replace(job, memory=None) for job in jobs])
    evidence = f"plans as fast as DDP leave {max(idle, wanted) / found.gpus:.0%} of the GPU time idle"
    if gain < WORTH <= most[0] and capacity is not None:
        evidence += f", but no room in the {format_bytes(capacity)} of a GPU for a second job"
    elif gain < WORTH and kept:
        evidence += f", and DDP on {baseline.gpus} leaves {1 - baseline.gpus / found.gpus:.0%}"
    if gain >= WORTH:
        evidence += (
            f": if nothing interferes, a second job there trains {format_rate(other, 4)} samples/s beside "
            f"{format_rate(first, 4)}, {gain:.2f} times as many as with DDP"
        )
        if gpus != baseline.gpus:
            evidence += (
                f", and {beside:.2f} times as much, each relative to all GPUs, as DDP on {gpus} with the second job on "
                "the others"
            )
    step = f"{command} --goal cluster_throughput --background {profile_name} -o shared-plan.json"
    return judge("collocation", min(gain, beside), profile.error, evidence, step)


def ordered_transfers(profile: Profile, costs: CostTable, compared: DataParallelComparison) -> Finding:
    """Judges gradients that are sent in the order of need, in batches and patterns that suit model and network.

    The gain is over DDP with its best bucket size, which takes only a parameter of DDP to have. Each of the two is on
    as many GPUs as it is fastest on, of those on which DDP is fastest and the next fewer and more on which it fits.
    """
    cluster, methods = costs.network.cluster, (CARAMEL, DDP, TUNED_DDP, DEAR)
    baseline, fitting = compared.fastest, [one for one in compared.fitting if one.micro_steps == 1 or one.gpus == 1]
    if baseline not in fitting:
        evidence = f"DDP sends once in {baseline.micro_steps} micro-steps where it is fastest, which no simulation has"
        return Finding("ordered transfers", "unknown", None, evidence, "")
    if baseline.gpus > MOST_SIMULATED:
        evidence = f"to simulate transfers of {baseline.gpus} GPUs, on which DDP is fastest, takes minutes"
        step = f"dp.compare_transfers(profile, cluster, {costs.global_batch}), which does it"
        return Finding("ordered transfers", "unknown", None, evidence, step)
    near = fitting.index(baseline)
    fastest: dict[str, DataParallelTime] = {}
    # The more a method has to beat, the fewer GPU counts take a simulation.
    for one in sorted(fitting[max(0, near - 1) : near + 2], key=lambda one: one != baseline):
        if one.gpus > MOST_SIMULATED:
            continue
        if fastest and _least_seconds(costs, one.gpus) >= fastest[TUNED_DDP].seconds:
            continue
        times = dict.fromkeys(methods, one.seconds)
        if one.gpus > 1 and profile.graph.parameter_bytes:
            found = compare_transfers(profile, replace(cluster, gpus=one.gpus), costs.global_batch)
            # In seconds of the plans that DDP is compared with, in which cores may compute all-reduces.
            scale = one.seconds / found.plan(TUNED_DDP).iteration_time
            times = {method: found.plan(method).iteration_time * scale for method in methods}
        for method, seconds in times.items():
            if method not in fastest or seconds < fastest[method].seconds:
                fastest[method] = DataParallelTime(one.gpus, seconds)
    step = "dp.train(plan, job, gradient_sync=dp.TransferScheduler())" + _on_fewer(fastest[CARAMEL].gpus, cluster.gpus)
    if cluster.measured is None:
        step += ", by a plan for the network that deeppool network -o FILE measured, by which it chooses patterns"
    if fastest[CARAMEL].gpus == 1 or not profile.graph.parameter_bytes:
        return Finding("ordered transfers", "no", 1.0, "DDP has nothing to send where it is fastest", step)
    where = {method: _on_fewer(one.gpus, cluster.gpus) for method, one in fastest.items()}
    same = len(set(where.values())) == 1
    told = {method: format_seconds(one.seconds) + where[method] * (not same) for method, one in fastest.items()}
    evidence = (
        f"an iteration{where[CARAMEL] * same} takes {told[CARAMEL]} with them, {told[DDP]} by DDP ({told[TUNED_DDP]} "
        f"with its best bucket size), {told[DEAR]} by DeAR"
    )
    gain = fastest[TUNED_DDP].seconds / fastest[CARAMEL].seconds
    return judge("ordered transfers", gain, profile.error, evidence, step)


def _least_seconds(costs: CostTable, gpus: int) -> float:
    """Returns seconds that no order of transfers beats: of computing, and of all gradients in one transfer."""
    network = costs.network
    sent = (
        each.all_reduce_time(gpus, costs.graph.parameter_bytes) for each in (network, Network(network.cluster, "best"))
    )
    return max(_compute_seconds(costs, gpus), min(sent))


def _compute_seconds(costs: CostTable, gpus: int) -> float:
    """Returns the seconds of both passes and the update."""
    return float(costs.compute[:, costs.gpu_counts.index(gpus)].sum() + costs.update.sum())


def _on_fewer(gpus: int, of: int) -> str:
    """Returns ``on 2 GPUs``, after a space; empty if these are all."""
    return "" if gpus == of else f" on {format_count(gpus, 'GPU')}"


def crossover(profile: Profile, costs: CostTable, compared: DataParallelComparison) -> Finding:
    """Judges two jobs of the model that cross over: one computes while the gradients of the other travel.

    The gain is over the same two jobs by DDP with its best bucket size: one after the other, or on GPUs of their own if
    that is faster.
    """
    cluster, memory = costs.network.cluster, memory_model(profile, costs.global_batch)
    capacity = math.inf if cluster.memory is None else cluster.memory
    jobs, needed = {}, {}
    for gpus in costs.gpu_counts:
        compute = _compute_seconds(costs, gpus)
        transfer = costs.network.all_reduce_time(gpus, profile.graph.parameter_bytes)
        jobs[gpus] = JobCosts(profile.graph.model, compute, transfer)
        needed[gpus] = 2 * (memory.replica(gpus) or 0)
    # The fastest round of those that fit; on all GPUs the jobs need the least memory.
    rounds = {gpus: crossover_round_time((job, job)) for gpus, job in jobs.items()}
    fitting = [gpus for gpus in rounds if needed[gpus] <= capacity]
    gpus = min(fitting, key=rounds.__getitem__, default=cluster.gpus)
    in_turn = 2 * compared.fastest.seconds
    apart = min((one.seconds for one in compared.fitting if 2 * one.gpus <= cluster.gpus), default=in_turn)
    gain = min(in_turn, apart) / rounds[gpus]
    evidence = (
        f"two such jobs compute {format_seconds(jobs[gpus].compute)} and transfer "
        f"{format_seconds(jobs[gpus].communication)} a step each{_on_fewer(gpus, cluster.gpus)}: together {gain:.2f} "
        f"times as fast as {'one after the other' if in_turn <= apart else 'by DDP on half of the GPUs each'}"
    )
    step = "dp.CrossoverScheduler([job, other]), two training jobs on the same ranks"
    if gain >= WORTH and needed[gpus] > capacity:
        evidence += f", but they need {format_bytes(needed[gpus])} of {format_bytes(int(capacity))}"
        return Finding("crossover", "no", gain, evidence, step)
    return judge("crossover", gain, profile.error, evidence, step)


def two_waves(profile: Profile, costs: CostTable, compared: DataParallelComparison) -> Finding:
    """Judges two replicas on each GPU, of which one's forward runs in the other's backward and in its memory.

    They are worth it where a GPU computes twice the samples in less than twice the time, but has no memory for them:
    else DDP of twice the batch, which makes as many updates of each replica, trains as much, and the gain is over the
    faster one of the two. Each way is on as many GPUs as it is fastest on of those on which it fits, and DDP has its
    best bucket size.
    """
    network, batch = costs.network, costs.global_batch
    cluster, memory = network.cluster, memory_model(profile, batch)
    capacity = math.inf if cluster.memory is None else cluster.memory
    state = memory.state(profile.graph.parameter_bytes)
    needed = {gpus: (memory.replica(gpus) or 0) + state for gpus in costs.gpu_counts}
    parts = {
        gpus: tick_tock_costs(profile, replace(network, cluster=replace(cluster, gpus=gpus)), -(-batch // gpus))
        for gpus in costs.gpu_counts
    }
    times = {gpus: tick_tock_time(each) for gpus, each in parts.items()}
    fitting = [gpus for gpus in times if needed[gpus] <= capacity]
    # On all GPUs they need the least memory.
    gpus = min(fitting, key=times.__getitem__, default=cluster.gpus)
    gain = compared.fastest.seconds / times[gpus]
    evidence = (
        f"a pass of one wave runs at {parts[gpus].beside:.0%} of its speed beside one of the other, and sums take "
        f"{format_seconds(parts[gpus].exchange)}{_on_fewer(gpus, cluster.gpus)}: two waves are {gain:.2f} times as fast"
    )
    step = (
        f"dp.train(plan, job, gradient_sync=dp.WaveletDataParallel()){_on_fewer(gpus, cluster.gpus)}, by a plan of "
        "deeppool.planning.evaluate.data_parallel.data_parallel_plan, as waves need every layer on all GPUs"
    )
    if gain < WORTH:
        return Finding("two waves", "no", gain, evidence, step)
    if cluster.memory is None or not memory.known:
        return Finding("two waves", "unknown", gain, f"{evidence}, if memory has no room for twice the batch", step)
    has = format_bytes(capacity)
    if not fitting:
        return Finding(
            "two waves", "no", gain, f"{evidence}, but they need {format_bytes(needed[gpus])} of {has}", step
        )
    twice = cost_table(profile, cluster, 2 * batch, model=network.model)
    doubled = data_parallel_times(profile, twice, memory_model(profile, 2 * batch))
    larger = DataParallelComparison(2 * times[gpus], doubled, capacity=capacity)
    if larger.fitting and larger.gain < WORTH:
        evidence += (
            f", but one of twice the batch{larger.where}, which {has} hold, is {1 / larger.gain:.2f} times as fast"
        )
        return Finding("two waves", "no", larger.gain, f"{evidence} as they are", step)
    if larger.fitting:
        evidence += f", and {larger.gain:.2f} times as fast as one of twice the batch{larger.where}"
        gain = min(gain, larger.gain)
    else:
        evidence += f", and {has} hold no batch of twice the size"
    return judge("two waves", gain, profile.error, evidence, step)


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
