"""Summary of a plan in three sentences: speed, GPUs per layer, idle GPU time."""

from collections.abc import Iterable

from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.units import format_count, format_seconds

MOST_GROUPS = 4
"""GPU counts listed one by one; a reader skips longer lists."""


def summarise(plan: Plan) -> str:
    """Returns three sentences on a plan; ``plan.explain()`` has the reasons layer by layer."""
    return " ".join((_speed(plan), _layers(plan), _idle(plan)))


def _speed(plan: Plan) -> str:
    against = plan.comparison
    longer = 1 / against.gain - 1
    if abs(longer) < 0.005:
        compared = "as fast as"
    elif longer < 0:
        compared = f"{_ratio(against.gain - 1)} faster than"
    else:
        compared = f"{_percent(longer)} longer than" if longer < 1 else f"{1 + longer:.3g}× as long as"
    used = plan.gpu_seconds / against.fastest.gpu_seconds
    return (
        f"{plan.model} at global batch {plan.global_batch} on {format_count(plan.gpus, 'GPU')} ({plan.cluster.name}) "
        f"takes {format_seconds(plan.iteration_time)} an iteration, {plan.speedup:.3g}× one GPU: {compared} "
        f"{against.name} ({against.baseline_text}), with {_percent(used)} of its GPU-seconds."
    )


def _layers(plan: Plan) -> str:
    groups: dict[int, list[LayerAssignment]] = {}
    for layer in plan.layers:
        groups.setdefault(layer.gpu_count, []).append(layer)
    # The counts that most of the time is spent on; few layers on many GPUs may take no time at all.
    ordered = sorted(groups, key=lambda count: -_time(groups[count]))
    shown, others = sorted(ordered[:MOST_GROUPS], reverse=True), ordered[MOST_GROUPS:]
    total = _time(plan.layers)
    listed = [f"{_count_and_time(groups[count], total)} on {format_count(count, 'GPU')}" for count in shown]
    if others:
        rest = [layer for count in others for layer in groups[count]]
        listed.append(f"{_count_and_time(rest, total)} on {len(others)} other counts")
    return f"Layers, and their share of the time: {', '.join(listed)}."


def _idle(plan: Plan) -> str:
    idle = 1 - plan.gpu_seconds / (plan.gpus * plan.iteration_time)
    limit = plan.amplification_limit
    if limit is None:
        kept = "no limit on amplification"
    elif plan.over_limit:
        kept = (
            f"{len(plan.over_limit)} of {len(plan.layers)} layers are over the limit of {limit:g}× their "
            "GPU-seconds on one GPU"
        )
    elif plan.limit_scope == "layer":
        kept = f"no layer spends more than {limit:g}× its GPU-seconds on one GPU"
    else:
        kept = f"the iteration spends at most {limit:g}× its GPU-seconds on one GPU"
    return (
        f"{_percent(max(idle, 0.0))} of all GPU time is left to a background job "
        f"({kept}; amplification {plan.amplification:.3g}, {plan.optimality})."
    )


def _count_and_time(layers: list[LayerAssignment], total: float) -> str:
    return f"{len(layers)} ({_percent(_time(layers) / total if total else 0.0)})"


def _time(layers: Iterable[LayerAssignment]) -> float:
    return sum(layer.time for layer in layers)


def _percent(fraction: float) -> str:
    """Formats a fraction as ``41 %`` or ``4.1 %``."""
    return f"{round(100 * fraction, 1 if fraction < 0.1 else None):g} %"


def _ratio(change: float) -> str:
    """Formats a change as ``12 %``, or as ``3.4×`` where a percentage would be hard to read."""
    return _percent(change) if change < 1 else f"{1 + change:.3g}×"
