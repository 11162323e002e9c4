"""Measurement of transfers and all-reduces, run by every rank of a process group.

Patterns are measured one after another, each by a group of its ranks, while the others wait at a barrier:

    transfer     rank 0 → other → rank 0, with the calls of a reshard (see ``execution/exchange.py``); half of it
    all-reduce   one call after another, each waited for

The first rank of a group leads: it broadcasts a size and a number of runs (a *burst*), all ranks perform them, and
the leader's times count. It cycles through the sizes, so that a busy second of the machine does not affect one size
alone, and skips those whose median is known to the required precision, until all are or the time is up:

    burst of 4 B │ burst of 8 B │ … │ burst of 64 MB │ burst of 4 B │ …      burst: order  warm-up  run run run …
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist

from deeppool.cluster.measured_network import Curve, curve_through, quartile_distance
from deeppool.device.protocol import Device

MINIMUM_RUNS = 9
MAXIMUM_RUNS = 2000
FEWEST_IN_BURST, MOST_IN_BURST = 3, 50
BURST_SECONDS = 0.02
"""Target duration of a burst, within these limits."""
BOUND = 0.05
"""A median is precise enough if its 95 % interval, 1.57 x quartile distance / √runs, is within ± this part of it
(McGill, Tukey, Larsen, 1978: the notches of a box plot)."""
METHOD = (
    "the first rank's times of a transfer (half a round trip) or an all-reduce of float32, in bursts that alternate "
    f"between sizes; medians of at least {MINIMUM_RUNS} runs, until known to ±{BOUND:.0%} (1.57 IQR/√runs), or until "
    "the time was up; on CPUs also the part of each run for which the first rank's core computed"
)
ELEMENT_BYTES = 4
"""Gradients travel as float32."""
STOP = -1

Progress = Callable[[str, float], None]
"""Callback with a description of what is being measured and the completed fraction."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Communication pattern between some ranks, of which the first leads."""

    kind: Literal["transfer", "all-reduce"]
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        if self.kind == "transfer":
            return f"transfers between ranks {self.ranks[0]} and {self.ranks[1]}"
        return f"all-reduces of {len(self.ranks)} ranks"


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
        """Transfers inside a node and between two nodes, where they exist, and all-reduces by group size."""
        pairs = [(0, 1)] * (self.per_node > 1) + [(0, self.per_node)] * (self.ranks > self.per_node)
        return [
            *(Pattern("transfer", pair) for pair in pairs),
            *(Pattern("all-reduce", tuple(range(n))) for n in group_sizes(self.ranks, self.per_node)),
        ]


def group_sizes(ranks: int, per_node: int) -> tuple[int, ...]:
    """Returns the group sizes to measure: 2 to 8, powers of two and 1.5 times these, a node, one more, all ranks."""
    steps = {factor * 2**k for factor in (2, 3) for k in range(ranks.bit_length())}
    return tuple(sorted(n for n in {*range(2, 9), *steps, per_node, per_node + 1, ranks} if 2 <= n <= ranks))


def measure_patterns(
    context: RankContext, device: Device, sizes: Sequence[int], seconds: float, report: Progress
) -> list[Curve]:
    """Measures every pattern, in the order of :meth:`RankContext.patterns`.

    All ranks call it, with torch.distributed initialised and ``device`` selected.

    Args:
        context: position of this rank.
        device: device of the buffers.
        sizes: message sizes in bytes, ascending multiples of four.
        seconds: time limit over all patterns; each size gets ``MINIMUM_RUNS`` in any case.
        report: called on rank 0.

    Returns:
        The curves on rank 0, nothing on the others.
    """
    patterns = context.patterns()
    curves = []
    for index, pattern in enumerate(patterns):
        with device.unbound():
            group = dist.new_group(list(pattern.ranks))
        if context.rank in pattern.ranks:
            member = _PatternRank(pattern, context, group, device, sizes)
            if context.rank == pattern.ranks[0]:
                part = partial(_report_part, report, str(pattern), index, len(patterns))
                curves.append(member.lead(seconds / len(patterns), part))
            else:
                member.follow()
        dist.barrier()
    return curves


def _report_part(report: Progress, what: str, index: int, count: int, share: float) -> None:
    report(what, (index + share) / count)


class _PatternRank:
    """Role of one rank in one pattern."""

    def __init__(
        self, pattern: Pattern, context: RankContext, group: dist.ProcessGroup, device: Device, sizes: Sequence[int]
    ) -> None:
        self.pattern, self.group, self.device, self.sizes = pattern, group, device, sizes
        self.leads = context.rank == pattern.ranks[0]
        self.place = device.torch_device(context.local)
        self.outgoing, self.incoming = (torch.zeros(sizes[-1] // ELEMENT_BYTES, device=self.place) for _ in range(2))

    def lead(self, seconds: float, report: Callable[[float], None]) -> Curve:
        """Broadcasts the bursts and collects their times."""
        times: list[list[float]] = [[] for _ in self.sizes]
        computing: list[list[float]] = [[] for _ in self.sizes]
        started = time.perf_counter()
        while wanted := [i for i, taken in enumerate(times) if not is_precise(taken)]:
            for index in wanted:
                elapsed = time.perf_counter() - started
                if elapsed < seconds or len(times[index]) < MINIMUM_RUNS:
                    report(min(1.0, elapsed / seconds))
                    runs = self._burst(index, runs_in_burst(times[index]))
                    times[index] += [seconds for seconds, _ in runs]
                    computing[index] += [share for _, share in runs]
            if time.perf_counter() - started >= seconds and all(len(taken) >= MINIMUM_RUNS for taken in times):
                break
        self._broadcast(STOP, 0)
        return curve_through(self.sizes, times, computing if self.device.kind == "cpu" else None)

    def follow(self) -> None:
        """Runs the bursts that the leader broadcasts."""
        while (order := self._broadcast())[0] != STOP:
            self._run(*order)

    def _burst(self, index: int, runs: int) -> list[tuple[float, float]]:
        return self._run(*self._broadcast(index, runs))

    def _broadcast(self, index: int = 0, runs: int = 0) -> tuple[int, int]:
        """Broadcasts the leader's size index and number of runs; returns them on every rank."""
        order = torch.tensor([index, runs], device=self.place)
        dist.broadcast(order, self.pattern.ranks[0], self.group)
        index, runs = order.tolist()
        return index, runs

    def _run(self, index: int, runs: int) -> list[tuple[float, float]]:
        """Returns the seconds of each run and the fraction in which the core computed, after a warm-up run."""
        count = self.sizes[index] // ELEMENT_BYTES
        outgoing, incoming = self.outgoing[:count], self.incoming[:count]
        once = self._round_trip if self.pattern.kind == "transfer" else self._all_reduce
        parts = 2 if self.pattern.kind == "transfer" else 1
        found = []
        for _ in range(runs + 1):
            started, used = time.perf_counter(), time.process_time()
            once(outgoing, incoming)
            self.device.synchronize()
            seconds = time.perf_counter() - started
            # gloo's threads may run in parallel where ranks are not pinned to one core each.
            found.append((seconds / parts, min(1.0, (time.process_time() - used) / seconds)))
        return found[1:]

    def _all_reduce(self, outgoing: torch.Tensor, _: torch.Tensor) -> None:
        dist.all_reduce(outgoing, group=self.group)

    def _round_trip(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        """Sends and receives; the send is awaited last, as at the end of an iteration."""
        first, second = self.pattern.ranks
        incoming = torch.empty_like(incoming)
        if self.leads:
            sending = dist.isend(outgoing, second, self.group)
            _wait(dist.irecv(incoming, second, self.group))
        else:
            _wait(dist.irecv(incoming, first, self.group))
            sending = dist.isend(outgoing, first, self.group)
        _wait(sending)


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


def _wait(work: dist.Work | None) -> None:
    """Waits for a transfer; torch returns None only to ranks outside the group."""
    assert work is not None
    work.wait()
