"""Record of a live run of a foreground and a background: :class:`RunRecord`.

The foreground has the guarantee; the background fills what the foreground leaves idle.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from deeppool.base.run_control import BoundInterval
from deeppool.base.sharing import Policy, Sharing
from deeppool.base.timeline import Timeline
from deeppool.errors import InvalidValueError
from deeppool.records.confidence_interval import format_interval
from deeppool.records.cost_saved import CostSaved
from deeppool.units import format_count, format_percent, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class TimeSummary:
    """Summary of the iteration times of a phase, in seconds."""

    p50: float
    p99: float
    mean: float
    count: int
    margin: float | None = None
    """Half width of the 95 % interval of the mean, from the variation between rounds, or None if unknown."""


def summarise(times: list[float]) -> TimeSummary:
    """Summarises times by their median, 99th percentile (linear between ranks) and mean."""
    ordered = sorted(times)
    if not ordered:
        raise ValueError("no times to summarise")

    def quantile(q: float) -> float:
        position = q * (len(ordered) - 1)
        lower = int(position)
        upper = min(lower + 1, len(ordered) - 1)
        return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])

    return TimeSummary(quantile(0.5), quantile(0.99), sum(ordered) / len(ordered), len(ordered))


@dataclass(frozen=True, slots=True)
class WakeDelay:
    """Delay from when a rank may run to when it runs, in seconds, over the iterations of all ranks.

    For each iteration of each rank: the seconds in which its threads could run and did not, divided by how often they
    got a core, both as Linux counts them (:class:`deeppool.telemetry.run_delay.RunDelayMeter`). It is the mean over an
    iteration's wake-ups, not each of them: after waits, because data has arrived or another thread has notified it, and
    after the kernel let another thread run instead.
    """

    p50: float
    p99: float
    per_iteration: float
    """Mean sum of an iteration's delays over all threads of a rank, which wait side by side: it may exceed the
    iteration."""
    count: int
    """Iterations of a rank in which a thread got a core at least once more; the quantiles are over them."""

    def __str__(self) -> str:
        return (
            f"p50 {format_seconds(self.p50)}, p99 {format_seconds(self.p99)}, "
            f"{format_seconds(self.per_iteration)} an iteration, added over a rank's threads"
        )


def summarise_delays(delays: Iterable[tuple[float, int]]) -> WakeDelay | None:
    """Summarises iterations, each with the seconds of its delays and their number; None: none was measured."""
    found = [(seconds, times) for seconds, times in delays if times > 0]
    if not found:
        return None
    means = summarise([seconds / times for seconds, times in found])
    return WakeDelay(means.p50, means.p99, sum(seconds for seconds, _ in found) / len(found), len(found))


@dataclass(frozen=True, slots=True)
class Phase:
    """Measurements of the foreground under one condition."""

    iteration_time: TimeSummary
    throughput: float
    """Throughput in samples per second."""
    idle_share: tuple[float, ...]
    """Share of the phase in which each rank used no CPU, or its device computed nothing for it where it has one."""
    wake_delay: WakeDelay | None = None
    """Delay of the ranks' wake-ups; None: not measured, as on systems without the kernel's counters."""

    def __post_init__(self) -> None:
        if not self.idle_share:
            raise InvalidValueError("idle_share must be of at least 1 rank, got none")


@dataclass(frozen=True, slots=True)
class ForegroundResult:
    """Results of the foreground job, collocated and alone."""

    iteration_time: TimeSummary
    throughput: float
    """Throughput while collocated, in samples per second."""
    idle_share: tuple[float, ...]
    """The same of each rank's foreground in the collocated phase."""
    alone: Phase
    """Phase without background; an idle-priority spinner keeps each core awake: the baseline of the slowdown."""
    alone_asleep: Phase | None
    """Phase without background and spinner, or None: cores sleep in the gaps and wake up slowly."""
    slowdown: float
    """Mean iteration time relative to that of ``alone``, minus 1: 0.03 is 3 % slower."""
    first_loss: float | None
    """Mean over the first measured iterations; None where it is no number."""
    last_loss: float | None
    slowdown_margin: float | None = None
    """Half width of the slowdown's 95 % interval, from the variation between rounds; None if unknown or without
    background."""
    wake_delay: WakeDelay | None = None
    """Delay of the ranks' wake-ups while collocated, under all bounds; None: not measured."""

    def __post_init__(self) -> None:
        if not self.slowdown > -1:
            raise InvalidValueError(f"slowdown must be above -1, an iteration without time, got {self.slowdown:g}")


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """Combined results of the background jobs of all ranks."""

    model: str
    batch: int
    priority: str
    """Priority granted by the operating system, and by the GPU where there is one."""
    throughput: float
    """Throughput while collocated, in samples per second over all ranks."""
    alone_throughput: float
    """Throughput with exclusive cores, in samples per second."""
    harvest: float
    """Fraction of the background's throughput that is kept: throughput / alone_throughput."""
    harvest_of_idle: float
    """Harvest divided by the mean share of time that the foreground leaves idle when alone; 1 uses all of it."""
    first_loss: float | None
    """Loss of the first step, or None where there was none, or it is not a number."""
    last_loss: float | None
    ended: str
    """Exit reason: ``stopped``, or how it died; a background's end never ends the foreground."""
    home: str = "process"
    """Location of the background: ``process`` or ``process, under MPS`` for a process of its own; ``thread of the
    rank``, which ends with the rank's process, and fails with the device's context."""
    harvest_margin: float | None = None
    """Half width of the harvest's 95 % interval, from the variation between rounds, or None if unknown."""


@dataclass(frozen=True, slots=True)
class GovernorResult:
    """Estimates and decisions of one rank's controller while the rank was collocated.

    The controller's own estimate compares adjacent iterations with and without background; the measured slowdown of the
    run compares whole phases. The baseline of both is a core that is kept awake.
    """

    slowdown: float | None
    """Slowdown, collocated against alone: 0.03 is 3 %; None where too few iterations were measured, or none were
    required."""
    error: float | None
    """Standard error of the slowdown, or None."""
    alone: int
    """Number of iterations alone behind the estimate."""
    collocated: int
    """Number of collocated iterations behind the estimate."""
    share: float
    """Final share of the time that the background was allowed to use; 1 means all."""
    banned: tuple[str, ...]
    """Operators during which the background was finally not allowed to run."""

    def __str__(self) -> str:
        # Two standard errors, as for every ± in the records.
        found = (
            "slowdown unknown"
            if self.slowdown is None or self.error is None
            else f"slowdown {format_percent(self.slowdown)} ± {200 * self.error:.1f} ({self.alone} iterations alone)"
        )
        banned = f", nothing beside {', '.join(self.banned)}" if self.banned else ""
        return f"{found}, share {100 * self.share:.0f} %{banned}"


def governor_lines(governors: tuple[GovernorResult, ...]) -> list[str]:
    """Formats a line for each rank, as records print them."""
    return [f"governor     rank {rank}: {found}" for rank, found in enumerate(governors)]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of one stage of the plan, consecutive layers on the same GPUs: medians in seconds per iteration."""

    name: str
    gpus: tuple[int, ...]
    layers: int
    forward: float
    backward: float
    reshard: float
    sync: float
    predicted: float
    """Time of its layers in the plan."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise InvalidValueError(f"stage '{self.name}' must have at least 1 layer, got {self.layers}")


def format_losses(first: float | None, last: float | None) -> str:
    """Formats the first and last loss; None is not a number."""
    return " → ".join("no number" if loss is None else f"{loss:.3f}" for loss in (first, last))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Record of one live run: its settings, measurements and device."""

    KIND: ClassVar[str] = "run"

    model: str
    plan_iteration_time: float
    """Predicted iteration time, in seconds."""
    global_batch: int
    ranks: int
    cores: int
    """Cores that the ranks shared; with fewer cores than ranks the times predict nothing."""
    device: str
    device_name: str
    backend: str
    policy: Policy | Literal["custom"]
    foreground: ForegroundResult
    background: BackgroundResult | None
    stages: tuple[StageTimes, ...]
    timeline: Timeline
    """One measured iteration beside the background: the one nearest the median, of the last round."""
    plan_timeline: Timeline
    """Timeline predicted by the plan."""
    notes: tuple[str, ...]
    """Caveats: how BatchNorm and dropout behaved, cores shared by ranks."""
    date: str
    versions: dict[str, str]
    sharing: Sharing | None = None
    """Mechanisms of the policy, and the requested bound; None means no background, or an older record."""
    governors: tuple[GovernorResult, ...] = ()
    """Result of each rank's controller, where feedback or a bound was requested."""
    emulated_rank: int | None = None
    """Rank that ran if all others were emulated; None if all ranks ran."""
    bounds: tuple[BoundInterval, ...] = ()
    """Intervals of each bound, if it was changed during the run: ``sharing``, ``foreground``, ``background`` and
    ``governors`` are of the last one under which anything was measured."""
    plan_update_time: float = 0.0
    """Part of ``plan_iteration_time`` that is the update; 0 where the plan does not predict it."""
    cost_saved: CostSaved | None = None
    """What the background saved, if a price of the GPU-hour was given."""

    def __post_init__(self) -> None:
        if self.emulated_rank is not None and not 0 <= self.emulated_rank < self.ranks:
            raise InvalidValueError(f"emulated_rank must be 0 to {self.ranks - 1}, got {self.emulated_rank}")

    @property
    def where(self) -> str:
        """Returns which ranks ran on which device."""
        if self.emulated_rank is not None:
            return f"emulated: rank {self.emulated_rank} of {self.ranks}, transfers modelled, on {self.device_name}"
        ranks, cores = format_count(self.ranks, "rank"), format_count(self.cores, "core")
        return f"{ranks} on {cores} of {self.device_name} ({self.backend})"

    def _format_wake_delay(self) -> str:
        front = self.foreground
        if front.wake_delay is None:
            return "delay of the foreground not measured"
        alone = f"; alone {front.alone.wake_delay}" if front.alone.wake_delay is not None else ""
        return f"delay of the foreground {front.wake_delay}{alone}"

    def __str__(self) -> str:
        front = self.foreground
        sharing = f" ({self.sharing})" if self.sharing is not None and self.sharing.in_pieces else ""
        idle = ", ".join(
            f"rank {rank} {100 * share:.0f} %"
            for rank, share in enumerate(front.alone.idle_share, start=self.emulated_rank or 0)
        )
        emulated = self.emulated_rank is not None
        loss = "" if emulated else f"; loss {format_losses(front.first_loss, front.last_loss)}"
        lines = [
            f"{self.model}: {self.where}, batch {self.global_batch}, policy {self.policy}{sharing}",
            f"foreground   mean {format_seconds(front.iteration_time.mean)} an iteration "
            f"(p50 {format_seconds(front.iteration_time.p50)}, p99 {format_seconds(front.iteration_time.p99)}), alone "
            f"mean {format_seconds(front.alone.iteration_time.mean)} "
            f"(p50 {format_seconds(front.alone.iteration_time.p50)}): slowdown {format_percent(front.slowdown)}"
            f"{format_interval(front.slowdown_margin)}; "
            f"planned {format_seconds(self.plan_iteration_time)}{' and the update' * (not self.plan_update_time)}",
            f"idle alone   {idle}{loss}",
        ]
        if self.background is not None:
            back = self.background
            home = "" if back.home == "process" else f" ({back.home})"
            lines.append(
                f"background   {back.model} at {back.priority}{home}: {format_rate(back.throughput)} samples/s, alone "
                f"{format_rate(back.alone_throughput)}: harvest {100 * back.harvest:.0f} %"
                f"{format_interval(back.harvest_margin)}, which is "
                f"{100 * back.harvest_of_idle:.0f} % of the idle time ({back.ended})"
            )
            lines.append(f"wake-up      {self._format_wake_delay()}")
        if self.cost_saved is not None:
            lines.append(f"cost saved   {self.cost_saved}")
        lines += governor_lines(self.governors)
        lines += [f"held         {held}" for held in self.bounds]
        for stage in self.stages:
            times = ", ".join(
                f"{kind} {format_seconds(getattr(stage, kind))}" for kind in ("forward", "backward", "reshard", "sync")
            )
            gpus = ",".join(map(str, stage.gpus))
            lines.append(
                f"stage        {stage.name} ({format_count(stage.layers, 'layer')}) on {gpus}: {times}; "
                f"planned {format_seconds(stage.predicted)}"
            )
        return "\n".join(lines)
