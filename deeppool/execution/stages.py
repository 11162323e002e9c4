"""Plan → stages: the units in which ranks run layers, and the values that flow between them."""

from collections.abc import Iterator
from dataclasses import dataclass

from deeppool.collectives.layout import Layout
from deeppool.planning.evaluate.schedule import Order, order_of
from deeppool.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on the same GPUs."""

    name: str
    """Names of its first and last layer: ``first … last``."""
    layers: tuple[int, ...]
    layout: Layout


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Returns the stages in the order in which every rank meets them: that of the plan's schedule, branch by branch.

    A stage ends where lanes begin or meet: one that went on would keep a lane waiting for the others.
    """
    return tuple(
        Stage(_name(plan, run), run, Layout(plan.layers[run[0]].gpus, plan.global_batch))
        for run in _runs(plan, order_of(plan.tree, plan.gpu_sets))
    )


def _runs(plan: Plan, order: Order) -> Iterator[tuple[int, ...]]:
    run: list[int] = []
    for step in order:
        if run and (not isinstance(step, int) or plan.layers[step].gpus != plan.layers[run[-1]].gpus):
            yield tuple(run)
            run = []
        if isinstance(step, int):
            run.append(step)
        else:
            for lane in step:
                yield from _runs(plan, lane)
    if run:
        yield tuple(run)


def _name(plan: Plan, run: tuple[int, ...]) -> str:
    first, last = plan.layers[run[0]].name, plan.layers[run[-1]].name
    return first if first == last else f"{first} … {last}"
