"""Measurement of transfers and all-reduces, run by every rank of a process group.

Patterns are measured one after another, each by a group of its ranks, while the others wait at a barrier:

    transfer     half of a round trip, performed as schedules are (:mod:`deeppool.collectives.perform`)
    exchange     both ranks send to each other at once and add: what most rounds of an all-reduce do
    all-reduce   the library's own: one call after another, each waited for
    ring, …      an all-reduce by the schedule of that name (:data:`deeppool.collectives.patterns.ALL_REDUCES`)

The first rank of a group leads: it broadcasts a size and a number of runs (a *burst*), all ranks perform them, and
the leader's times count. It cycles through the sizes, so that a busy second of the machine does not affect one size
alone, and skips those whose median is known to the required precision, until all are or the time is up:

    burst of 4 B │ burst of 8 B │ … │ burst of 64 MB │ burst of 4 B │ …      burst: order  warm-up  run run run …

All-reduces among which a training chooses take turns at each size, so that the same busy second affects all of them.
One that is several times slower than the fastest is given up after its first burst.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from deeppool.cluster.measured_network import Curve, curve_through, quartile_distance
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.patterns.round_trip import round_trip
from deeppool.collectives.perform.performer import Performer
from deeppool.collectives.perform.process_group import new_group
from deeppool.collectives.schedule import Schedule
from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Device
from deeppool.job import Progress

MINIMUM_RUNS = 9
MAXIMUM_RUNS = 2000
FEWEST_IN_BURST, MOST_IN_BURST = 3, 50
BURST_SECONDS = 0.02
"""Target duration of a burst, within these limits."""
LOSING = 3.0
"""Times as slow as the fastest, from which on a pattern is given up at a size."""
LARGE = 2**20
"""Bytes from which on a pattern that is given up at a size is at larger ones, too: latency no longer counts."""
LONG = 3.0
"""Seconds that the runs of any one size may take."""
BOUND = 0.05
"""A median is precise enough if its 95 % interval, 1.57 x quartile distance / √runs, is within ± this part of it
(McGill, Tukey, Larsen, 1978: the notches of a box plot)."""
METHOD = (
    "the first rank's times of a transfer (half a round trip) or an all-reduce of float32, in bursts that alternate "
    f"between sizes; medians of at least {MINIMUM_RUNS} runs, until known to ±{BOUND:.0%} (1.57 IQR/√runs), or until "
    "the time was up; no size above 1 MiB whose runs alone would have taken longer; on CPUs also the part of each run "
    "for which the first rank's core computed, and copies of gradients into a bucket"
)
ELEMENT_BYTES = 4
"""Gradients travel as float32."""
STOP = -1


PAIRS: Mapping[str, Callable[[], Schedule]] = {
    "transfer": round_trip,
    "exchange": partial(ALL_REDUCES["recursive-doubling"], 2, 1),
}
"""Schedules of two ranks whose curves price a round of any schedule (:mod:`deeppool.costs.schedules`)."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Communication pattern between some ranks, of which the first leads."""

    kind: str
    """``transfer``, ``exchange``, ``all-reduce`` or the name of a schedule."""
    ranks: tuple[int, ...]
    per_node: int = 1
    """Ranks of a node in a hierarchical all-reduce."""

    def __str__(self) -> str:
        if self.kind in PAIRS:
            return f"{self.kind}s between ranks {self.ranks[0]} and {self.ranks[1]}"
        by = "" if self.schedule is None else f" by {self.kind}"
        return f"all-reduces of {len(self.ranks)} ranks{by}"

    @property
    def schedule(self) -> Schedule | None:
        """Schedule that the ranks perform; None: the library's own all-reduce."""
        if self.kind == "all-reduce":
            return None
        make = PAIRS.get(self.kind)
        return ALL_REDUCES[self.kind](len(self.ranks), self.per_node) if make is None else make()


@dataclass(frozen=True, slots=True)
class RankContext:
    """Position of a rank among all ranks, which are numbered node by node."""

    rank: int
    ranks: int
    per_node: int

    @property
    def local(self) -> int:
        """Rank within its node."""
        return self.rank % self.per_node

    def patterns(self) -> list[Pattern]:
        """Transfers and exchanges inside a node and between two, where they exist, and all-reduces by group size."""
        pairs = [(0, 1)] * (self.per_node > 1) + [(0, self.per_node)] * (self.ranks > self.per_node)
        return [
            *(Pattern(kind, pair) for kind in PAIRS for pair in pairs),
            *(Pattern("all-reduce", tuple(range(n))) for n in group_sizes(self.ranks, self.per_node)),
        ]

    def rounds(self, *, schedules: bool) -> list[list[Pattern]]:
        """Returns all patterns to measure; those in one list take turns."""
        return [*([pattern] for pattern in self.patterns()), *(self.candidates() if schedules else [])]

    def candidates(self) -> list[list[Pattern]]:
        """All-reduces among which to choose, by group size: the library's own and every schedule that differs."""
        counts = sorted({2**k for k in range(1, self.ranks.bit_length())} | {self.ranks})
        return [
            [
                Pattern(kind, tuple(range(count)), self.per_node)
                for kind in ("all-reduce", *ALL_REDUCES)
                if kind != "hierarchical" or 1 < self.per_node < count
            ]
            for count in counts
        ]


def group_sizes(ranks: int, per_node: int) -> tuple[int, ...]:
    """Returns the group sizes to measure: 2 to 8, powers of two and 1.5 times these, a node, one more, all ranks."""
    steps = {factor * 2**k for factor in (2, 3) for k in range(ranks.bit_length())}
    return tuple(sorted(n for n in {*range(2, 9), *steps, per_node, per_node + 1, ranks} if 2 <= n <= ranks))


def measure_patterns(
    patterns: Sequence[Sequence[Pattern]],
    context: RankContext,
    device: Device,
    sizes: Sequence[int],
    seconds: float,
    report: Progress,
) -> list[Curve]:
    """Measures patterns one after another.

    All ranks call it, with torch.distributed initialised and ``device`` selected.

    Args:
        patterns: the same on all ranks; those in one sequence are of the same ranks, and take turns.
        context: position of this rank.
        device: device of the buffers.
        sizes: message sizes in bytes, ascending multiples of four.
        seconds: time limit over all patterns; each size gets ``MINIMUM_RUNS`` in any case, but none above ``LARGE``
            whose runs alone would take longer, and longer than ``LONG``.
        report: called on rank 0.

    Returns:
        The curves of all patterns on rank 0, nothing on the others.
    """
    curves: list[Curve] = []
    count, index = sum(map(len, patterns)), 0
    for alike in patterns:
        ranks, index = alike[0].ranks, index + len(alike)
        group = new_group(device, ranks)
        if context.rank in ranks:
            member = _PatternRank(alike, context, group, device, sizes)
            if context.rank == ranks[0]:
                what = str(alike[0]) + (" by every schedule" if len(alike) > 1 else "")
                part = partial(_report_part, report, what, (index - len(alike)) / count, len(alike) / count)
                curves += member.lead(seconds * len(alike) / count, part)
            else:
                member.follow()
        dist.barrier()
    return curves


def _report_part(report: Progress, what: str, start: float, length: float, share: float) -> None:
    report(what, start + length * share)


class _PatternRank:
    """Role of one rank in patterns of the same ranks that take turns."""

    def __init__(
        self,
        patterns: Sequence[Pattern],
        context: RankContext,
        group: dist.ProcessGroup,
        device: Device,
        sizes: Sequence[int],
    ) -> None:
        self.patterns, self.group, self.device, self.sizes = patterns, group, device, sizes
        self.first = patterns[0].ranks[0]
        self.place = device.torch_device(context.local)
        self.buffer = torch.zeros(sizes[-1] // ELEMENT_BYTES, device=self.place)
        self.schedules, self.performer = [pattern.schedule for pattern in patterns], Performer(group)

    def lead(self, seconds: float, report: Callable[[float], None]) -> list[Curve]:
        """Broadcasts the bursts and collects their times; a curve per pattern."""
        # Of each size all patterns, one after the other.
        count = len(self.sizes) * len(self.patterns)
        times: list[list[float]] = [[] for _ in range(count)]
        computing: list[list[float]] = [[] for _ in range(count)]
        started = time.perf_counter()

        def is_left_out(index: int) -> bool:
            return self._is_given_up(times, index) or self._is_too_long(times, index, seconds)

        while wanted := [i for i in range(count) if not is_precise(times[i]) and not is_left_out(i)]:
            for index in wanted:
                if is_left_out(index):
                    continue
                elapsed = time.perf_counter() - started
                if elapsed < seconds or len(times[index]) < MINIMUM_RUNS:
                    report(min(1.0, elapsed / seconds))
                    runs = self._burst(index, runs_in_burst(times[index]))
                    times[index] += [seconds for seconds, _ in runs]
                    computing[index] += [share for _, share in runs]
            if time.perf_counter() - started >= seconds and all(len(times[i]) >= MINIMUM_RUNS for i in wanted):
                break
        self._broadcast(STOP, 0)
        on_cpu = find_kind(self.device.kind).on_cores
        return [
            curve_through(
                [size for size, taken in zip(self.sizes, times[which :: len(self.patterns)], strict=True) if taken],
                [taken for taken in times[which :: len(self.patterns)] if taken],
                [shares for shares in computing[which :: len(self.patterns)] if shares] if on_cpu else None,
            )
            for which in range(len(self.patterns))
        ]

    def _is_given_up(self, times: Sequence[Sequence[float]], index: int) -> bool:
        """Whether a pattern is too slow at a size, or at a smaller one that is large, to be the fastest."""
        count = len(self.patterns)
        row = index // count
        if not times[index]:
            smaller = index - count
            # A curve has two sizes.
            return row > 1 and self.sizes[row - 1] >= LARGE and self._is_given_up(times, smaller)
        alike = [statistics.median(taken) for taken in times[row * count : (row + 1) * count] if taken]
        return statistics.median(times[index]) > LOSING * min(alike)

    def _is_too_long(self, times: Sequence[Sequence[float]], index: int, seconds: float) -> bool:
        """Whether the runs of a large size alone would take longer than all sizes may, by the size before."""
        row, before = index // len(self.patterns), index - len(self.patterns)
        if times[index] or row < 2 or self.sizes[row - 1] < LARGE:
            return False
        if not times[before]:
            return True
        return MINIMUM_RUNS * statistics.median(times[before]) * self.sizes[row] / self.sizes[row - 1] > max(
            seconds, LONG
        )

    def follow(self) -> None:
        """Runs the bursts that the leader broadcasts."""
        while (order := self._broadcast())[0] != STOP:
            self._run(*order)

    def _burst(self, index: int, runs: int) -> list[tuple[float, float]]:
        return self._run(*self._broadcast(index, runs))

    def _broadcast(self, index: int = 0, runs: int = 0) -> tuple[int, int]:
        """Broadcasts the leader's size index and number of runs; returns them on every rank."""
        order = torch.tensor([index, runs], device=self.place)
        dist.broadcast(order, self.first, self.group)
        index, runs = order.tolist()
        return index, runs

    def _run(self, index: int, runs: int) -> list[tuple[float, float]]:
        """Returns the seconds of each run and the fraction in which the core computed, after a warm-up run."""
        row, which = divmod(index, len(self.patterns))
        buffer = self.buffer[: self.sizes[row] // ELEMENT_BYTES]
        parts = 2 if self.patterns[which].kind == "transfer" else 1
        found = []
        for _ in range(runs + 1):
            started, used = time.perf_counter(), time.process_time()
            self._perform(self.schedules[which], buffer)
            self.device.synchronize()
            seconds = time.perf_counter() - started
            # gloo's threads may run in parallel where ranks are not pinned to one core each.
            found.append((seconds / parts, min(1.0, (time.process_time() - used) / seconds)))
        return found[1:]

    def _perform(self, schedule: Schedule | None, buffer: torch.Tensor) -> None:
        if schedule is None:
            dist.all_reduce(buffer, group=self.group)
        else:
            self.performer.perform(schedule, buffer)


def is_precise(times: Sequence[float]) -> bool:
    """Whether the median of these runs is precise enough; see ``BOUND``."""
    if len(times) < MINIMUM_RUNS:
        return False
    interval = 1.57 * quartile_distance(times) / math.sqrt(len(times))
    return len(times) >= MAXIMUM_RUNS or interval <= BOUND * statistics.median(times)


def runs_in_burst(times: Sequence[float]) -> int:
    """Returns the number of runs that take ``BURST_SECONDS``, by the times so far."""
    if not times:
        return FEWEST_IN_BURST
    return max(FEWEST_IN_BURST, min(MOST_IN_BURST, int(BURST_SECONDS / statistics.median(times))))
