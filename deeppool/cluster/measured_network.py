"""Measured network: seconds by message size, with the interpolation and extrapolation rules.

Between two measured sizes a curve is a straight line in log-log; below the smallest it stays level, above the
largest it keeps the bandwidth of the largest. Between two measured groups an all-reduce is interpolated by the
number of GPUs, and no group that was not measured is taken to be faster than the next smaller one that was.
Beyond the largest group it grows as the ring formula does:

    t(g, s) = t(G, s) x (g - 1)(a + b s / g) / (G - 1)(a + b s / G)

with G the largest measured group, and a and b the latency and seconds per byte of one of its 2 (G - 1) steps, from
the line through its curve.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Line:
    """Alpha-beta model, latency + size x seconds_per_byte, with its residuals."""

    latency: float
    """Latency (alpha), in seconds."""
    seconds_per_byte: float
    """Seconds per byte (beta)."""
    median_error: float
    """Median of |line / measured - 1| over the measured sizes."""
    worst_error: float
    """Maximum of |line / measured - 1| over the measured sizes."""

    def at(self, size: float) -> float:
        """Returns the seconds for a size in bytes."""
        return self.latency + size * self.seconds_per_byte

    @property
    def errors(self) -> str:
        """Formats the residuals."""
        return f"off by {self.median_error:.0%} in the median, {self.worst_error:.0%} at worst"

    def __str__(self) -> str:
        rate = f"{format_bytes(1 / self.seconds_per_byte)}/s" if self.seconds_per_byte else "any bandwidth"
        return f"{format_seconds(self.latency)} + {rate} ({self.errors})"


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> Line:
    """Fits the line of least relative squares, Σ (line / measured - 1)²: 4 bytes count for as much as 64 MB.

    Neither latency nor seconds per byte is negative; a negative one of the best fit becomes 0.

    Args:
        sizes: bytes, at least two different ones.
        seconds: measured times, positive.
    """
    # Relative least squares: a x flat + b x steep should be 1 at every size.
    flat = [1 / time for time in seconds]
    steep = [size / time for size, time in zip(sizes, seconds, strict=True)]
    f, s, ff, ss = sum(flat), sum(steep), sum(x * x for x in flat), sum(y * y for y in steep)
    fs = sum(x * y for x, y in zip(flat, steep, strict=True))
    determinant = ff * ss - fs * fs
    latency, slope = (f * ss - s * fs) / determinant, (s * ff - f * fs) / determinant
    if latency < 0:
        latency, slope = 0.0, s / ss
    elif slope < 0:
        latency, slope = f / ff, 0.0
    errors = [abs((latency + size * slope) / time - 1) for size, time in zip(sizes, seconds, strict=True)]
    return Line(latency, slope, statistics.median(errors), max(errors))


@dataclass(frozen=True, slots=True)
class Curve:
    """Transfer times of one pattern at several sizes."""

    sizes: tuple[int, ...]
    """Message sizes in bytes, ascending."""
    seconds: tuple[float, ...]
    """Median seconds per size."""
    spread: tuple[float, ...]
    """Half the interquartile range, relative to the median."""
    runs: tuple[int, ...]
    """Number of runs behind each median."""
    line: Line
    """Alpha-beta model of the medians."""
    computing: tuple[float, ...] | None = None
    """Share of these seconds for which the first rank's core computes, gloo's threads included; it waits for the rest.
    None if not measured, as on GPUs, which a transfer's kernels occupy."""

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.seconds) == len(self.spread) == len(self.runs):
            raise InvalidValueError(f"a curve of {len(self.sizes)} sizes needs as many seconds, spreads and runs")
        if len(self.sizes) < 2 or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise InvalidValueError(f"sizes must be at least two, positive and ascending, got {list(self.sizes)}")
        if not all(0 < time < math.inf for time in self.seconds):
            raise InvalidValueError(f"seconds must be positive, got {list(self.seconds)}")
        if self.computing is not None and not (
            len(self.computing) == len(self.sizes) and all(0 <= share <= 1 for share in self.computing)
        ):
            raise InvalidValueError(
                f"computing must be a part of the time for each of {len(self.sizes)} sizes, got {list(self.computing)}"
            )

    @property
    def computing_share(self) -> float:
        """Mean of ``computing`` over all sizes, weighted by seconds; 1 if not measured."""
        if self.computing is None:
            return 1.0
        # Divided term by term, shares of 1 may add up to more.
        computed = sum(share * seconds for share, seconds in zip(self.computing, self.seconds, strict=True))
        return computed / sum(self.seconds)

    def at(self, size: float) -> float:
        """Returns the seconds for a size in bytes; at a measured size, the measured median."""
        if size <= self.sizes[0]:
            return self.seconds[0]
        if size > self.sizes[-1]:
            return self.seconds[-1] * size / self.sizes[-1]
        right = bisect_left(self.sizes, size)
        if self.sizes[right] == size:
            return self.seconds[right]
        left = right - 1
        share = math.log(size / self.sizes[left]) / math.log(self.sizes[right] / self.sizes[left])
        return self.seconds[left] * math.exp(share * math.log(self.seconds[right] / self.seconds[left]))

    def least_seconds_per_byte(self, largest: int) -> float:
        """Returns the least of the seconds per byte over all sizes up to ``largest``."""
        # Between two measured sizes the time is a power of the size, so the time per byte is monotonic there.
        return min(self.at(size) / size for size in (*(size for size in self.sizes if size < largest), largest))


def curve_through(
    sizes: Sequence[int], runs: Sequence[Sequence[float]], computing: Sequence[Sequence[float]] | None = None
) -> Curve:
    """Returns the medians of several runs at each size, and the line through them.

    Args:
        sizes: bytes, ascending.
        runs: seconds of every run, at least two, for each size.
        computing: share of every run for which a core computed, for each size.
    """
    medians = tuple(statistics.median(times) for times in runs)
    return Curve(
        sizes=tuple(sizes),
        seconds=medians,
        spread=tuple(quartile_distance(times) / 2 / median for times, median in zip(runs, medians, strict=True)),
        runs=tuple(map(len, runs)),
        line=fit_line(sizes, medians),
        computing=None if computing is None else tuple(map(statistics.median, computing)),
    )


def quartile_distance(times: Sequence[float]) -> float:
    """Returns the interquartile range of the times, in seconds."""
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return upper - lower


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Times of all-reduces over the first ``gpus`` GPUs."""

    gpus: int
    curve: Curve


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """Times of all-reduces over the first ``gpus`` GPUs by one schedule, or by the library."""

    pattern: str
    """Name of the schedule; ``library``: that of torch.distributed's own."""
    gpus: int
    curve: Curve
    """It ends where the schedule was several times slower than the fastest."""


@dataclass(frozen=True, slots=True)
class MeasuredNetwork:
    """Measurements of every pattern on one set of ranks, and their settings."""

    backend: str
    """Backend of torch.distributed."""
    device_name: str
    """Name of rank 0's device."""
    ranks: int
    ranks_per_node: int
    inside: Curve | None
    """One-way transfers between two ranks of a node, or None where nodes have one rank each."""
    between: Curve | None
    """One-way transfers between ranks of two nodes, or None where there was one node."""
    all_reduce: tuple[AllReduce, ...]
    """All-reduces by group size, ascending from two ranks."""
    method: str
    date: str
    versions: dict[str, str]
    schedules: tuple[ScheduleTimes, ...] = ()
    """All-reduces by every schedule and by the library, measured by turns; none where that was not asked for."""
    exchange_inside: Curve | None = None
    """Two ranks of a node that send to each other at once, and add what they receive; None if not measured."""
    exchange_between: Curve | None = None
    """As ``exchange_inside``, of ranks of two nodes."""
    copy_seconds_per_byte: float = 0.0
    """Seconds for which a core copies a byte of gradients into the bucket that an all-reduce sums; 0 if not measured,
    as on GPUs."""

    def __post_init__(self) -> None:
        if not 0 <= self.copy_seconds_per_byte < math.inf:
            raise InvalidValueError(
                f"copy_seconds_per_byte must be finite and at least 0, got {self.copy_seconds_per_byte:g}"
            )
        groups = [group.gpus for group in self.all_reduce]
        if not groups or groups[0] != 2 or groups != sorted(set(groups)):
            raise InvalidValueError(f"all_reduce must hold ascending groups from 2 on, got {groups}")

    def __hash__(self) -> int:
        # Networks are keys of caches, and a dict is not hashable.
        return hash((self.backend, self.device_name, self.date, self.all_reduce[-1]))

    @property
    def largest_group(self) -> int:
        """Number of GPUs beyond which all-reduces are extrapolated."""
        return self.all_reduce[-1].gpus

    def computing(self, kind: Literal["transfer", "all-reduce"]) -> float:
        """Returns the share of a pattern's time for which a rank's core computes; 1 where that was not measured."""
        curves = [self.inside, self.between] if kind == "transfer" else [group.curve for group in self.all_reduce]
        return statistics.fmean(curve.computing_share for curve in curves if curve is not None)

    @property
    def sync_computing(self) -> float:
        """Share of an all-reduce for which a core computes, and so cannot do anything else; 0 where not measured."""
        known = [group.curve.computing_share for group in self.all_reduce if group.curve.computing is not None]
        return statistics.fmean(known) if known else 0.0

    def table(self) -> str:
        """Formats a line per pattern: some of its medians, their spread, and the line through all of them."""
        rows = [("transfer inside a node", self.inside), ("transfer between nodes", self.between)]
        rows += [("exchange inside a node", self.exchange_inside), ("exchange between nodes", self.exchange_between)]
        rows += [(f"all-reduce of {group.gpus}", group.curve) for group in self.all_reduce]
        rows += [(f"{each.pattern} of {each.gpus}", each.curve) for each in self.schedules]
        shown = [(name, curve) for name, curve in rows if curve is not None]
        sizes = shown[0][1].sizes
        some = sizes[:: max(1, len(sizes) // 5)]
        lines = [f"{self.ranks} ranks, {self.ranks_per_node} a node, {self.backend} on {self.device_name}, {self.date}"]
        width = max(len(name) for name, _ in shown)
        columns = "".join(f"{format_bytes(size):>11s}" for size in some)
        lines.append(f"{'':{width}s}{columns}  spread  computes   alpha + beta")
        for name, curve in shown:
            times = "".join(f"{format_seconds(curve.at(size)):>11s}" for size in some)
            computes = "-" if curve.computing is None else f"{curve.computing_share:.0%}"
            lines.append(
                f"{name:{width}s}{times}  ±{statistics.median(curve.spread):5.0%}  {computes:>8s}   {curve.line}"
            )
        if self.copy_seconds_per_byte:
            lines.append(f"copies of gradients into buckets: {format_bytes(1 / self.copy_seconds_per_byte)}/s")
        return "\n".join(lines)

    def schedule_times(self, gpu_count: int, size: int) -> dict[str, float]:
        """Returns the seconds of an all-reduce by every schedule that was measured over so many GPUs."""
        return {each.pattern: each.curve.at(size) for each in self.schedules if each.gpus == gpu_count}

    def all_reduce_time(self, gpu_count: int, size: int) -> float:
        """Returns the seconds of an all-reduce over the first ``gpu_count`` GPUs, at least two."""
        place = bisect_left(self.all_reduce, gpu_count, key=_gpus)
        if place == len(self.all_reduce):
            last = self.all_reduce[-1]
            return last.curve.at(size) * _ring_growth(last, gpu_count, size)
        upper = self.all_reduce[place]
        time = upper.curve.at(size)
        if upper.gpus == gpu_count:
            return time
        lower = self.all_reduce[place - 1]
        fewer = lower.curve.at(size)
        return fewer + max(0.0, time - fewer) * (gpu_count - lower.gpus) / (upper.gpus - lower.gpus)

    def least_seconds_per_byte(self, gpu_count: int, largest: int) -> float:
        """Returns seconds per byte that no all-reduce of up to ``largest`` bytes falls below."""
        place = bisect_left(self.all_reduce, gpu_count, key=_gpus)
        if place == len(self.all_reduce):
            last = self.all_reduce[-1]
            growth = min(_ring_growth(last, gpu_count, 1), _ring_growth(last, gpu_count, largest))
            return last.curve.least_seconds_per_byte(largest) * growth
        upper = self.all_reduce[place]
        time = upper.curve.least_seconds_per_byte(largest)
        if upper.gpus == gpu_count:
            return time
        lower = self.all_reduce[place - 1]
        part = (gpu_count - lower.gpus) / (upper.gpus - lower.gpus)
        return (1 - part) * lower.curve.least_seconds_per_byte(largest) + part * time

    def favours(self, gpu_count: int) -> bool:
        """Whether this group size was measured, and faster at some size than the next smaller measured group."""
        place = bisect_left(self.all_reduce, gpu_count, key=_gpus)
        if place in (0, len(self.all_reduce)) or self.all_reduce[place].gpus != gpu_count:
            return False
        fewer, here = self.all_reduce[place - 1].curve, self.all_reduce[place].curve
        return any(here.at(size) < fewer.at(size) for size in {*fewer.sizes, *here.sizes})


def _gpus(group: AllReduce) -> int:
    return group.gpus


def _ring_growth(last: AllReduce, gpu_count: int, size: int) -> float:
    """Returns the time of a ring over ``gpu_count`` GPUs relative to that of the largest measured group."""
    line = last.curve.line

    def ring(gpus: int) -> float:
        # In units of the steps of the largest measured group, a share of whose time they are.
        return (gpus - 1) * (line.latency + line.seconds_per_byte * size * last.gpus / gpus)

    return ring(gpu_count) / ring(last.gpus)
