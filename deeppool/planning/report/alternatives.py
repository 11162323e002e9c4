"""PlanAlternatives: the cost of every GPU count of some layers of a plan, as a record and as tables."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from deeppool.errors import InvalidValueError
from deeppool.planning.layer_assignment import AlternativeCost, LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.planning.report.explain import is_explained, over_limit_text, reason
from deeppool.planning.report.tables import render, table
from deeppool.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCost(AlternativeCost):
    """Cost of one GPU count of a layer, the plan's own count included."""

    chosen: bool
    """Whether it is the plan's own count."""
    time: float
    """Seconds of the layer in one iteration: reshard + forward + backward + sync."""


@dataclass(frozen=True, slots=True)
class LayerAlternatives:
    """All GPU counts of one layer that were searched, ascending."""

    name: str
    gpu_count: int
    counts: tuple[CountCost, ...]
    reason: str
    """Reasons against the next smaller and the next larger count."""


@dataclass(frozen=True, slots=True)
class PlanAlternatives:
    """Costs of every GPU count of some layers of a plan, all other layers unchanged."""

    KIND: ClassVar[str] = "price-list"

    model: str
    gpus: int
    global_batch: int
    amplification_limit: float | None
    iteration_time: float
    layers: tuple[LayerAlternatives, ...]

    def __post_init__(self) -> None:
        if not self.iteration_time > 0:
            raise InvalidValueError(f"iteration_time must be positive, got {self.iteration_time:g}")
        if not self.layers:
            raise InvalidValueError("layers must be at least 1, got 0")

    def __str__(self) -> str:
        limit = "no limit" if self.amplification_limit is None else f"limit {self.amplification_limit:g}"
        return (
            f"{self.model}, batch {self.global_batch} on {format_count(self.gpus, 'GPU')}, {limit}: "
            f"{format_seconds(self.iteration_time)} an iteration; alternatives of "
            f"{format_count(len(self.layers), 'layer')}"
        )

    def explain(self) -> str:
        """Returns a table for each layer, one GPU count a line."""
        return render(str(self), *map(_layer_table, self.layers))


def alternatives_of(plan: Plan, layer: str | None = None) -> PlanAlternatives:
    """Returns the cost of every GPU count of one layer, or of all layers.

    Raises:
        InvalidValueError: the plan has no such layer, or holds no costs of other counts.
    """
    names = [x.name for x in plan.layers]
    if layer is not None and layer not in names:
        near = difflib.get_close_matches(layer, names, n=3, cutoff=0.3) or names[:3]
        raise InvalidValueError(
            f"no layer '{layer}' among the {len(names)} layers of {plan.model}; there are {', '.join(near)}, … "
            "(deeppool explain PLAN lists all of them)"
        )
    # One layer may have no other count; a plan always has, unless its alternatives were left out.
    if len(plan.gpu_counts) > 1 and not is_explained(plan.layers):
        raise InvalidValueError(
            f"the plan of {plan.model} holds no costs of other GPU counts "
            "(a replan leaves them out: plan again from its profile)"
        )
    return PlanAlternatives(
        model=plan.model,
        gpus=plan.gpus,
        global_batch=plan.global_batch,
        amplification_limit=plan.amplification_limit,
        iteration_time=plan.iteration_time,
        layers=tuple(
            LayerAlternatives(
                x.name,
                x.gpu_count,
                _counts(x, _over_limit(plan, index)),
                reason(x, plan.gpu_counts, plan.why_not_faster),
            )
            for index, x in enumerate(plan.layers)
            if layer in (None, x.name)
        ),
    )


def _over_limit(plan: Plan, layer: int) -> tuple[str, ...]:
    """Returns which of a layer and those that read it are over the limit, as a published plan says of itself."""
    touched = {x.name for index, x in enumerate(plan.layers) if index == layer or layer in x.predecessors}
    return tuple(name for name in plan.over_limit if name in touched)


def _counts(layer: LayerAssignment, over_limit: tuple[str, ...]) -> tuple[CountCost, ...]:
    own = AlternativeCost(layer.gpu_count, 0.0, layer.amplification, over_limit, layer.reshard, layer.sync)
    options = (*layer.alternatives, own)
    found = []
    for option in sorted(options, key=lambda option: option.gpu_count):
        chosen = option.gpu_count == layer.gpu_count
        time = layer.time if chosen else option.amplification * layer.single_gpu_time / option.gpu_count
        effect = option.iteration_time_change, option.amplification, option.over_limit
        transfers = option.reshard, option.sync
        found.append(CountCost(option.gpu_count, *effect, *transfers, chosen=chosen, time=time))
    return tuple(found)


def _layer_table(layer: LayerAlternatives) -> "Table":
    rows = table("GPUs", "time", "transfers", "all-reduce", "amplification", "iteration", title=layer.name)
    rows.add_column("over the limit", overflow="fold")
    for cost in layer.counts:
        change = cost.iteration_time_change
        effect = "the plan's" if cost.chosen else f"{'+' if change >= 0 else ''}{format_seconds(change)}"
        over_limit = over_limit_text(layer.name, cost.over_limit)
        times = map(_seconds, (cost.time, cost.reshard, cost.sync))
        rows.add_row(str(cost.gpu_count), *times, f"{cost.amplification:.2f}", effect, over_limit)
    return rows


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)
