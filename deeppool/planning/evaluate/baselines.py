"""Plans compared with data parallelism in the same cost model: all that is said of the two is read from here."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from deeppool.collectives.buckets import DATA_PARALLEL_BUCKETS
from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, price
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_count, format_seconds

Verdict = Literal["yes", "no", "unknown"]
"""Whether another way to train is worth it; unknown where that takes a measurement."""
WORTH = 1.03
"""Least gain that is worth another way to train: a few percent are within the error of most predictions."""


def verdict_on(gain: float, error: float | None) -> Verdict:
    """Returns whether a predicted gain is worth it; unknown where it lies within the error of the times."""
    if gain < WORTH:
        return "no"
    return "unknown" if gain - 1 <= (error or 0.0) else "yes"


@dataclass(frozen=True, slots=True)
class DataParallelTime:
    """Data parallelism on a number of GPUs."""

    gpus: int
    seconds: float
    """Seconds of an iteration."""
    memory: int | None = None
    """Bytes that each GPU needs; None: unknown."""
    micro_steps: int = 1
    """Parts of a GPU's batch, one after the other, whose gradients it accumulates before they are summed over all
    GPUs: more than 1 where the whole batch does not fit. A BatchNorm then has the statistics of each part."""

    def __post_init__(self) -> None:
        if min(self.gpus, self.micro_steps) < 1 or not self.seconds > 0:
            raise InvalidValueError(
                f"DDP takes some time and micro-steps on {format_count(self.gpus, 'GPU')}, got {self.seconds:g} s in "
                f"{self.micro_steps}"
            )

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds of an iteration: all GPUs are held all the time."""
        return self.gpus * self.seconds

    def fits(self, capacity: float | None) -> bool:
        """Whether a GPU of some bytes holds it; true where either is unknown."""
        return capacity is None or self.memory is None or self.memory <= capacity

    @property
    def in_steps(self) -> str:
        """``in 2 micro-steps``, after a space; empty if it is one."""
        return f" in {self.micro_steps} micro-steps" if self.micro_steps > 1 else ""

    def __str__(self) -> str:
        return f"{format_seconds(self.seconds)} on {self.gpus}{self.in_steps}"


@dataclass(frozen=True, slots=True)
class DataParallelComparison:
    """An iteration of a plan, and one of data parallelism on each number of GPUs."""

    iteration_time: float
    """Seconds of the plan."""
    data_parallel: tuple[DataParallelTime, ...]
    """Data parallelism by GPU count, ascending; the last one is on all GPUs."""
    error: float | None = None
    """Relative error of the gain: that of estimated layer times, or the noise of measured ones; None: unknown."""
    name: str = "DDP"
    """PyTorch's DDP, unless nothing overlaps, as in DeepPool's paper."""
    capacity: float | None = None
    """Memory of each GPU in bytes; None: unknown."""

    @property
    def fitting(self) -> tuple[DataParallelTime, ...]:
        """Data parallelism on the GPU counts on which it fits into memory, ascending."""
        return tuple(one for one in self.data_parallel if one.fits(self.capacity))

    @property
    def fastest(self) -> DataParallelTime:
        """The baseline: data parallelism where it is fastest, on the fewest GPUs of those that are as fast.

        Only counts on which it fits into memory are compared, or all where it fits on none.
        """
        found = self.fitting or self.data_parallel
        least = min(one.seconds for one in found) * (1 + TOLERANCE)
        return next(one for one in found if one.seconds <= least)

    @property
    def gain(self) -> float:
        """Speed of the plan in times that of the baseline."""
        return self.fastest.seconds / self.iteration_time

    @property
    def within_error(self) -> bool:
        """Whether the plan is faster than what fits into memory, by no more than the error."""
        return bool(self.fitting) and 0 < self.gain - 1 <= (self.error or 0.0)

    @property
    def verdict(self) -> Verdict:
        """Whether the plan is worth it, as any is where data parallelism does not fit into memory."""
        return verdict_on(self.gain, self.error) if self.fitting else "yes"

    @property
    def where(self) -> str:
        """``on 4 GPUs``, after a space; empty if the baseline is on all GPUs, but for its micro-steps."""
        best = self.fastest
        return ("" if best == self.data_parallel[-1] else f" on {format_count(best.gpus, 'GPU')}") + best.in_steps

    @property
    def baseline_text(self) -> str:
        """Seconds of data parallelism where it is fastest, and on all GPUs."""
        best, everywhere = self.fastest, self.data_parallel[-1]
        as_fast = best.seconds * (1 + TOLERANCE) >= everywhere.seconds
        refused = bool(self.fitting) and any(one.seconds * (1 + TOLERANCE) < best.seconds for one in self.data_parallel)
        elsewhere = best != everywhere
        text = f"{format_seconds(best.seconds)}{self.where if elsewhere else ' on all' * refused + best.in_steps}"
        if refused or not as_fast:
            text += f", where it is fastest{' of those that hold it' * refused}"
        if elsewhere and (everywhere.fits(self.capacity) or not self.fitting):
            text += ", as on all" if as_fast else f", {format_seconds(everywhere.seconds)} on all"
        return text if self.fitting else f"{text}, but {self.too_large}"

    @property
    def accumulation(self) -> str:
        """On how few GPUs data parallelism fits in micro-steps alone; empty if it needs none where it fits."""
        found = [f"{one.micro_steps} on {format_count(one.gpus, 'GPU')}" for one in self.fitting if one.micro_steps > 1]
        if not found:
            return ""
        return (
            f"whole batches do not fit, so that it accumulates gradients over micro-steps: {', '.join(found)} (a "
            "BatchNorm has the statistics of each)"
        )

    @property
    def too_large(self) -> str:
        """On which GPU counts data parallelism does not fit into memory, and why; empty if it fits on each."""
        found = tuple(one for one in self.data_parallel if not one.fits(self.capacity))
        if not found:
            return ""
        needed, has = found[-1].memory or 0, self.capacity or 0
        counts = format_count(found[-1].gpus, "GPU") + " or fewer" * (len(found) > 1)
        if found != self.data_parallel[: len(found)]:
            # Fewer GPUs may hold it where their shares divide into micro-steps of a batch that has times.
            counts = f"{', '.join(str(one.gpus) for one in found)} GPUs"
        return f"on {counts} it does not fit: a GPU needs {format_bytes(needed)}, and has {format_bytes(has)}"


def data_parallel_times(profile: Profile, costs: CostTable, memory: MemoryModel) -> tuple[DataParallelTime, ...]:
    """Returns data parallelism on each GPU count of the table, and last on all, with the memory that it needs.

    It sums gradients in the buckets in which it is fastest, of those of PyTorch's DDP and those that plans may have.
    Where its memory is more than a GPU has, it is what DDP's ``no_sync`` is for: micro-steps of as many samples as fit,
    and one sum of their gradients beside the last one's backward. Without room for one sample it is the whole batch.
    """
    capacity, found = costs.network.cluster.memory, []
    for one in _times(costs):
        whole = replace(one, memory=memory.replica(one.gpus))
        found.append(whole if whole.fits(capacity) else _in_micro_steps(whole, profile, costs, memory))
    return tuple(found)


def _in_micro_steps(
    whole: DataParallelTime, profile: Profile, costs: CostTable, memory: MemoryModel
) -> DataParallelTime:
    """Returns data parallelism in the fewest micro-steps that fit; if none do, or have times, the whole batch."""
    shard, room = -(-costs.global_batch // whole.gpus), memory.samples_in(costs.network.cluster.memory or 0)
    steps = -(-shard // max(1, room))
    least, larger = divmod(shard, steps)
    if not room or least < profile.batch_sizes[0]:
        return whole
    *others, last = [*[least] * (steps - larger), *[least + 1] * larger]
    parts = {size: price(profile, costs.network, size * whole.gpus, (whole.gpus,)) for size in {*others, last}}
    summed = replace(parts[last], overlap=costs.overlap)
    seconds = fastest_data_parallel(summed, 0).iteration_time
    seconds += sum(float((parts[size].forward + parts[size].own_backward).sum()) for size in others)
    needed = replace(memory, global_batch=last * whole.gpus).replica(whole.gpus)
    return DataParallelTime(whole.gpus, seconds, needed, steps)


@lru_cache(maxsize=4)
def _times(costs: CostTable) -> tuple[DataParallelTime, ...]:
    """Returns data parallelism on each count; cached, as a slider asks again."""
    network, counts = costs.network, costs.gpu_counts
    gpus = network.cluster.gpus
    found = [fastest_data_parallel(costs, option) for option in range(len(counts))]
    if counts[-1] < gpus:
        # The largest shards of all GPUs are those of the last count, but their all-reduces take longer.
        sync = np.array([[network.all_reduce_time(gpus, size)] for size in costs.graph.gradient_bytes])
        found.append(fastest_data_parallel(replace(costs.at([len(counts) - 1]), gpu_counts=(gpus,), sync=sync), 0))
    return tuple(DataParallelTime(len(one.gpus[0]), one.iteration_time) for one in found)


def fastest_data_parallel(costs: CostTable, option: int) -> Placement:
    """Returns data parallelism on a count of the table, in the buckets of all kinds in which it is fastest."""
    plan = data_parallel(costs, option)
    if not costs.overlap:
        return plan
    return min(map(plan.with_buckets, DATA_PARALLEL_BUCKETS), key=lambda one: one.iteration_time)
