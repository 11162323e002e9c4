"""ScalingStudy: time to a target accuracy over GPU counts, network speeds and scaling strategies."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from deeppool.costs.communication import NetworkModel
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.planning.report.tables import table
from deeppool.units import format_bit_rate, format_count, format_rate, format_seconds, format_tables

Strategy = Literal["weak", "strong", "batch-optimal"]
"""The per-GPU batch is fixed, the global batch is fixed, or the global batch is chosen anew for each GPU count."""
Parallelism = Literal["data-parallel", "burst-parallel"]
"""Every layer on all GPUs, or each layer on its own number of them."""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
PARALLELISMS: tuple[Parallelism, ...] = get_args(Parallelism)


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Predicted time to accuracy of one strategy on some GPUs."""

    strategy: Strategy
    parallelism: Parallelism
    bandwidth: float
    """Bytes per second of a GPU's link, each direction."""
    gpus: int
    global_batch: int
    per_gpu_batch: int
    """Samples per GPU: ceil(global_batch / gpus)."""
    iteration_time: float
    steps: int
    """Steps to the target accuracy at this global batch."""
    time_to_accuracy: float
    """Seconds: steps x iteration_time."""
    speedup: float
    """Speed-up of the time to accuracy over one GPU with the global batch that suits one GPU best."""
    gpu_seconds: float
    """GPU-seconds held until the target accuracy; a burst-parallel iteration gives back GPUs within it."""
    extrapolated: bool
    """Whether a layer time that it uses lies above the profile's largest batch."""
    optimality: str
    """Optimality of the plan of one iteration: ``exact``, or ``bound x``; ``heuristic`` where all-reduces overlap, as
    the search did not count that. Always ``exact`` for data parallelism."""


@dataclass(frozen=True, slots=True)
class MissingPoint:
    """A point that cannot be predicted from the profile and the steps to accuracy, and why."""

    strategy: Strategy
    parallelism: Parallelism
    bandwidth: float
    gpus: int
    reason: str


@dataclass(frozen=True)
class ScalingStudy:
    """Points of a study, by bandwidth, strategy and parallelism, then by GPUs."""

    KIND: ClassVar[str] = "scaling"

    model: str
    device: str
    device_name: str
    precision: Precision
    provenance: Literal["measured", "estimated"]
    """Source of the layer times; network times are always computed, and the steps come from ``steps_source``."""
    profile_batch_sizes: tuple[int, ...]
    steps_name: str
    steps_source: str
    network_model: NetworkModel
    latency: float
    """Latency of every link, seconds."""
    gpu_counts: tuple[int, ...]
    bandwidths: tuple[float, ...]
    """Bytes per second, ascending."""
    global_batch: int
    """Global batch of strong scaling, samples."""
    per_gpu_batch: int
    """Per-GPU batch of weak scaling, samples."""
    amplification_limit: float | None
    """Amplification limit of the burst-parallel plans, per layer; None: no limit."""
    single_gpu_batch: int
    """The global batch with which one GPU reaches the accuracy soonest."""
    single_gpu_time: float
    """Seconds to accuracy on one GPU with that batch: the baseline of speed-ups."""
    points: tuple[ScalingPoint, ...]
    missing: tuple[MissingPoint, ...]
    study_time: float
    """Seconds that the study took."""

    def __post_init__(self) -> None:
        if not self.gpu_counts or not self.bandwidths or not (self.points or self.missing):
            raise InvalidValueError("a study of scaling has GPU counts, bandwidths, and a point or why there is none")

    @property
    def overlap(self) -> str:
        """What the points assume of all-reduces, for captions."""
        if self.network_model == "paper":
            return "nothing overlaps them"
        return "they overlap the backward pass"

    def line(self, strategy: Strategy, parallelism: Parallelism, bandwidth: float) -> tuple[ScalingPoint, ...]:
        """Returns the points of one strategy at one network speed, by GPUs."""
        wanted = (strategy, parallelism, bandwidth)
        return tuple(x for x in self.points if (x.strategy, x.parallelism, x.bandwidth) == wanted)

    def table(self) -> str:
        """Returns the point of every line that reaches the accuracy soonest, then what is missing, as text."""
        return _table(self)

    def __str__(self) -> str:
        speeds = " to ".join(dict.fromkeys(format_bit_rate(self.bandwidths[end]) for end in (0, -1)))
        fewest = f"{self.gpu_counts[0]} to " if len(self.gpu_counts) > 1 else ""
        counts = f"{fewest}{format_count(self.gpu_counts[-1], 'GPU')}"
        text = f"{self.model} to accuracy ({self.steps_name}), {counts}, {speeds}"
        if not self.points:
            return f"{text}: no point could be predicted ({self.missing[0].reason})"
        best = min(self.points, key=lambda point: point.time_to_accuracy)
        return (
            f"{text}: soonest after {format_hours(best.time_to_accuracy)} on {format_count(best.gpus, 'GPU')} at "
            f"{format_bit_rate(best.bandwidth)}, {best.strategy} {best.parallelism}, batch {best.global_batch} "
            f"({best.speedup:.1f}x one GPU)"
        )


def format_hours(seconds: float) -> str:
    """Formats 5400 s as ``1.5 h``; below an hour as :func:`format_seconds`."""
    return f"{format_rate(seconds / 3600)} h" if seconds >= 3600 else format_seconds(seconds)


def _table(study: ScalingStudy) -> str:
    columns = ("scaling", "parallelism", "GPUs", "batch", "per GPU", "iteration", "steps", "to accuracy", "speed-up")
    rows = table("network", *columns, "GPU hours", title=str(study))
    for name in rows.columns[:3]:
        name.justify, name.no_wrap = "left", True
    for bandwidth in study.bandwidths:
        lines = (study.line(strategy, kind, bandwidth) for strategy in STRATEGIES for kind in PARALLELISMS)
        # On more GPUs a line may be slower again, which nobody would use.
        for point in (min(line, key=lambda point: point.time_to_accuracy) for line in lines if line):
            rows.add_row(*_row(point))
        rows.add_section()
    return "\n".join([format_tables(rows, width=140), "", *_notes(study)])


def _row(point: ScalingPoint) -> tuple[str, ...]:
    return (
        format_bit_rate(point.bandwidth),
        point.strategy,
        point.parallelism,
        str(point.gpus),
        str(point.global_batch),
        f"{point.per_gpu_batch}{'*' * point.extrapolated}",
        format_seconds(point.iteration_time),
        str(point.steps),
        format_hours(point.time_to_accuracy),
        f"{point.speedup:.2f}x",
        format_rate(point.gpu_seconds / 3600),
    )


def _notes(study: ScalingStudy) -> list[str]:
    notes = [
        f"Each line is the GPU count that reaches the accuracy soonest, of {', '.join(map(str, study.gpu_counts))}.",
        f"Steps: {study.steps_name} ({study.steps_source}).",
        f"Speed-ups are over one GPU at its best batch, {study.single_gpu_batch}: "
        f"{format_hours(study.single_gpu_time)} to accuracy.",
        f"Layer times {study.provenance} on {study.device_name}; all-reduces by the model '{study.network_model}', "
        f"{format_seconds(study.latency)} of latency a link and full bisection bandwidth; {study.overlap}.",
    ]
    if any(point.extrapolated for point in study.points):
        notes.append(f"* uses layer times above the profile's largest batch, {study.profile_batch_sizes[-1]}.")
    if study.missing:
        # The same reason recurs at every network speed, with other numbers at every GPU count.
        first = study.missing[0]
        notes.append(
            f"{len(study.missing)} of {len(study.missing) + len(study.points)} points are missing, the first one "
            f"{first.strategy} {first.parallelism} on {format_count(first.gpus, 'GPU')}: {first.reason}"
        )
    return notes
