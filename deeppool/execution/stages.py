"""Plan → stages: the units in which ranks run layers, and the values that flow between them."""

from dataclasses import dataclass

from deeppool.collectives.layout import Layout
from deeppool.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on the same GPUs."""

    name: str
    """``first … last`` layer."""
    layers: tuple[int, ...]
    layout: Layout


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Stages in the order in which every rank meets them."""
    runs: list[list[int]] = []
    for index, layer in enumerate(plan.layers):
        if runs and plan.layers[runs[-1][-1]].gpus == layer.gpus:
            runs[-1].append(index)
        else:
            runs.append([index])
    return tuple(
        Stage(_name(plan, run), tuple(run), Layout(plan.layers[run[0]].gpus, plan.global_batch)) for run in runs
    )


def _name(plan: Plan, run: list[int]) -> str:
    first, last = plan.layers[run[0]].name, plan.layers[run[-1]].name
    return first if first == last else f"{first} … {last}"
