"""Measures techniques, today's baselines and their controls on one workload: the same job on the same ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import real_number, whole_number
from deeppool.base.run_registry import registered
from deeppool.collectives.partial.load_imbalance import random_ranks
from deeppool.collectives.transfer_methods import CARAMEL, DDP, FEWER, TUNED_DDP
from deeppool.device.environment import made_now
from deeppool.device.kinds import DeviceName
from deeppool.errors import InvalidValueError
from deeppool.execution.comparison.turns import Turns, check_ways, joined_ranks
from deeppool.execution.data_parallel.compared_methods import (
    bucket_sizes,
    check_ddp,
    data_parallel_settings,
    fewer_counts,
)
from deeppool.execution.data_parallel.measure import BUCKETS, SIZES, WARM_UP
from deeppool.execution.load_imbalance import save_delays
from deeppool.execution.ranks import PLAN
from deeppool.interleaving.wavelet.wave import WAVES
from deeppool.job import Progress
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher
from deeppool.records.measured_ways import MeasuredWay, MeasuredWays
from deeppool.runs.technique_comparison import names
from deeppool.runs.technique_comparison.timeline import timeline_of
from deeppool.training.training_job import TrainingJob, save_job

WORKER = "deeppool.runs.technique_comparison.rank"


@interruptible
@typed
@registered
def compare_techniques(
    job: TrainingJob,
    *,
    global_batch: int,
    ranks: int = 2,
    device: DeviceName = "cpu",
    ways: Sequence[str] = names.FIVE_TECHNIQUES,
    plan: Plan | None = None,
    late: float = 0.0,
    repetitions: int = 5,
    rounds: int = 5,
    buckets: Sequence[float] = BUCKETS,
    network_seconds: float = 10.0,
    launcher: Launcher | None = None,
    on_progress: Progress | None = None,
    on_record: Callable[[MeasuredWays], object] | None = None,
) -> MeasuredWays:
    """Measures ways to train a job on the same ranks, by turns; the given job is not trained.

    Args:
        job: a job without accumulation and clipping.
        global_batch: samples of an update over all ranks.
        ranks: processes that train.
        device: ``cpu`` or ``cuda``.
        ways: some of :data:`deeppool.runs.technique_comparison.names.WAYS`. Those that perform no technique are
            controls; of no technique it is said that it is faster without DDP with its best bucket, DDP on as many
            fewer ranks as it is fastest on, and for crossover and two waves what changes the training as they do.
        plan: plan that ``burst parallelism`` runs, on as many GPUs as there are ranks.
        late: seconds by which one rank, drawn anew for each step, is late in every way.
        repetitions: times that all ways are measured.
        rounds: rounds of each way in a repetition, after one that does not count.
        buckets: bytes of buckets to try for DDP, beside torch's own.
        network_seconds: time limit of the measurement of the network, which Caramel plans for.
        launcher: starts the processes. Default: on this machine.
        on_progress: see :data:`deeppool.job.Progress`.
        on_record: called after each repetition with the record so far.

    Raises:
        InvalidValueError: an argument out of range, an emulated device, or a job that a way cannot train.
        RankFailedError: a rank failed.
    """
    ranks, global_batch = whole_number("ranks", ranks, 2), whole_number("global_batch", global_batch)
    repetitions, rounds = whole_number("repetitions", repetitions), whole_number("rounds", rounds)
    late, tried = real_number("late", late), bucket_sizes(buckets)
    _check(job, ways, plan, device, global_batch, ranks, late)

    def save(folder: Path) -> None:
        save_job(job, folder)
        if plan is not None:
            serialization.write(plan, folder / PLAN)
        if late:
            save_delays(random_ranks(ranks, late), folder)

    with joined_ranks(
        WORKER, ranks, save=save, device=device, launcher=launcher, report=on_progress, batch=global_batch
    ) as turns:
        found = _Measured(turns, job, global_batch, ranks, plan, late, tuple(ways))
        found.prepare(tried, network_seconds)
        for _ in turns.repeat(ways, rounds, repetitions, begin=0.4):
            if on_record is not None:
                on_record(found.record())
        return found.record()


def _check(
    job: TrainingJob,
    ways: Sequence[str],
    plan: Plan | None,
    device: str,
    batch: int,
    ranks: int,
    late: float,
) -> None:
    check_ddp("all techniques are compared with training", device, "use device cpu or cuda")
    if late < 0:
        raise InvalidValueError(f"late must not be negative, got {late:g}")
    if batch < ranks or batch % ranks:
        raise InvalidValueError(f"every rank trains as many samples: give a multiple of {ranks}, got {batch}")
    check_ways("ways", ways, names.WAYS, job)
    if names.BURST in ways and (plan is None or plan.gpus != ranks or plan.global_batch != batch):
        got = "none" if plan is None else f"one for {plan.gpus} and {plan.global_batch}"
        raise InvalidValueError(
            f"burst parallelism needs a plan for {ranks} GPUs and a global batch of {batch}, got {got}"
        )


def micro_batches(ranks: int, batch: int) -> list[int]:
    """Returns the numbers of micro-batches to try in a pipeline: one for each rank, twice as many, and so on.

    Those after the first have two samples or more, of which BatchNorm can take a variance.
    """
    found = [ranks * 2**power for power in range(batch.bit_length())]
    return [parts for parts in found if parts == ranks or (batch % parts == 0 and batch >= 2 * parts)]


@dataclass
class _Measured:
    """Commands to the ranks, and what they have measured so far."""

    turns: Turns
    job: TrainingJob
    global_batch: int
    ranks: int
    plan: Plan | None
    late: float
    ways: tuple[str, ...]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def prepare(self, buckets: Sequence[float], network_seconds: float) -> None:
        """Makes all ways: DDP with its best bucket, and Caramel for the network that is measured first."""
        cluster: Any = None
        if CARAMEL in self.ways:
            self.turns.report("measuring the network", 0.05)
            cluster = self.turns.ask("network", sizes=SIZES, seconds=network_seconds)[0]["cluster"]
        for place, name in enumerate(self.ways):
            self.turns.report(f"preparing {name}", 0.1 + 0.3 * place / len(self.ways))
            made = {"cluster": cluster, "warm_up": WARM_UP if name == CARAMEL else 1}
            counts = fewer_counts(self.ranks) if name in (FEWER, names.APART) else [self.ranks]
            tuned = name in (TUNED_DDP, FEWER, names.APART, names.DOUBLED_DDP)
            settings: Sequence[dict[str, Any]] = data_parallel_settings(counts, buckets if tuned else buckets[:1])
            if name in names.PIPELINES:
                settings = [{"micro_batches": parts} for parts in micro_batches(self.ranks, self.global_batch)]
            self.settings[name] = self.turns.fastest(name, [made | each for each in settings])
            self.turns.prepare(name, **self.settings[name])

    def record(self) -> MeasuredWays:
        """Returns what was measured so far."""
        return MeasuredWays(
            model=self.job.model_name,
            global_batch=self.global_batch,
            ranks=self.ranks,
            device_name=self.turns.device_name,
            ways=tuple(self._way(name) for name in self.ways),
            repetitions=len(self.turns.rounds[self.ways[-1]]),
            late=self.late,
            **made_now(),
        )

    def _way(self, name: str) -> MeasuredWay:
        samples = self.global_batch
        if name in (names.DOUBLED_DDP, names.APART, names.CROSSOVER):
            samples *= 2
        if name == names.ONE_PARTITION:
            samples //= self.ranks
        answers = self.turns.rounds[name][-1].answers
        lanes = WAVES if name == names.TWO_WAVES else ()
        return MeasuredWay(
            name,
            self._seconds(name),
            samples,
            timeline_of(name, answers, lanes),
            names.NOTES.get(name, "").format(ranks=self.ranks, **self.settings[name]),
            technique := names.TECHNIQUES.get(name, ""),
            names.TECHNIQUES.get(names.CONTROLS_OF.get(name, ""), ""),
            (TUNED_DDP, FEWER, *(each for each, way in names.CONTROLS_OF.items() if way == name)) if technique else (),
            self._predicted(name),
            self.ranks - self.settings[name]["count"] if name == FEWER else 0,
        )

    def _seconds(self, name: str) -> tuple[float, ...]:
        """Returns the seconds of each round, in which all ranks train as many samples as there are in a global batch.

        In partial all-reduces these are more than an update, as late ranks skip the batches of some.
        """
        seconds = self.turns.seconds(name)
        if name not in (names.MAJORITY, names.SOLO):
            return seconds
        shares = (fmean(answer["gradients"] for answer in each.answers) for each in self.turns.rounds[name])
        return tuple(one / share for one, share in zip(seconds, shares, strict=True))

    def _predicted(self, name: str) -> float | None:
        """Returns the iteration time that the plan, or the comparison with it, predicts."""
        if self.plan is None or self.late or name not in (names.BURST, DDP, TUNED_DDP, FEWER):
            return None
        times = {each.gpus: each.seconds for each in self.plan.comparison.data_parallel}
        return self.plan.iteration_time if name == names.BURST else times.get(self.settings[name]["count"])
