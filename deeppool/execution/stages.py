"""Plan → stages: the units in which ranks run layers, and the values that flow between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.collectives.layout import Layout
from deeppool.graph.capture.capture import CapturedModel
from deeppool.planning.evaluate.schedule import order_of, stages_in_order
from deeppool.planning.plan import Plan


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


def divided(captured: CapturedModel, stages: Sequence[Stage]) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """Divides stages before each of their layers that has parameters, except the first.

    Returns:
        The divisions in order, and the position of the stage of each.
    """
    layers, parts, stage_of = captured.graph.layers, list[Stage](), list[int]()
    for position, stage in enumerate(stages):
        runs: list[list[int]] = []
        for layer in stage.layers:
            if runs and (not layers[layer].parameters or not any(layers[each].parameters for each in runs[-1])):
                runs[-1].append(layer)
            else:
                runs.append([layer])
        parts += [Stage(_joined(layers[run[0]].name, layers[run[-1]].name), tuple(run), stage.layout) for run in runs]
        stage_of += [position] * len(runs)
    return tuple(parts), tuple(stage_of)


def _name(plan: Plan, run: tuple[int, ...]) -> str:
    return _joined(plan.layers[run[0]].name, plan.layers[run[-1]].name)


def _joined(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"
