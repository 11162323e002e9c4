"""Plan: the GPUs that compute each layer of one training iteration, with predicted times."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from deeppool.base.number_checks import positive_number
from deeppool.cluster.cluster import MAXIMUM_GPUS, Cluster
from deeppool.collectives.buckets import DEFAULT_BUCKETS, Buckets
from deeppool.costs.communication import NetworkModel
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.layer import Granularity, Input
from deeppool.graph.series_parallel import Series, decompose
from deeppool.planning.evaluate.baselines import DataParallelComparison, DataParallelTime
from deeppool.planning.evaluate.memory import MemoryUse, Optimizer
from deeppool.planning.evaluate.schedule import IterationSchedule, idle_seconds, order_of, schedule, update_time
from deeppool.planning.goal import Goal, GoalBackground
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.report.explain import layers_text
from deeppool.units import format_bytes, format_count, format_seconds

LimitScope = Literal["layer", "iteration"]
GpuCounts = Literal["powers", "all"]
Search = Literal["exact", "published"]
TOLERANCE = 1e-6
"""Tolerance of the plan's totals, relative to the sums over its layers."""
ROUNDING = 1e-12
"""Seconds that rounding may add where times are nearly zero."""


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """Prediction of the published search for its own plan.

    The plan holds the costs as it runs. The two differ where the model branches: the paper lets branches run at
    the same time on different GPUs (DeepPool, section 4.2) and does not add these GPUs up.
    """

    iteration_time: float
    gpus: int
    """GPUs in use at once: a branch that runs with others has a set of its own, as large as its largest layer."""


@dataclass(frozen=True)
class Plan:
    """A burst-parallel plan of one training iteration."""

    KIND: ClassVar[str] = "plan"

    model: str
    input_shape: tuple[int, ...]
    """Shape of one sample of the first input, without the batch."""
    parameter_bytes: int
    graph_fingerprint: str
    profile_fingerprint: str
    device: str
    device_name: str
    precision: Precision
    provenance: Literal["measured", "estimated"]
    """Source of the layer times in use; network times are always computed from the cluster's links."""
    extrapolated_layers: tuple[str, ...]
    """Layers whose time, on their GPUs or on one, lies above the profile's largest batch."""
    cluster: Cluster
    network_model: NetworkModel
    gpu_counts: tuple[int, ...]
    """Searched counts per layer; ``optimality`` is relative to these, and to the buckets that were searched."""
    gpus: int
    global_batch: int
    amplification_limit: float | None
    """Limit of the request; None: no limit."""
    limit_scope: LimitScope
    layers: tuple[LayerAssignment, ...]
    iteration_time: float
    """Seconds of both passes, all-reduces and the optimizer's update; the update is 0 in the paper's model."""
    data_parallel_iteration_time: float
    """Seconds of an iteration by data parallelism on all GPUs."""
    single_gpu_iteration_time: float
    gpu_seconds: float
    """Seconds for which GPUs are held, over all GPUs; each GPU is held for the update of its own layers' parameters."""
    amplification: float
    exempt_layers: tuple[str, ...]
    """Layers excluded from the limit. Always empty: one GPU keeps any limit and is always among the counts."""
    optimality: str
    """``exact``, or ``bound x``: at most x times the optimum, or ``heuristic``: no bound is known.

    Of the iteration time; for a goal other than ``fastest``, of what the goal wants.
    """
    search_time: float
    search: Search = "exact"
    goal: Goal = "fastest"
    background: GoalBackground | None = None
    """Background job that the goal counts."""
    over_limit: tuple[str, ...] = ()
    """Layers that exceed the limit; always empty for the exact search."""
    claim: PublishedClaim | None = None
    """Prediction of the published search for its own plan; None for the exact search."""
    optimizer: Optimizer = "momentum"
    """Optimizer whose state ``memory`` counts."""
    memory: tuple[MemoryUse, ...] = ()
    """Memory of each group of GPUs with equal contents, the fullest first; empty without activation sizes."""
    overlap_sync: bool = False
    """Whether all-reduces overlap the backward pass: the iteration time counts their exposed part, and GPU-seconds the
    part that neither computing nor transfers hide. False: everything waits for all-reduces."""
    buckets: Buckets = DEFAULT_BUCKETS
    """Which gradients share an all-reduce where these overlap the backward pass; a run makes the same buckets."""
    sync_computing: float = 0.0
    """Share of an all-reduce that the cores of its GPUs compute, as the network was measured: what runs beside one
    advances at the rate of 1 - share. 0 on GPUs, and where not measured."""
    inputs: tuple[Input, ...] = ()
    """All inputs of the model; one of float32 and ``input_shape`` unless given."""
    granularity: Granularity = "module"
    """Granularity of the layers: a run captures the model in the same way."""
    caveats: tuple[str, ...] = ()
    """Uncertainties of the layer times in use, a sentence each; see :mod:`deeppool.profiling.iteration_check`."""
    data_parallel_kept: bool = False
    """Whether it is data parallelism because the fastest plan gains less than the profile's noise; the last caveat says
    by how much."""
    data_parallel_on_fewer: tuple[DataParallelTime, ...] = ()
    """Data parallelism on each smaller GPU count, ascending; empty in files of earlier versions."""
    data_parallel_memory: int | None = None
    """Bytes of data parallelism on each of all GPUs; None: unknown, as in files of earlier versions."""
    data_parallel_micro_steps: int = 1
    """See :attr:`deeppool.planning.evaluate.baselines.DataParallelTime.micro_steps`, of that on all GPUs."""
    error: float | None = None
    """Median error of the estimated layer times, where it was checked; None: measured, or unknown."""
    origin: Any = field(default=None, compare=False, repr=False)
    """The CapturedModel behind the profile, in the process that made it; never saved."""

    def __post_init__(self) -> None:
        if not self.inputs:
            object.__setattr__(self, "inputs", (Input("", self.input_shape),))
        if not 1 <= self.gpus <= MAXIMUM_GPUS:
            raise InvalidValueError(f"gpus must be within 1…{MAXIMUM_GPUS}, got {self.gpus}")
        positive_number("data_parallel_iteration_time", self.data_parallel_iteration_time)
        # A deep model has few distinct sets, and on a thousand GPUs they are long.
        valid = {x for x in {layer.gpus for layer in self.layers} if x and 0 <= min(x) <= max(x) < self.gpus}
        for index, layer in enumerate(self.layers):
            if not all(0 <= source < index for source in layer.predecessors):
                raise InvalidValueError(
                    f"layer '{layer.name}', number {index}, has predecessors {list(layer.predecessors)}, "
                    "expected earlier layers"
                )
            if not all(index < user < len(self.layers) for user in layer.later_users):
                raise InvalidValueError(
                    f"layer '{layer.name}', number {index}, has later_users {list(layer.later_users)}, "
                    f"expected later layers, up to {len(self.layers) - 1}"
                )
            if layer.gpu_count != len(layer.gpus) or layer.gpus not in valid:
                raise InvalidValueError(
                    f"layer '{layer.name}' has gpus {list(layer.gpus)}, expected {layer.gpu_count} of 0…{self.gpus - 1}"
                )

    @property
    def speedup(self) -> float:
        """Iteration time on one GPU over that of the plan."""
        return self.single_gpu_iteration_time / self.iteration_time

    @property
    def gpu_sets(self) -> tuple[tuple[int, ...], ...]:
        """Per layer the GPUs that compute it."""
        return tuple(layer.gpus for layer in self.layers)

    @property
    def tree(self) -> Series:
        """The layers as chains and branches; together with the GPU sets it determines what runs side by side."""
        return decompose([layer.predecessors for layer in self.layers])

    @property
    def schedule(self) -> IterationSchedule:
        """Start times of one iteration."""
        return schedule(
            order_of(self.tree, self.gpu_sets),
            self.gpu_sets,
            self.layers,
            overlap_sync=self.overlap_sync,
            sync_computing=self.sync_computing,
        )

    @property
    def update_time(self) -> float:
        """Seconds of the optimizer's update on the GPU whose layers take longest, which the iteration time includes."""
        return update_time(self.gpu_sets, self.layers)

    def without_room(self, needed: int | None) -> tuple[int, ...]:
        """Returns the GPUs that have no room for a job of so many bytes beside the plan; none where that is unknown."""
        most = math.inf if needed is None or self.cluster.memory is None else self.cluster.memory - needed
        return tuple(sorted(gpu for use in self.memory if use.total > most for gpu in use.gpus))

    def idle_gpu_seconds(self, needed: int | None = None) -> float:
        """Returns the GPU-seconds in which GPUs are idle that have room for a job of so many bytes; None: unknown."""
        idle = self.gpus * self.iteration_time - self.gpu_seconds
        if not (full := self.without_room(needed)):
            return idle
        of_gpus = idle_seconds(self.schedule, self.gpu_sets, self.layers, self.gpus)
        return max(0.0, idle - sum(of_gpus[gpu] for gpu in full))

    def check_totals(self) -> None:
        """Compares the totals with the layers, as the reader of files does.

        An edited plan would otherwise give wrong results without an error.

        Raises:
            InvalidValueError: a total is not what the layers sum up to.
        """
        counts = list(self.gpu_counts)
        if (
            not self.layers
            or self.global_batch < 1
            or counts != sorted({1, *counts})
            or not 1 <= counts[0] <= counts[-1] <= MAXIMUM_GPUS
        ):
            raise InvalidValueError(
                f"a plan needs layers, a global batch and gpu_counts ascending from 1 to at most {MAXIMUM_GPUS}, got "
                f"{len(self.layers)} layers, {self.global_batch} and {counts[:9]}"
            )
        if max(self.gpus, counts[-1]) > self.cluster.gpus:
            raise InvalidValueError(
                f"a plan on {self.gpus} GPUs with gpu_counts up to {counts[-1]} needs a cluster with as many, got "
                f"{self.cluster.gpus} (make the plan again: was it edited?)"
            )
        if self.amplification_limit is not None and self.amplification_limit < 1:
            raise InvalidValueError(f"amplification_limit must be at least 1, got {self.amplification_limit:g}")
        if not 0 <= self.sync_computing <= 1:
            raise InvalidValueError(f"sync_computing must be a share from 0 to 1, got {self.sync_computing:g}")
        for layer in self.layers:
            parts = (layer.reshard, layer.forward, layer.backward, layer.sync)
            adds_up = math.isclose(layer.time, sum(parts), rel_tol=TOLERANCE, abs_tol=ROUNDING)
            if min(*parts, layer.update) < 0 or not adds_up:
                raise InvalidValueError(
                    f"layer '{layer.name}' has time {layer.time:g}, expected the sum of reshard, forward, backward and "
                    f"sync, {' + '.join(f'{part:g}' for part in parts)} (make the plan again)"
                )
        update = sum(layer.update for layer in self.layers)
        alone = sum(layer.single_gpu_time for layer in self.layers) + update
        # A measured all-reduce of many gradients may take longer than those of each.
        synced = max(sum(layer.sync for layer in self.layers), sum(layer.all_reduce for layer in self.layers))
        whole = sum(layer.time - layer.sync for layer in self.layers) + synced + update
        for name, value, least, most in (
            ("single_gpu_iteration_time", self.single_gpu_iteration_time, alone, alone),
            ("iteration_time", self.iteration_time, max(x.forward + x.backward for x in self.layers), whole),
            ("gpu_seconds", self.gpu_seconds, self.iteration_time, self.iteration_time * self.gpus),
        ):
            if not least * (1 - TOLERANCE) - ROUNDING <= value <= most * (1 + TOLERANCE) + ROUNDING:
                bound = f"{least:g}" if least == most else f"{least:g} to {most:g}"
                raise InvalidValueError(
                    f"{name} is {value:g}, the layers sum up to {bound} (make the plan again: was it edited?)"
                )

    @property
    def comparison(self) -> DataParallelComparison:
        """The plan compared with data parallelism."""
        everywhere = DataParallelTime(
            self.cluster.gpus,
            self.data_parallel_iteration_time,
            self.data_parallel_memory,
            self.data_parallel_micro_steps,
        )
        return DataParallelComparison(
            self.iteration_time,
            (*self.data_parallel_on_fewer, everywhere),
            self.error,
            "DDP" if self.overlap_sync else "data parallelism",
            self.cluster.memory,
        )

    @property
    def why_not_faster(self) -> str:
        """Why a GPU count that keeps the limit, and makes an iteration faster, may not be the plan's."""
        if self.data_parallel_kept:
            return "the gain is within the profile's noise"
        if self.search == "published":
            return "the published search"
        if self.goal != "fastest":
            return f"goal {self.goal}"
        not_found = f"the search did not find it ({self.optimality})"
        return not_found if self.cluster.memory is None else f"{not_found}, or it does not fit into memory"

    def explain(self) -> str:
        """Returns a table of the layers with the cost of the next smaller and next larger GPU count of each."""
        text = layers_text(str(self), self.layers, self.gpu_counts, self.why_not_faster)
        if self.update_time:
            text += f"\n\nThe iteration ends with the optimizer's update, {format_seconds(self.update_time)}"
        if self.overlap_sync and any(layer.all_reduce for layer in self.layers):
            text += f"\n\nAll-reduces overlap the backward pass in {self.buckets}"
        if self.sync_computing:
            text += (
                f"\n\nCores compute for {self.sync_computing:.0%} of an all-reduce's time, which the backward pass "
                "beside it lacks"
            )
        measured = self.cluster.measured
        widest = max(layer.gpu_count for layer in self.layers)
        if self.network_model == "measured" and measured is not None and widest > measured.largest_group:
            text += (
                f"\n\nAll-reduces of more than {measured.largest_group} GPUs were not measured: they continue those of "
                f"{measured.largest_group} as a ring would (deeppool network --ranks {widest} measures them)"
            )
        return text

    def explain_memory(self) -> str:
        """Returns the memory of each GPU at the peak of an iteration, one line per group of equal GPUs."""
        if not self.memory:
            return "memory is unknown: the profile does not say what layers keep for the backward (profile again)"
        known = self.cluster.memory
        of = "" if known is None else f" of {format_bytes(known)}"
        compared = self.comparison
        baseline = [f"  {compared.name}: {text}" for text in (compared.accumulation, compared.too_large) if text]
        uses = (f"  {use}" for use in self.memory)
        return "\n".join([f"memory{of} with optimizer {self.optimizer}:", *uses, *baseline])

    def __str__(self) -> str:
        limit = "no limit" if self.amplification_limit is None else f"limit {self.amplification_limit:g}"
        limit = limit if self.goal == "fastest" else f"goal {self.goal}"
        overlap, compared = "" if self.overlap_sync else "all-reduces not overlapped, ", self.comparison
        text = (
            f"{self.model}, batch {self.global_batch} on {format_count(self.gpus, 'GPU')} "
            f"({self.cluster.name}), {limit}: {format_seconds(self.iteration_time)} an iteration "
            f"({compared.gain:.2f}x {compared.name}, which takes {compared.baseline_text}; "
            f"{self.speedup:.2f}x one GPU), "
            f"amplification {self.amplification:.2f}, {overlap}{self.optimality}"
        )
        if self.claim is not None:
            text += (
                f"; the published search claims {format_seconds(self.claim.iteration_time)} "
                f"on {format_count(self.claim.gpus, 'GPU')} at once, and {len(self.over_limit)} of "
                f"{len(self.layers)} layers are over the limit"
            )
        if self.provenance == "estimated":
            known = "" if self.error is None else f", median error {100 * self.error:.0f} %"
            text += f"; layer times estimated for {self.device_name}{known}"
        return "; caution: ".join([text, *self.caveats])
