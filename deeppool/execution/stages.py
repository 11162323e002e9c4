"""Plan → stages: the units in which ranks run layers, and the values that flow between them."""

from dataclasses import dataclass

from deeppool.collectives.layout import Layout
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


def _name(plan: Plan, run: tuple[int, ...]) -> str:
    first, last = plan.layers[run[0]].name, plan.layers[run[-1]].name
    return first if first == last else f"{first} … {last}"
