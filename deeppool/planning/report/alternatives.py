"""Why one layer got its GPUs: the price of every other count, as a record."""

import difflib
from dataclasses import dataclass
from typing import ClassVar

from deeppool.errors import InvalidValueError
from deeppool.planning.plan import LayerAssignment, Plan
from deeppool.planning.report.explain import reason
from deeppool.planning.report.tables import render, table
from deeppool.units import format_seconds


@dataclass(frozen=True, slots=True)
class CountPrice:
    """One GPU count of one layer, all other layers left as they are."""

    gpu_count: int
    chosen: bool
    time: float
    """Seconds of the layer in one iteration: reshard + forward + backward + sync."""
    amplification: float
    iteration_time_change: float
    """Seconds against the plan; positive is slower. It can be more than the layer's own: its readers pay transfers."""
    over_limit: tuple[str, ...]
    """Layers that would break the amplification limit."""


@dataclass(frozen=True, slots=True)
class LayerPrices:
    """One layer and all GPU counts that were searched, ascending."""

    name: str
    gpu_count: int
    counts: tuple[CountPrice, ...]
    reason: str
    """What speaks against the next smaller and the next larger count."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """What every GPU count of some layers of a plan would cost."""

    KIND: ClassVar[str] = "price-list"

    model: str
    gpus: int
    global_batch: int
    amplification_limit: float | None
    iteration_time: float
    layers: tuple[LayerPrices, ...]

    def __str__(self) -> str:
        limit = "no limit" if self.amplification_limit is None else f"limit {self.amplification_limit:g}"
        return (
            f"{self.model}, batch {self.global_batch} on {self.gpus} GPUs, {limit}: "
            f"{format_seconds(self.iteration_time)} an iteration; prices of {len(self.layers)} layers"
        )

    def explain(self) -> str:
        """A table for each layer, one GPU count a line."""
        return explain(self)


def price_list(plan: Plan, layer: str | None = None) -> PriceList:
    """The price of every GPU count of one layer, or of all layers.

    Raises:
        InvalidValueError: the plan has no such layer, or was made without prices.
    """
    names = [x.name for x in plan.layers]
    if layer is not None and layer not in names:
        near = difflib.get_close_matches(layer, names, n=3, cutoff=0.3) or names[:3]
        raise InvalidValueError(
            f"no layer '{layer}' among the {len(names)} layers of {plan.model}; there are {', '.join(near)}, … "
            "(deeppool explain PLAN lists all of them)"
        )
    # A layer may have no other choice; a plan has, or its prices were left out.
    if len(plan.gpu_counts) > 1 and not any(x.alternatives for x in plan.layers):
        raise InvalidValueError(
            f"the plan of {plan.model} holds no prices of other GPU counts "
            "(a replan leaves them out: plan again from its profile)"
        )
    wanted = [x for x in plan.layers if layer in (None, x.name)]
    return PriceList(
        model=plan.model,
        gpus=plan.gpus,
        global_batch=plan.global_batch,
        amplification_limit=plan.amplification_limit,
        iteration_time=plan.iteration_time,
        layers=tuple(LayerPrices(x.name, x.gpu_count, _counts(x), reason(x, plan.gpu_counts)) for x in wanted),
    )


def _counts(layer: LayerAssignment) -> tuple[CountPrice, ...]:
    chosen = CountPrice(layer.gpu_count, True, layer.time, layer.amplification, 0.0, ())
    others = (
        CountPrice(
            gpu_count=option.gpu_count,
            chosen=False,
            time=option.amplification * layer.single_gpu_time / option.gpu_count,
            amplification=option.amplification,
            iteration_time_change=option.iteration_time_change,
            over_limit=option.over_limit,
        )
        for option in layer.alternatives
    )
    return tuple(sorted((chosen, *others), key=lambda price: price.gpu_count))


def explain(prices: PriceList) -> str:
    """The list as tables."""
    tables = []
    for layer in prices.layers:
        counts = table("GPUs", "time", "amplification", "iteration", title=layer.name)
        counts.add_column("over the limit")
        for price in layer.counts:
            change = price.iteration_time_change
            verdict = "the plan's" if price.chosen else f"{'+' if change >= 0 else ''}{format_seconds(change)}"
            names = ", ".join("itself" if name == layer.name else name for name in price.over_limit)
            counts.add_row(
                str(price.gpu_count), format_seconds(price.time), f"{price.amplification:.2f}", verdict, names
            )
        tables.append(counts)
    return render(str(prices), *tables)
