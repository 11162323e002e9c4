"""``dp.diff``: differences between two plans of a model, with the parts of each layer's time that changed."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.arguments import typed
from deeppool.cluster.cluster import MAXIMUM_GPUS
from deeppool.costs.amplification import TOLERANCE
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.planning.report.tables import render, table
from deeppool.units import format_bytes, format_growth, format_seconds

Value = bool | int | float | str | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RequestChange:
    """One option in which the requests of the two plans differ."""

    name: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True)
class TotalChange:
    """Change of one total of the plan."""

    before: float
    after: float
    change: float
    """Value after minus value before."""


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """GPUs and times of one layer in one of the plans. Times are seconds of one iteration."""

    gpus: tuple[int, ...]
    time: float
    forward: float
    backward: float
    reshard: float
    sync: float
    amplification: float

    def __post_init__(self) -> None:
        if not self.gpus or not all(0 <= gpu < MAXIMUM_GPUS for gpu in self.gpus):
            raise InvalidValueError(f"a layer is on GPUs within 0…{MAXIMUM_GPUS - 1}, got {self.gpus[:9]}")


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer whose GPUs or time changed. Changes are seconds; positive is slower."""

    name: str
    before: PlacedLayer
    after: PlacedLayer
    change: float
    """Change of the layer's time: compute + reshard + sync."""
    compute: float
    """Change of forward and backward, by another per-GPU batch or other layer times."""
    reshard: float
    """Change of the transfers of its inputs and their gradients: this layer or one that it reads has other GPUs."""
    sync: float
    """Change of the all-reduce of its gradients."""


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Differences between two plans of one graph."""

    KIND: ClassVar[str] = "diff"

    model: str
    request: tuple[RequestChange, ...]
    """Options in which the requests differ; also the buckets that were chosen."""
    iteration_time: TotalChange
    gpu_seconds: TotalChange
    amplification: TotalChange
    layers: tuple[LayerChange, ...]
    """Changed layers in the model's order. Changes of branches that run side by side do not add up."""
    unchanged_layers: int
    memory: TotalChange | None = None
    """Bytes on the GPU that holds most; None if either plan lacks them."""

    def __post_init__(self) -> None:
        if self.iteration_time.before <= 0:
            raise InvalidValueError(f"an iteration takes some time, got {self.iteration_time.before:g} s before")

    def explain(self) -> str:
        """Returns tables of the changes: the request, the totals, and a line for each changed layer."""
        return _diff_text(self)

    def __str__(self) -> str:
        count = len(self.layers) + self.unchanged_layers
        time = self.iteration_time
        if not self.layers and not self.request:
            return f"{self.model}: the same plan, {format_seconds(time.after)} an iteration, {count} layers unchanged"
        return (
            f"{self.model}: {format_seconds(time.before)} → {format_seconds(time.after)} an iteration "
            f"({format_growth(time.change / time.before)}), {self.unchanged_layers} of {count} layers unchanged"
        )


@typed
def diff(before: Plan, after: Plan) -> PlanDiff:
    """Returns the differences from ``before`` to ``after``.

    Raises:
        PlanError: the plans are of different graphs.
    """
    names = [tuple(layer.name for layer in plan.layers) for plan in (before, after)]
    if before.graph_fingerprint != after.graph_fingerprint or names[0] != names[1]:
        of = [f"{x.model} (fingerprint {x.graph_fingerprint}, {len(x.layers)} layers)" for x in (before, after)]
        raise PlanError(
            f"the plans are of different graphs: {' and '.join(of)} (compare plans of one model and input shape)"
        )
    pairs = zip(before.layers, after.layers, strict=True)
    layers = tuple(_layer_change(old, new) for old, new in pairs if _differ(old, new))
    return PlanDiff(
        model=after.model,
        request=_request_changes(before, after),
        iteration_time=_change(before.iteration_time, after.iteration_time),
        gpu_seconds=_change(before.gpu_seconds, after.gpu_seconds),
        amplification=_change(before.amplification, after.amplification),
        layers=layers,
        unchanged_layers=len(before.layers) - len(layers),
        memory=_change(_peak(before), _peak(after)) if before.memory and after.memory else None,
    )


def _peak(plan: Plan) -> int:
    """Returns the bytes on the GPU that holds most."""
    return max(use.total for use in plan.memory)


def _change(before: float, after: float) -> TotalChange:
    return TotalChange(before, after, after - before)


def _request_changes(before: Plan, after: Plan) -> tuple[RequestChange, ...]:
    old, new = _request(before), _request(after)
    return tuple(RequestChange(name, old[name], new[name]) for name in old if old[name] != new[name])


def _request(plan: Plan) -> dict[str, Value]:
    """Returns the options of the request, and the buckets that were chosen for it."""
    cluster, network = plan.cluster, plan.cluster.measured
    return {
        "gpus": plan.gpus,
        "global_batch": plan.global_batch,
        "amplification_limit": plan.amplification_limit,
        "limit_scope": plan.limit_scope,
        "goal": plan.goal,
        "background": plan.background.model if plan.background else None,
        "search": plan.search,
        "overlap_sync": plan.overlap_sync,
        "buckets": str(plan.buckets) if plan.overlap_sync else None,
        "optimizer": plan.optimizer,
        "gpu_counts": plan.gpu_counts,
        "network_model": plan.network_model,
        "cluster": cluster.name,
        "gpus_per_node": cluster.gpus_per_node,
        "inside_bandwidth": cluster.inside.bandwidth,
        "inside_latency": cluster.inside.latency,
        "between_bandwidth": cluster.between.bandwidth,
        "between_latency": cluster.between.latency,
        "measured_network": f"{network.ranks} ranks, {network.backend}, {network.date}" if network else None,
        "memory": cluster.memory,
        "profile": plan.profile_fingerprint,
        "provenance": plan.provenance,
        "device": plan.device_name,
        "precision": plan.precision,
    }


PARTS = ("forward", "backward", "reshard", "sync")


def _differ(old: LayerAssignment, new: LayerAssignment) -> bool:
    rounding = TOLERANCE * max(old.time, new.time)
    return old.gpus != new.gpus or any(
        not math.isclose(getattr(old, part), getattr(new, part), rel_tol=TOLERANCE, abs_tol=rounding) for part in PARTS
    )


def _layer_change(old: LayerAssignment, new: LayerAssignment) -> LayerChange:
    return LayerChange(
        name=new.name,
        before=_placed(old),
        after=_placed(new),
        change=new.time - old.time,
        compute=new.forward + new.backward - (old.forward + old.backward),
        reshard=new.reshard - old.reshard,
        sync=new.sync - old.sync,
    )


def _placed(layer: LayerAssignment) -> PlacedLayer:
    return PlacedLayer(
        layer.gpus, layer.time, layer.forward, layer.backward, layer.reshard, layer.sync, layer.amplification
    )


def _diff_text(changes: PlanDiff) -> str:
    """Returns the changes as tables; one line if there are none."""
    if not changes.layers and not changes.request:
        return str(changes)
    parts = []
    if changes.request:
        request = table("request", "before", "after")
        for item in changes.request:
            request.add_row(item.name, _value(item.name, item.before), _value(item.name, item.after))
        parts.append(request)
    totals = table("total", "before", "after", "change")
    for name, total, text in (
        ("iteration time", changes.iteration_time, format_seconds),
        ("GPU-seconds", changes.gpu_seconds, format_seconds),
        ("amplification", changes.amplification, lambda ratio: f"{ratio:.2f}"),
        ("memory of the fullest GPU", changes.memory, format_bytes),
    ):
        if total is None:
            continue
        relative = f" ({format_growth(total.change / total.before)})" if total.before else ""
        totals.add_row(name, text(total.before), text(total.after), _signed(total.change, text) + relative)
    parts.append(totals)
    if changes.layers:
        layers = table("layer", "GPUs", "time", "change", "= compute", "+ reshard", "+ sync")
        for layer in changes.layers:
            by_part = (layer.change, layer.compute, layer.reshard, layer.sync)
            layers.add_row(
                layer.name,
                _arrow(_gpus(layer.before.gpus), _gpus(layer.after.gpus)),
                _arrow(format_seconds(layer.before.time), format_seconds(layer.after.time)),
                *(_part(seconds, layer) for seconds in by_part),
            )
        parts.append(layers)
    return render(str(changes), *parts)


def _value(name: str, value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if name == "memory" and not isinstance(value, str):
        return format_bytes(value)
    if name.endswith("_bandwidth") and not isinstance(value, str):
        return f"{format_bytes(value)}/s"
    if name.endswith("_latency") and not isinstance(value, str):
        return format_seconds(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _signed(value: float, text: Callable[[float], str]) -> str:
    return ("+" if value > 0 else "") + text(value)


def _part(seconds: float, layer: LayerChange) -> str:
    """Returns a change in a layer's time, or a dash if it is within rounding."""
    if abs(seconds) <= TOLERANCE * max(layer.before.time, layer.after.time):
        return "–"
    return _signed(seconds, format_seconds)


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _gpus(gpus: Iterable[int]) -> str:
    """Returns the number of GPUs, and which unless they are the first ones: ``4``, ``4 (4-7)``, ``2 (0,3)``."""
    found = list(gpus)
    first, last = found[0], found[-1]
    if found == list(range(len(found))):
        return str(len(found))
    run = f"{first}-{last}" if len(found) > 1 and found == list(range(first, last + 1)) else ",".join(map(str, found))
    return f"{len(found)} ({run})"
