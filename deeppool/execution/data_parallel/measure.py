"""Measures methods of sending gradients on the same ranks, by turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.base.run_registry import registered
from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, FEWER, SERVERS, TUNED_DDP
from deeppool.device.environment import made_now
from deeppool.device.kinds import DeviceName
from deeppool.execution.comparison.turns import Turns, check_ways, joined_ranks
from deeppool.execution.data_parallel.compared_methods import (
    COMPUTING,
    PLANNED,
    bucket_sizes,
    check_ddp,
    data_parallel_settings,
    fewer_counts,
)
from deeppool.job import Progress
from deeppool.processes.launcher import Launcher
from deeppool.records.measured_transfers import MeasuredMethod, MeasuredTransfers
from deeppool.records.transfer_plan import TransferPlan
from deeppool.training.training_job import TrainingJob, save_job

WORKER = "deeppool.execution.data_parallel.compared_replica"
METHODS = (DDP, TUNED_DDP, FEWER, DEAR, SERVERS, CARAMEL)
"""Methods that are measured by default; the others are controls of Caramel."""
BUCKETS = tuple(float(2**exponent) for exponent in (18, 20, 22, 24, 26))
"""Bytes of buckets among which the best is searched, beside torch's own: 256 KiB to 64 MiB."""
SIZES = tuple(2**exponent for exponent in range(8, 27, 3))
"""Bytes at which the network is measured: 256 B to 64 MiB, where a loopback shows its bandwidth on a busy machine."""
WARM_UP = 6
"""Updates before a method is measured: those of its plan, and one by it."""


@interruptible
@typed
@registered
def measure_transfers(
    job: TrainingJob,
    *,
    global_batch: int,
    ranks: int = 2,
    device: DeviceName = "cpu",
    methods: Sequence[str] = METHODS,
    repetitions: int = 5,
    iterations: int = 5,
    buckets: Sequence[float] = BUCKETS,
    network_seconds: float = 20.0,
    ranks_per_node: int | None = None,
    launcher: Launcher | None = None,
    on_progress: Progress | None = None,
    on_record: Callable[[MeasuredTransfers], object] | None = None,
) -> MeasuredTransfers:
    """Measures iterations of a job by several methods of sending gradients; the given job is not trained.

    The network between the ranks is measured first. Then the best bucket of each method with ``best bucket`` in its
    name is searched, and all methods take turns.

    Args:
        job: a job without accumulation and clipping.
        global_batch: samples of an update over all ranks.
        ranks: processes that train.
        device: ``cpu`` or ``cuda``.
        methods: some of ``DDP``, ``DDP, best bucket``, ``DDP on fewer ranks`` (on as many as it is fastest on),
            ``DeAR, best bucket``, ``parameter server``, ``sharded servers`` and ``Caramel``, whose controls the others
            are.
        repetitions: times that all methods are measured.
        iterations: iterations of each method in a repetition.
        buckets: bytes of buckets to try, beside torch's own.
        network_seconds: time limit of the measurement of the network.
        ranks_per_node: ranks of each node. Default: all are on one.
        launcher: starts the processes. Default: on this machine.
        on_progress: see :data:`deeppool.job.Progress`.
        on_record: called after each repetition with the record so far.

    Raises:
        InvalidValueError: an argument out of range, or an emulated device.
        RankFailedError: a rank failed.
    """
    ranks, repetitions = whole_number("ranks", ranks, 2), whole_number("repetitions", repetitions)
    iterations, global_batch = whole_number("iterations", iterations), whole_number("global_batch", global_batch, ranks)
    network_seconds, sizes = positive_number("network_seconds", network_seconds), bucket_sizes(buckets)
    if ranks_per_node is not None:
        ranks_per_node = whole_number("ranks_per_node", ranks_per_node)
    check_ways("methods", methods, (DDP, TUNED_DDP, FEWER, *PLANNED), job)
    check_ddp(
        "all methods are compared with training", device, "use device cpu or cuda; dp.compare_transfers simulates"
    )
    report = on_progress or (lambda what, share: None)
    report("starting", 0.0)
    with joined_ranks(
        WORKER,
        ranks,
        save=lambda folder: save_job(job, folder),
        device=device,
        launcher=launcher,
        report=report,
        batch=global_batch,
        per_node=ranks_per_node or ranks,
    ) as turns:
        found = _Measured(turns, job, global_batch, iterations, ranks)
        report("measuring the network", 0.05)
        found.measure_network(network_seconds)
        for name in methods:
            report(f"preparing {name}", 0.1)
            tried = sizes if "best bucket" in name or name == FEWER else sizes[:1]
            found.prepare(name, data_parallel_settings(fewer_counts(ranks) if name == FEWER else [ranks], tried))
        found.prepare(COMPUTING, data_parallel_settings([ranks], sizes[:1]))
        for _ in turns.repeat([*methods, COMPUTING], iterations, repetitions, begin=0.3):
            if on_record is not None:
                on_record(found.record())
        return found.record()


@dataclass
class _Measured:
    """What the ranks measure by turns, and what they have measured before."""

    turns: Turns
    job: TrainingJob
    global_batch: int
    iterations: int
    ranks: int
    cluster: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, dict[str, float]] = field(default_factory=dict)
    plans: dict[str, TransferPlan | None] = field(default_factory=dict)
    alone: dict[str, tuple[float, float]] = field(default_factory=dict)

    def measure_network(self, seconds: float) -> None:
        """Measures the network between the ranks."""
        self.cluster = self.turns.ask("network", sizes=SIZES, seconds=seconds)[0]["cluster"]

    def prepare(self, name: str, settings: Sequence[dict[str, float]]) -> None:
        """Makes a method with the best of some numbers of ranks and sizes of buckets, and measures its transfers."""
        made = [{"cluster": self.cluster, "warm_up": WARM_UP, **each} for each in settings]
        best = self.turns.fastest(name, made, self.iterations)
        transfers = self.turns.prepare(name, **best)[0]["transfers"]
        self.plans[name] = transfers and serialization.from_json(transfers, TransferPlan, "the plan of transfers")
        self.settings[name] = best
        answers = self.turns.ask("transfers", way=name, repetitions=5)
        self.alone[name] = max(each["seconds"] for each in answers), max(each["computing"] for each in answers)

    def record(self) -> MeasuredTransfers:
        """Returns what was measured so far."""
        names = [name for name in self.plans if name != COMPUTING]
        return MeasuredTransfers(
            model=self.job.model_name,
            ranks=self.ranks,
            global_batch=self.global_batch,
            device_name=self.turns.device_name,
            cluster=serialization.from_json(self.cluster, Cluster, "the measured network"),
            compute=self.turns.seconds(COMPUTING),
            core_time=self.alone[names[-1]][1],
            ways=tuple(map(self._method, names)),
            repetitions=len(self.turns.rounds[COMPUTING]),
            **made_now(),
        )

    def _method(self, name: str) -> MeasuredMethod:
        timeline, plan = self.turns.rounds[name][-1].answers[0]["timeline"], self.plans[name]
        count = self.settings[name]["count"]
        has_buckets = "best bucket" in name or (name in (DDP, FEWER) and count > 1)
        return MeasuredMethod(
            name,
            self.turns.seconds(name),
            self.global_batch,
            timeline and serialization.from_json(timeline, Timeline, "the measured timeline"),
            note=f"on {count} of {self.ranks} ranks" if name == FEWER else "",
            technique="ordered transfers" if name == CARAMEL else "",
            controls=(TUNED_DDP, FEWER) if name == CARAMEL else (),
            predicted=None if plan is None else plan.iteration_time,
            transfers_alone=None if name == FEWER else self.alone[name][0],
            bucket=self.settings[name]["bucket"] if has_buckets else None,
            plan=plan,
        )
