"""What a live run of a foreground and a background measured: one :class:`RunRecord`.

The foreground has the guarantee; the background fills what the foreground leaves idle.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from deeppool.base.run_control import BoundInterval
from deeppool.base.sharing import Policy, Sharing
from deeppool.base.timeline import Timeline
from deeppool.records.confidence_interval import format_interval
from deeppool.units import format_percent, format_seconds


@dataclass(frozen=True, slots=True)
class TimeSummary:
    """Seconds, over the iterations of a phase."""

    p50: float
    p99: float
    mean: float
    count: int
    margin: float | None = None
    """Half of the 95 % interval of the mean, by how it differs between rounds; None: they are not known."""


def summarise(times: list[float]) -> TimeSummary:
    """Median, 99th percentile (linear between ranks) and mean."""
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
class Phase:
    """Measurements of the foreground under one condition."""

    iteration_time: TimeSummary
    throughput: float
    """Samples per second."""
    idle_share: tuple[float, ...]
    """Per rank, the share of the phase in which it used no CPU."""


@dataclass(frozen=True, slots=True)
class ForegroundResult:
    """A foreground job, beside the background and alone."""

    iteration_time: TimeSummary
    throughput: float
    """Samples per second."""
    idle_share: tuple[float, ...]
    """Per rank, the share of the collocated phase in which the foreground used no CPU."""
    alone: Phase
    """No background; an idle-priority spinner keeps each core awake, which is the honest baseline."""
    alone_asleep: Phase | None
    """No background and no spinner: cores sleep in the gaps and wake up slowly."""
    slowdown: float
    """Mean iteration time over that of ``alone``, minus 1: 0.03 is 3 % slower."""
    first_loss: float | None
    """Mean over the first measured iterations; None where it is no number."""
    last_loss: float | None
    slowdown_margin: float | None = None
    """Half of its 95 % interval, by how it differs between rounds; None: unknown, or there is no background."""


@dataclass(frozen=True, slots=True)
class BackgroundResult:
    """The background job of every rank, taken together."""

    model: str
    batch: int
    priority: str
    """That the operating system granted, and the GPU where there is one."""
    throughput: float
    """Samples per second beside the foreground, over all ranks."""
    alone_throughput: float
    """Samples per second with the cores to itself."""
    harvest: float
    """throughput / alone_throughput."""
    harvest_of_idle: float
    """harvest over the mean share of time that the foreground leaves idle when alone; 1 takes it all."""
    first_loss: float | None
    """Of the first step; None where there was none, or it is no number."""
    last_loss: float | None
    ended: str
    """``stopped``, or how it died; a background's end never ends the foreground."""
    home: str = "process"
    """Where it ran: ``process`` or ``process, under MPS``, which is its own; ``thread of the rank``, which ends with
    the rank's process, and that with whatever breaks the device's context."""
    harvest_margin: float | None = None
    """Half of its 95 % interval, by how it differs between rounds; None: unknown."""


@dataclass(frozen=True, slots=True)
class GovernorResult:
    """Estimates and decisions of one rank's controller while the rank ran beside its background.

    Its own estimate, from iterations without background among those with one, stands beside the measured slowdown,
    which compares whole phases; the baseline of both is a core that is kept awake.
    """

    slowdown: float | None
    """Collocated against alone: 0.03 is 3 %; None where too few iterations were measured, or none had to be."""
    error: float | None
    """Its standard error."""
    alone: int
    """Iterations alone that it rests on."""
    collocated: int
    """Iterations beside the background that it rests on."""
    share: float
    """Part of the time that the background was allowed in the end; 1: all."""
    banned: tuple[str, ...]
    """Operators beside which nothing might run in the end."""

    def __str__(self) -> str:
        # Two standard errors, as all that follows a ± here.
        found = (
            "slowdown unknown"
            if self.slowdown is None or self.error is None
            else f"slowdown {format_percent(self.slowdown)} ± {200 * self.error:.1f} ({self.alone} iterations alone)"
        )
        banned = f", nothing beside {', '.join(self.banned)}" if self.banned else ""
        return f"{found}, share {100 * self.share:.0f} %{banned}"


def governor_lines(governors: tuple[GovernorResult, ...]) -> list[str]:
    """One for each rank, as records print them."""
    return [f"governor     rank {rank}: {found}" for rank, found in enumerate(governors)]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One stage of the plan: consecutive layers on the same GPUs. Seconds of one iteration, medians."""

    name: str
    gpus: tuple[int, ...]
    layers: int
    forward: float
    backward: float
    reshard: float
    sync: float
    predicted: float
    """The plan's time of its layers."""


def format_losses(first: float | None, last: float | None) -> str:
    """From where to where it went; None is no number."""
    return " → ".join("no number" if loss is None else f"{loss:.3f}" for loss in (first, last))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Record of one live run: its settings, measurements and device."""

    KIND: ClassVar[str] = "run"

    model: str
    plan_iteration_time: float
    """Predicted."""
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
    """One measured iteration beside the background."""
    plan_timeline: Timeline
    """The plan's prediction of it."""
    notes: tuple[str, ...]
    """Caveats: how BatchNorm and dropout behaved, cores shared by ranks."""
    date: str
    versions: dict[str, str]
    sharing: Sharing | None = None
    """The mechanisms of the policy, and the bound that was asked for; None: no background, or an older record."""
    governors: tuple[GovernorResult, ...] = ()
    """Per rank, where feedback or a bound was asked for."""
    emulated_rank: int | None = None
    """The one rank that ran, where all others were emulated; None: all of them ran."""
    bounds: tuple[BoundInterval, ...] = ()
    """Each bound that was held, where it was changed while the run went on: ``sharing``, ``foreground``, ``background``
    and ``governors`` are of the last one under which anything was measured."""

    @property
    def where(self) -> str:
        """Which ranks ran on what."""
        if self.emulated_rank is not None:
            return f"emulated: rank {self.emulated_rank} of {self.ranks}, transfers modelled, on {self.device_name}"
        return f"{self.ranks} ranks on {self.cores} cores of {self.device_name} ({self.backend})"

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
            f"foreground   {format_seconds(front.iteration_time.p50)} an iteration "
            f"(p99 {format_seconds(front.iteration_time.p99)}), alone "
            f"{format_seconds(front.alone.iteration_time.p50)}: slowdown {format_percent(front.slowdown)}"
            f"{format_interval(front.slowdown_margin)}; "
            f"planned {format_seconds(self.plan_iteration_time)} and the update",
            f"idle alone   {idle}{loss}",
        ]
        if self.background is not None:
            back = self.background
            home = "" if back.home == "process" else f" ({back.home})"
            lines.append(
                f"background   {back.model} at {back.priority}{home}: {back.throughput:.3g} samples/s, alone "
                f"{back.alone_throughput:.3g}: harvest {100 * back.harvest:.0f} %"
                f"{format_interval(back.harvest_margin)}, which is "
                f"{100 * back.harvest_of_idle:.0f} % of the idle time ({back.ended})"
            )
        lines += governor_lines(self.governors)
        lines += [f"held         {held}" for held in self.bounds]
        for stage in self.stages:
            times = ", ".join(
                f"{kind} {format_seconds(getattr(stage, kind))}" for kind in ("forward", "backward", "reshard", "sync")
            )
            gpus = ",".join(map(str, stage.gpus))
            lines.append(
                f"stage        {stage.name} ({stage.layers} layers) on {gpus}: {times}; "
                f"planned {format_seconds(stage.predicted)}"
            )
        return "\n".join(lines)
