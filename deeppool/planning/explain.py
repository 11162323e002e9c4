"""Why each layer of a plan got its GPUs: what it would cost to give it others."""

import io
import math

from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.costs.table import CostTable
from deeppool.planning.plan import Alternative, LayerAssignment, Plan
from deeppool.units import format_seconds

WHOLE_ITERATION = "the whole iteration"
"""What breaks a limit on the iteration."""


def incoming_times(costs: CostTable, choices: tuple[int, ...]) -> list[float]:
    """Per layer, seconds to bring its inputs to its GPUs, and the gradients back."""
    return [_incoming(costs, choices, index) for index in range(len(choices))]


def _incoming(costs: CostTable, choices: tuple[int, ...], index: int) -> float:
    layer = costs.graph.layers[index]
    return sum(
        float(costs.comm(size)[choices[source], choices[index]])
        for source, size in zip(layer.predecessors, layer.input_bytes, strict=True)
    )


def alternatives(
    costs: CostTable, choices: tuple[int, ...], index: int, limit: float | None, spare_work: float = math.inf
) -> tuple[Alternative, ...]:
    """What each other GPU count of one layer would do to the iteration, all other layers left as they are.

    Args:
        costs: prices.
        choices: the plan, per layer the index of its GPU count.
        index: the layer.
        limit: on the amplification of each layer.
        spare_work: GPU-seconds that a limit on the whole iteration leaves.
    """
    touched = (index, *(i for i, layer in enumerate(costs.graph.layers) if index in layer.predecessors))

    def times(picked: tuple[int, ...]) -> dict[int, float]:
        return {
            i: _incoming(costs, picked, i) + float(costs.compute[i, picked[i]] + costs.sync[i, picked[i]])
            for i in touched
        }

    def work(picked: tuple[int, ...], seconds: dict[int, float]) -> float:
        return sum(time * costs.gpu_counts[picked[i]] for i, time in seconds.items())

    now = times(choices)
    found = []
    for option, count in enumerate(costs.gpu_counts):
        if option == choices[index]:
            continue
        picked = (*choices[:index], option, *choices[index + 1 :])
        then = times(picked)
        amplifications = {
            i: amplification(time, costs.gpu_counts[picked[i]], float(costs.compute[i, 0])) for i, time in then.items()
        }
        over = [
            costs.graph.layers[i].name
            for i, value in amplifications.items()
            if limit is not None and value > limit * (1 + TOLERANCE)
        ]
        if work(picked, then) - work(choices, now) > spare_work * (1 + TOLERANCE):
            over.append(WHOLE_ITERATION)
        change = sum(then.values()) - sum(now.values())
        found.append(Alternative(count, change, amplifications[index], tuple(over)))
    return tuple(found)


def explain(plan: Plan) -> str:
    """The plan as a table, one layer a line, each with the reason for its GPU count."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(plan), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for heading in ("GPUs", "time", "amplification"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why not fewer, why not more")
    for layer in plan.layers:
        table.add_row(
            layer.name, str(layer.gpu_count), format_seconds(layer.time), f"{layer.amplification:.2f}", reason(layer)
        )
    stream = io.StringIO()
    Console(file=stream, width=140, no_color=True).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().strip().splitlines())


def reason(layer: LayerAssignment) -> str:
    """The next smaller and the next larger GPU count of a layer, and what speaks against each."""
    smaller = [option for option in layer.alternatives if option.gpu_count < layer.gpu_count]
    larger = [option for option in layer.alternatives if option.gpu_count > layer.gpu_count]
    return "; ".join(_verdict(layer, option) for option in (*smaller[-1:], *larger[:1]))


def _verdict(layer: LayerAssignment, option: Alternative) -> str:
    change = option.iteration_time_change
    text = f"{option.gpu_count}: {format_seconds(abs(change))} {'slower' if change >= 0 else 'faster'}"
    if option.over_limit:
        names = ", ".join("itself" if name == layer.name else name for name in option.over_limit)
        text += f", but over the limit ({names})" if change < 0 else f", over the limit ({names})"
    elif change < -TOLERANCE * layer.time:
        text += ", but not among the plans of a bounded search"
    elif change < 0:
        text += " (within rounding)"
    return text
