"""Measures the crossover and other orders of the same jobs on the same ranks, by turns."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import whole_number
from deeppool.base.run_registry import registered
from deeppool.collectives.patterns import LIBRARY
from deeppool.device.environment import made_now
from deeppool.device.kinds import DeviceName, check_common_clock, find_kind
from deeppool.errors import InvalidValueError
from deeppool.execution.comparison.turns import Turns
from deeppool.execution.data_parallel.compared_methods import (
    bucket_sizes,
    check_ddp,
    data_parallel_settings,
    fewer_counts,
)
from deeppool.execution.data_parallel.measure import BUCKETS
from deeppool.interleaving.crossover import measurements
from deeppool.interleaving.crossover.comparison_record import (
    APART,
    CROSSOVER,
    DATA_PARALLEL,
    ORDERS,
    SEQUENTIAL,
    SHIFTED,
    CrossoverComparison,
)
from deeppool.interleaving.crossover.named_jobs import named_jobs
from deeppool.interleaving.crossover.ranks import CrossoverRanks
from deeppool.interleaving.crossover.round_time import (
    JobCosts,
    apart_round_time,
    crossover_round_time,
    data_parallel_round_time,
    sequential_round_time,
)
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import private_folder, report_start
from deeppool.records.measured_ways import MeasuredWay
from deeppool.training.training_job import TrainingJob

COMPARED_WORKER = "deeppool.interleaving.crossover.compared_rank"
WARM_UP_ROUNDS = 2
"""Of each order, before the rounds that count."""


@interruptible
@typed
@registered
def compare_orders(
    jobs: Sequence[TrainingJob],
    *,
    global_batch: int | Sequence[int],
    ranks: int = 2,
    device: DeviceName = "cpu",
    all_reduce: str = LIBRARY,
    orders: Sequence[str] | None = None,
    repetitions: int = 5,
    rounds: int = 5,
    buckets: Sequence[float] = BUCKETS,
    launcher: Launcher | None = None,
    on_progress: Callable[[str, float], None] | None = None,
    on_record: Callable[[CrossoverComparison], object] | None = None,
) -> CrossoverComparison:
    """Measures orders of jobs on ranks of their own, by turns; the given jobs are not trained.

    Args:
        jobs: jobs without gradient accumulation.
        global_batch: samples of an update over all ranks: of every job, or of each.
        ranks: processes that every job trains on.
        device: ``cpu``, ``cuda`` or ``emulated``.
        all_reduce: what sums gradients, as for :class:`deeppool.CrossoverScheduler`; data parallelism uses the library.
        orders: some of ``crossover``, ``one after the other``, ``data parallel``, ``ranks of their own`` (each job
            on as few as it takes the least time on) and ``shifted``; the first two belong to every comparison, and
            without the next two it says of no crossover that it is faster. The next two are by PyTorch's DDP, which
            does not run on ``emulated``; ``shifted`` runs on CPUs only. None: all, without ``shifted`` on other
            devices.
        repetitions: times that all orders are measured, after one to warm up.
        rounds: steps of each job in each order and repetition.
        buckets: bytes of buckets to try for data parallelism, beside torch's own.
        launcher: starts the processes. Default: on this machine.
        on_progress: see :data:`deeppool.job.Progress`.
        on_record: called after each repetition with the record so far.

    Raises:
        InvalidValueError: an argument out of range.
        RankFailedError: a rank failed.
    """
    repetitions, rounds = whole_number("repetitions", repetitions), whole_number("rounds", rounds, 2)
    ranks, tried = whole_number("ranks", ranks), bucket_sizes(buckets)
    named = named_jobs(jobs, global_batch, ranks, all_reduce)
    on = {DATA_PARALLEL: [ranks], APART: fewer_counts(ranks)}
    orders = _checked(jobs, orders, device, on)
    with (
        private_folder() as folder,
        CrossoverRanks(
            named,
            ranks,
            folder,
            launcher or LocalLauncher(device, ranks),
            device=device,
            precision="fp32",
            all_reduce=all_reduce,
            program=COMPARED_WORKER,
        ) as running,
    ):
        device_name, _ = running.wait_until_ready(None if on_progress is None else report_start(on_progress))
        turns = Turns(running.group, device_name, on_progress)
        batches = {name: batch for name, (_, batch) in named.items()}
        chosen = {}
        for order in orders:
            settings = data_parallel_settings(on[order], tried) if order in on else [{}]
            chosen[order] = turns.fastest(order, [{"jobs": batches, **each} for each in settings])
            turns.prepare(order, **chosen[order])
        told: dict[str, dict[str, Any]] = {SHIFTED: {"shifts": [0.0] * len(jobs)}}
        warm = {order: turns.train(order, WARM_UP_ROUNDS, **told.get(order, {})) for order in orders}
        told[SHIFTED] = {"shifts": _shifts(warm[SEQUENTIAL].answers, list(named))}
        for _ in turns.repeat(orders, rounds, repetitions, arguments=lambda order, _: told.get(order, {})):
            told[SHIFTED] = {"shifts": _shifts(turns.rounds[SEQUENTIAL][-1].answers, list(named))}
            if on_record is not None:
                on_record(_record(turns, batches, chosen, ranks, all_reduce))
    return _record(turns, batches, chosen, ranks, all_reduce)


def _checked(
    jobs: Sequence[TrainingJob], orders: Sequence[str] | None, device: str, on: Mapping[str, Sequence[int]]
) -> list[str]:
    """Returns the orders to measure, which by default are all; ``on`` are the ranks that those by DDP try."""
    check_common_clock(device)
    on_cores = find_kind(device).on_cores
    if orders is None:
        orders = [order for order in ORDERS if order != SHIFTED or on_cores]
    if unknown := [order for order in orders if order not in ORDERS]:
        raise InvalidValueError(f"orders are some of {', '.join(ORDERS)}, got '{unknown[0]}'")
    if not {CROSSOVER, SEQUENTIAL} <= set(orders):
        raise InvalidValueError(f"'{CROSSOVER}' and '{SEQUENTIAL}' give the costs of jobs: name both")
    if SHIFTED in orders and not on_cores:
        raise InvalidValueError(f"'{SHIFTED}' runs on CPUs only, got device '{device}' (leave it out)")
    if any(job.accumulation > 1 for job in jobs):
        raise InvalidValueError("jobs that accumulate gradients cannot be compared (set accumulation to 1)")
    for order in orders:
        if max(on.get(order, []), default=1) > 1:
            check_ddp(f"'{order}' trains", device, f"leave it out: orders=['{CROSSOVER}', '{SEQUENTIAL}']")
    return [order for order in orders if order not in on or on[order]]


def _shifts(answers: Sequence[Message], names: Sequence[str]) -> list[float]:
    """Returns when each job starts so that its computing begins where those of the jobs before it end."""
    computing = measurements.alone_compute_times(answers)
    medians = [statistics.median(computing[name]) for name in names]
    return [sum(medians[:position]) for position in range(len(names))]


def _record(
    turns: Turns, jobs: Mapping[str, int], chosen: Mapping[str, dict[str, Any]], ranks: int, all_reduce: str
) -> CrossoverComparison:
    costs, alone = _costs(turns, list(jobs))
    predicted: dict[str, float | None] = {
        CROSSOVER: crossover_round_time(costs),
        SEQUENTIAL: sequential_round_time(alone),
        DATA_PARALLEL: data_parallel_round_time(alone),
    }
    if APART in chosen:
        predicted[APART] = apart_round_time(alone, ranks, chosen[APART]["count"])

    def way(order: str) -> MeasuredWay:
        crossed = order == CROSSOVER
        return MeasuredWay(
            order,
            turns.seconds(order),
            sum(jobs.values()),
            note=f"on {chosen[order]['count']} of {ranks} ranks each" if order == APART else "",
            technique="crossover" if crossed else "",
            controls=(DATA_PARALLEL, *[APART] * (ranks > 1)) if crossed else (),
            predicted=predicted.get(order),
        )

    crossed = turns.rounds[CROSSOVER]
    return CrossoverComparison(
        jobs=tuple(costs),
        ways=tuple(map(way, chosen)),
        ranks=ranks,
        device_name=turns.device_name,
        all_reduce=all_reduce,
        repetitions=len(crossed),
        spans=measurements.spans(crossed[-1].answers),
        **made_now(),
    )


def _costs(turns: Turns, names: Sequence[str]) -> tuple[list[JobCosts], list[JobCosts]]:
    """Returns each job's costs with its computing beside transfers, and with its computing alone."""

    def medians(order: str, times: Callable[[Sequence[Message]], dict[str, list[float]]]) -> dict[str, float]:
        found = [times(rounds.answers) for rounds in turns.rounds[order]]
        return {name: statistics.median(value for each in found for value in each[name]) for name in names}

    beside = medians(CROSSOVER, measurements.compute_times)
    apart = medians(SEQUENTIAL, measurements.alone_compute_times)
    transfers = medians(SEQUENTIAL, measurements.transfer_times)
    source = "computing measured beside transfers, communication alone"
    costs = [JobCosts(name, beside[name], transfers[name], source=source) for name in names]
    return costs, [dataclasses.replace(job, compute=apart[job.name], source="measured alone") for job in costs]
