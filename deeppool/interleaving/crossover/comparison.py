"""Measures the crossover and other orders of the same jobs on the same ranks, by turns."""

import dataclasses
import datetime
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from deeppool.device.environment import package_versions
from deeppool.device.kinds import check_common_clock
from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover import measurements
from deeppool.interleaving.crossover.comparison_record import (
    CROSSOVER,
    DATA_PARALLEL,
    ORDERS,
    SEQUENTIAL,
    SHIFTED,
    CrossoverComparison,
    OrderTimes,
)
from deeppool.interleaving.crossover.named_jobs import LIBRARY, named_jobs
from deeppool.interleaving.crossover.ranks import CrossoverRanks
from deeppool.interleaving.crossover.round_time import (
    JobCosts,
    crossover_round_time,
    data_parallel_round_time,
    sequential_round_time,
)
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import private_folder
from deeppool.training.training_job import TrainingJob

COMPARED_WORKER = "deeppool.interleaving.crossover.compared_rank"
TIMEOUT = 600.0


def compare_orders(
    jobs: Sequence[TrainingJob],
    *,
    global_batch: int | Sequence[int],
    ranks: int = 2,
    device: str = "cpu",
    all_reduce: str = LIBRARY,
    orders: Sequence[str] = ORDERS,
    repetitions: int = 3,
    rounds: int = 5,
    bucket_megabytes: float = 25.0,
    launcher: Launcher | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> CrossoverComparison:
    """Measures orders of jobs on ranks of their own, by turns; the given jobs are not trained.

    Args:
        jobs: jobs without gradient accumulation.
        global_batch: samples of an update over all ranks: of every job, or of each.
        ranks: processes that every job trains on.
        device: ``cpu``, ``cuda`` or ``emulated``; ``shifted`` runs on CPUs only.
        all_reduce: what sums gradients, as for :class:`deeppool.CrossoverScheduler`; data parallelism uses the library.
        orders: some of ``crossover``, ``one after the other``, ``data parallel`` and ``shifted``; the first two belong
            to every comparison.
        repetitions: times that all orders are measured, after one to warm up.
        rounds: steps of each job in each order and repetition.
        bucket_megabytes: size of the buckets of data parallelism. Default: that of torch.
        launcher: starts the processes. Default: on this machine.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: an argument out of range.
        RankFailedError: a rank failed.
    """
    named = named_jobs(jobs, global_batch, ranks, all_reduce)
    _check(jobs, orders, repetitions, rounds, device)
    report = on_progress or (lambda what, share: None)
    kept: list[list[Message]] = []
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
        device_name, _ = running.wait_until_ready()
        running.group.send(
            "prepare",
            jobs={name: batch for name, (_, batch) in named.items()},
            orders=list(orders),
            bucket_megabytes=bucket_megabytes,
        )
        running.group.collect("done", TIMEOUT, "while it made the jobs")
        shifts = [0.0] * len(jobs)
        for number in range(repetitions + 1):
            report("comparing orders", number / (repetitions + 1))
            count = rounds if number else 2
            running.group.send("compare", orders=list(orders), rounds=count, shifts=shifts)
            kept.append(running.group.collect("done", TIMEOUT, "while it trained"))
            shifts = _shifts(kept[-1], list(named))
    return _record(kept[1:], list(named), orders, ranks, device_name, all_reduce)


def _check(jobs: Sequence[TrainingJob], orders: Sequence[str], repetitions: int, rounds: int, device: str) -> None:
    check_common_clock(device)
    for name, value, least in (("repetitions", repetitions, 1), ("rounds", rounds, 2)):
        if value < least:
            raise InvalidValueError(f"{name} must be at least {least}, got {value}")
    if unknown := [order for order in orders if order not in ORDERS]:
        raise InvalidValueError(f"orders are some of {', '.join(ORDERS)}, got '{unknown[0]}'")
    if not {CROSSOVER, SEQUENTIAL} <= set(orders):
        raise InvalidValueError(f"'{CROSSOVER}' and '{SEQUENTIAL}' give the costs of jobs: name both")
    if SHIFTED in orders and device != "cpu":
        raise InvalidValueError(f"'{SHIFTED}' runs on CPUs only, got device '{device}' (leave it out)")
    if any(job.accumulation > 1 for job in jobs):
        raise InvalidValueError("jobs that accumulate gradients cannot be compared (set accumulation to 1)")


def _shifts(answers: Sequence[Message], names: Sequence[str]) -> list[float]:
    """Returns when each job starts so that its computing begins where those of the jobs before it end."""
    computing = measurements.alone_compute_times([{"turns": answer["alone"]} for answer in answers])
    medians = [statistics.median(computing[name]) for name in names]
    return [sum(medians[:position]) for position in range(len(names))]


def _record(
    repetitions: Sequence[Sequence[Message]],
    names: Sequence[str],
    orders: Sequence[str],
    ranks: int,
    device_name: str,
    all_reduce: str,
) -> CrossoverComparison:
    costs, alone = _costs(repetitions, names)
    predicted = {
        CROSSOVER: crossover_round_time(costs),
        SEQUENTIAL: sequential_round_time(alone),
        DATA_PARALLEL: data_parallel_round_time(alone),
    }
    found = [
        OrderTimes(
            order,
            tuple(
                max(times)
                for answers in repetitions
                for times in zip(*(answer["seconds"][order] for answer in answers), strict=True)
            ),
            predicted.get(order),
        )
        for order in orders
    ]
    return CrossoverComparison(
        jobs=tuple(costs),
        orders=tuple(found),
        ranks=ranks,
        device_name=device_name,
        all_reduce=all_reduce,
        repetitions=len(repetitions),
        spans=measurements.spans(repetitions[-1]),
        date=datetime.datetime.now().isoformat(timespec="seconds"),
        versions=package_versions("deeppool", "torch"),
    )


def _costs(repetitions: Sequence[Sequence[Message]], names: Sequence[str]) -> tuple[list[JobCosts], list[JobCosts]]:
    """Returns each job's costs with its computing beside transfers, and with its computing alone."""
    beside: dict[str, list[float]] = defaultdict(list)
    apart: dict[str, list[float]] = defaultdict(list)
    transfers: dict[str, list[float]] = defaultdict(list)
    for answers in repetitions:
        alone = [{"turns": answer["alone"]} for answer in answers]
        for found, more in (
            (beside, measurements.compute_times(answers)),
            (apart, measurements.alone_compute_times(alone)),
            (transfers, measurements.transfer_times(alone)),
        ):
            for name, times in more.items():
                found[name] += times
    costs = [
        JobCosts(
            name,
            statistics.median(beside[name]),
            statistics.median(transfers[name]),
            source="computing measured beside transfers, communication alone",
        )
        for name in names
    ]
    alone_costs = [
        dataclasses.replace(job, compute=statistics.median(apart[job.name]), source="measured alone") for job in costs
    ]
    return costs, alone_costs
