"""Why each layer of a plan got its GPUs: what it would cost to give it others."""

import math

from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.plan import Alternative, LayerAssignment, Plan
from deeppool.units import format_seconds, format_tables

WHOLE_ITERATION = "the whole iteration"
"""What breaks a limit on the iteration."""
WIDTH = 120
"""Columns of text, as many as a notebook's cell has on a laptop."""


def alternatives(
    placement: Placement, index: int, limit: float | None, spare_work: float = math.inf
) -> tuple[Alternative, ...]:
    """What each other GPU count of one layer would do to the iteration, all other layers left as they are.

    Only counts for which the layer has room beside what runs at the same time.

    Args:
        placement: the plan.
        index: the layer.
        limit: on the amplification of each layer.
        spare_work: GPU-seconds that a limit on the whole iteration leaves.
    """
    costs = placement.costs
    touched = (index, *placement.readers[index])

    def amplifications(where: Placement) -> dict[int, float]:
        return {i: amplification(where.time(i), where.gpu_count(i), float(costs.compute[i, 0])) for i in touched}

    def work(where: Placement) -> float:
        return sum(where.time(i) * where.gpu_count(i) for i in touched)

    found = []
    for option, count in enumerate(costs.gpu_counts):
        if option == placement.options[index] or count > placement.rooms[index]:
            continue
        other = placement.with_option(index, option)
        after = amplifications(other)
        over = [
            costs.graph.layers[i].name
            for i, value in after.items()
            if limit is not None and value > limit * (1 + TOLERANCE)
        ]
        if work(other) - work(placement) > spare_work * (1 + TOLERANCE):
            over.append(WHOLE_ITERATION)
        change = placement.time_change(other, touched)
        found.append(Alternative(count, change, after[index], tuple(over)))
    return tuple(found)


def explain(plan: Plan) -> str:
    """The plan as a table, one layer a line, each with the reason for its GPU count."""
    from rich import box
    from rich.table import Table

    table = Table(title=str(plan), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for heading in ("GPUs", "time", "amplification"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why not fewer, why not more")
    for layer in plan.layers:
        table.add_row(
            layer.name,
            gpus_text(layer),
            format_seconds(layer.time),
            f"{layer.amplification:.2f}",
            reason(layer, plan.gpu_counts),
        )
    return "\n".join([format_tables(table, width=WIDTH), *_beyond_measured(plan)])


def _beyond_measured(plan: Plan) -> list[str]:
    """A line where all-reduces lean on groups that were not measured."""
    measured = plan.cluster.measured
    if plan.network_model != "measured" or measured is None:
        return []
    most = max(layer.gpu_count for layer in plan.layers)
    if most <= measured.largest_group:
        return []
    return [
        "",
        f"All-reduces of more than {measured.largest_group} GPUs were not measured: they continue those of "
        f"{measured.largest_group} as a ring would (deeppool network --ranks {most} measures them)",
    ]


def gpus_text(layer: LayerAssignment) -> str:
    """``4``, or ``4 (8–11)`` where a branch beside others has GPUs of its own."""
    first, last = layer.gpus[0], layer.gpus[-1]
    where = f" ({first})" if first == last else f" ({first}–{last})"
    return f"{layer.gpu_count}{where if first else ''}"


def reason(layer: LayerAssignment, gpu_counts: tuple[int, ...]) -> str:
    """The next smaller and the next larger of the GPU counts for a layer, and what speaks against each."""
    smaller = [option for option in layer.alternatives if option.gpu_count < layer.gpu_count]
    larger = [option for option in layer.alternatives if option.gpu_count > layer.gpu_count]
    verdicts = [_verdict(layer, option) for option in (*smaller[-1:], *larger[:1])]
    if layer.alternatives and not larger and layer.gpu_count < gpu_counts[-1]:
        more = min(count for count in gpu_counts if count > layer.gpu_count)
        verdicts.append(f"{more}: no room in its lane")
    return "; ".join(verdicts)


def _verdict(layer: LayerAssignment, option: Alternative) -> str:
    change = option.iteration_time_change
    text = f"{option.gpu_count}: {format_seconds(abs(change))} {'slower' if change >= 0 else 'faster'}"
    if option.over_limit:
        names = ", ".join("itself" if name == layer.name else name for name in option.over_limit)
        text += f", but over the limit ({names})" if change < 0 else f", over the limit ({names})"
    elif change < -TOLERANCE * layer.time:
        text += ", but not what this search takes"
    elif change < 0:
        text += " (within rounding)"
    return text
