"""Text on why each layer of a plan got its GPU count: the cost of the next smaller and the next larger one."""

from collections.abc import Sequence

from deeppool.costs.amplification import TOLERANCE
from deeppool.planning.layer_assignment import AlternativeCost, LayerAssignment
from deeppool.planning.report.tables import render, table
from deeppool.units import format_seconds

WIDTH = 120
"""Columns of text that a notebook's cell has on a laptop."""
MOST_NAME = 48
"""Columns of a layer's name; the rest of a longer one is on the next line."""


def layers_text(title: str, layers: Sequence[LayerAssignment], gpu_counts: tuple[int, ...], why_not_faster: str) -> str:
    """Returns a table with one line per layer and the reason for its GPU count.

    Args:
        title: line above the table.
        layers: layers of a plan.
        gpu_counts: GPU counts that were searched, ascending.
        why_not_faster: see :func:`reason`.
    """
    rows = table("layer", "GPUs", "time", "amplification", title=title)
    # Wider than this, names would leave no room for the numbers.
    rows.columns[0].width = max(5, min(MOST_NAME, max(len(layer.name) for layer in layers)))
    rows.add_column("why not fewer, why not more", overflow="fold")
    explained = is_explained(layers)
    for layer in layers:
        why = reason(layer, gpu_counts, why_not_faster) if explained else ""
        rows.add_row(layer.name, _gpus_text(layer), format_seconds(layer.time), f"{layer.amplification:.2f}", why)
    return render(rows, width=WIDTH)


def _gpus_text(layer: LayerAssignment) -> str:
    """Returns ``4``, or ``4 (8–11)`` where a branch has GPUs of its own."""
    first, last = layer.gpus[0], layer.gpus[-1]
    where = f" ({first})" if first == last else f" ({first}–{last})"
    return f"{layer.gpu_count}{where if first else ''}"


def is_explained(layers: Sequence[LayerAssignment]) -> bool:
    """Returns whether the layers of a plan hold the costs of other GPU counts; those of a replan do not."""
    return any(layer.alternatives for layer in layers)


def reason(layer: LayerAssignment, gpu_counts: tuple[int, ...], why_not_faster: str) -> str:
    """Returns the next smaller and the next larger GPU count of a layer of an explained plan, and their drawbacks.

    Args:
        layer: the layer.
        gpu_counts: GPU counts that were searched, ascending.
        why_not_faster: why the plan may leave out counts that keep the limit and make an iteration faster.
    """
    smaller = [option for option in layer.alternatives if option.gpu_count < layer.gpu_count]
    larger = [option for option in layer.alternatives if option.gpu_count > layer.gpu_count]
    verdicts = [_verdict(layer, option, why_not_faster) for option in (*smaller[-1:], *larger[:1])]
    if not larger and layer.gpu_count < gpu_counts[-1]:
        # Other branches use the GPUs behind its own, or these end with the node.
        more = min(count for count in gpu_counts if count > layer.gpu_count)
        verdicts.append(f"{more}: no room from GPU {layer.gpus[0]} on")
    return "; ".join(verdicts)


def over_limit_text(layer_name: str, over_limit: tuple[str, ...]) -> str:
    """Returns the layers over the limit, separated by commas; the layer that changes is called ``itself``."""
    return ", ".join("itself" if name == layer_name else name for name in over_limit)


def _verdict(layer: LayerAssignment, option: AlternativeCost, why_not_faster: str) -> str:
    change = option.iteration_time_change
    text = f"{option.gpu_count}: {format_seconds(abs(change))} {'slower' if change >= 0 else 'faster'}"
    if option.over_limit:
        text += f"{', but' * (change < 0) or ','} over the limit ({over_limit_text(layer.name, option.over_limit)})"
    elif change < -TOLERANCE * layer.time:
        text += f", but not taken: {why_not_faster}"
    elif change < 0:
        text += " (within rounding)"
    return text
