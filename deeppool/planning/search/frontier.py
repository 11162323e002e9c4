"""Record of a frontier: every efficient plan of a model, by iteration time and GPU-seconds."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.number_checks import positive_number
from deeppool.cluster.cluster import Cluster
from deeppool.costs.amplification import TOLERANCE
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.baselines import DataParallelComparison, DataParallelTime
from deeppool.planning.search.optimality import certificate, round_up
from deeppool.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One efficient plan of a frontier."""

    iteration_time: float
    gpu_seconds: float
    amplification: float
    """gpu_seconds / single-GPU iteration time."""
    gpu_counts: tuple[int, ...]
    """GPU count of each layer."""
    first_gpus: tuple[int, ...]
    """First GPU of each layer; not 0 where branches run side by side."""
    memory: int | None = None
    """Bytes on the GPU that holds most; None if the profile lacks activation sizes."""

    def __post_init__(self) -> None:
        if self.iteration_time <= 0 or self.gpu_seconds <= 0:
            raise InvalidValueError(
                f"a point has positive times, got {self.iteration_time:g} s and {self.gpu_seconds:g} GPU-seconds"
            )


@dataclass(frozen=True, slots=True)
class Frontier:
    """All plans that no other one beats in both iteration time and GPU-seconds, fastest first."""

    KIND: ClassVar[str] = "frontier"

    model: str
    cluster: Cluster
    gpus: int
    global_batch: int
    layers: tuple[str, ...]
    single_gpu_iteration_time: float
    data_parallel_iteration_time: float
    """Seconds of an iteration by data parallelism on all GPUs."""
    points: tuple[FrontierPoint, ...]
    optimality: str
    """``exact``, or ``bound x``: an efficient plan may be up to x times faster than the point with its GPU-seconds."""
    search_time: float
    caveats: tuple[str, ...] = ()
    """Uncertainties of the layer times, a sentence each; see :mod:`deeppool.profiling.iteration_check`."""
    data_parallel_on_fewer: tuple[DataParallelTime, ...] = ()
    """Data parallelism on each smaller GPU count, ascending, as in a static partition of the cluster."""
    data_parallel_memory: int | None = None
    """Bytes of data parallelism on each of all GPUs; None: unknown, as in files of earlier versions."""
    data_parallel_micro_steps: int = 1
    """See :attr:`deeppool.planning.evaluate.baselines.DataParallelTime.micro_steps`, of that on all GPUs."""
    pareto_factor: float | None = None
    """Every plan has a point of at most so many times its iteration time and its GPU-seconds; None: not stated."""

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidValueError("a frontier has a plan, got none")
        positive_number("single_gpu_iteration_time", self.single_gpu_iteration_time)
        positive_number("data_parallel_iteration_time", self.data_parallel_iteration_time)
        if self.pareto_factor is not None and not 1 <= self.pareto_factor < math.inf:
            raise InvalidValueError(f"pareto_factor is a number of at least 1, got {self.pareto_factor}")

    @property
    def comparison(self) -> DataParallelComparison:
        """The fastest plan compared with data parallelism."""
        everywhere = DataParallelTime(
            self.gpus, self.data_parallel_iteration_time, self.data_parallel_memory, self.data_parallel_micro_steps
        )
        return DataParallelComparison(
            self.points[0].iteration_time, (*self.data_parallel_on_fewer, everywhere), capacity=self.cluster.memory
        )

    @property
    def claim(self) -> str:
        """What is claimed of the points, in time alone, and in time and GPU-seconds together."""
        if self.pareto_factor is None or self.optimality == certificate(self.pareto_factor) == "exact":
            return self.optimality
        return f"{self.optimality} in time, {round_up(self.pareto_factor):.3f} in time and GPU-seconds"

    @property
    def fitting(self) -> tuple[FrontierPoint, ...]:
        """The points whose plans fit into the GPUs' memory; all points if either is unknown."""
        capacity = math.inf if self.cluster.memory is None else self.cluster.memory
        return tuple(point for point in self.points if (point.memory or 0) <= capacity)

    def within(self, amplification_limit: float | None) -> FrontierPoint:
        """Returns the fastest plan under a limit on the iteration's amplification, fitting into memory or not.

        Raises:
            PlanError: every plan spends more.
        """
        if amplification_limit is None:
            return self.points[0]
        least = self.points[-1].amplification
        if not amplification_limit * (1 + TOLERANCE) >= least:
            raise PlanError(
                f"no plan of {self.model} within amplification {amplification_limit:g}: the least is {least:.4g}, of "
                f"the plan that takes {format_seconds(self.points[-1].iteration_time)} (use a larger limit)"
            )
        # Amplification descends along the points.
        position = bisect_left(
            self.points, -amplification_limit * (1 + TOLERANCE), key=lambda point: -point.amplification
        )
        return self.points[position]

    def __str__(self) -> str:
        first, last = self.points[0], self.points[-1]
        capacity = self.cluster.memory or 0
        too_large = len(self.points) - len(self.fitting)
        text = (
            f"{self.model}, batch {self.global_batch} on {format_count(self.gpus, 'GPU')} ({self.cluster.name}): "
            f"{format_count(len(self.points), 'efficient plan')}, from {format_seconds(first.iteration_time)} at "
            f"amplification {first.amplification:.2f} to {format_seconds(last.iteration_time)} at "
            f"{last.amplification:.2f}; data parallel {self.comparison.baseline_text}; {self.claim}"
        )
        if too_large:
            text += f"; {too_large} need{'s' * (too_large == 1)} more than the {format_bytes(capacity)} of a GPU"
        return "; caution: ".join([text, *self.caveats])
