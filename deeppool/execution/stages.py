"""Plan → stages: the units in which ranks run layers, and the values that flow between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deeppool.collectives.buckets import Buckets
from deeppool.collectives.layout import Layout
from deeppool.planning.evaluate.schedule import order_of, stages_in_order
from deeppool.planning.plan import Plan

if TYPE_CHECKING:
    from deeppool.graph.capture.capture import CapturedModel


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on the same GPUs."""

    name: str
    """Names of its first and last layer: ``first … last``."""
    layers: tuple[int, ...]
    layout: Layout


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Returns the stages in the order in which every rank meets them: that of the plan's schedule, branch by branch."""
    return tuple(
        Stage(_name(plan, run), run, Layout(plan.layers[run[0]].gpus, plan.global_batch))
        for run in stages_in_order(order_of(plan.tree, plan.gpu_sets), plan.gpu_sets)
    )


Division = Literal["layers", "buckets"]
"""Division of a stage into parts: before each layer with parameters, or where a bucket of gradients is complete."""


def divided(
    captured: "CapturedModel", stages: Sequence[Stage], by: Division, buckets: Buckets
) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """Divides stages into parts that are computed one after another.

    Args:
        captured: the model.
        stages: all of the plan, in order.
        by: what the parts are.
        buckets: rule that groups the gradients of a stage.

    Returns:
        The parts in order, and the position of the stage of each.
    """
    layers, parts, stage_of = captured.graph.layers, list[Stage](), list[int]()
    for position, stage in enumerate(stages):
        starts = _with_parameters(captured, stage) if by == "layers" else _bucket_ends(captured, stage, buckets)
        runs: list[list[int]] = []
        for layer in stage.layers:
            if runs and layer not in starts:
                runs[-1].append(layer)
            else:
                runs.append([layer])
        parts += [Stage(_joined(layers[run[0]].name, layers[run[-1]].name), tuple(run), stage.layout) for run in runs]
        stage_of += [position] * len(runs)
    return tuple(parts), tuple(stage_of)


def _with_parameters(captured: "CapturedModel", stage: Stage) -> set[int]:
    """Returns the layers of a stage that have parameters, except the first."""
    return set([layer for layer in stage.layers if captured.graph.layers[layer].parameters][1:])


def _bucket_ends(captured: "CapturedModel", stage: Stage, rule: Buckets) -> set[int]:
    """Returns the layers of a stage of several ranks whose backward completes a bucket of gradients."""
    if len(stage.layout.gpus) < 2:
        return set()
    parameters = dict(captured.program.named_parameters())
    layer_of: dict[str, int] = {}
    for layer in stage.layers:
        for name in captured.graph.layers[layer].parameters:
            layer_of.setdefault(name, layer)
    backward = list(reversed(layer_of))
    sizes, types = ([getattr(parameters[name], what) for name in backward] for what in ("nbytes", "dtype"))
    buckets = rule.group(sizes, types)
    return {layer_of[backward[bucket[-1]]] for bucket in buckets}


def _name(plan: Plan, run: tuple[int, ...]) -> str:
    return _joined(plan.layers[run[0]].name, plan.layers[run[-1]].name)


def _joined(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"
