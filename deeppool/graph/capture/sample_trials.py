"""Trials of operators on random numbers: does the result of some samples depend on which others there are?

A region of operators is run on a batch, and again on a few of its samples in another order. Its samples are independent
if these get the results that they had in the batch. A dependence can vanish on some numbers (behind a clamp that all
of them reach, for example), so there are several draws of different signs and scales, in float64 where the operators
take it; what is independent on all of them is taken to be so.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from deeppool.graph.capture.index_ranges import value_count
from deeppool.graph.capture.sample_layout import Layout, possible_layouts, take, value_at
from deeppool.graph.capture.sample_rules import is_size

BATCH = 6
SUBSETS = ((4, 1), (5, 0, 2), (3, 1, 0, 5))
"""Samples that are run without the others. No single one, for which some operators drop the dimension."""
Draw = Callable[[torch.Tensor], torch.Tensor]
DRAWS: tuple[Draw, ...] = (
    torch.abs,
    lambda normal: normal,
    lambda normal: 30 * normal,
)
"""Floating-point inputs, from normally distributed numbers; the positive ones have roots and logarithms."""

WIDE = (torch.float64, torch.complex128)
Values = dict[fx.Node, torch.Tensor]
Possible = list[list[Layout]]
"""Of each output."""


def find_layouts(
    region: Sequence[fx.Node], inputs: dict[fx.Node, Layout], outputs: list[torch.Tensor]
) -> list[Layout] | None:
    """Returns where the outputs of the last operator count samples, or None if samples depend on each other.

    Args:
        region: operators in execution order.
        inputs: tensors that the region reads, and where they count samples.
        outputs: outputs of the last operator, of symbolic shapes.
    """
    possible = [possible_layouts(value) for value in outputs]
    # A generator of its own: capture draws no numbers that the training would draw.
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for draw in 2 * DRAWS:
            drawn = {node: _random(node, draw, generator) for node in inputs}
            possible = _tried(region, inputs, drawn, possible)
    return [layouts[0] for layouts in possible] if all(possible) else None


def _tried(region: Sequence[fx.Node], inputs: dict[fx.Node, Layout], drawn: Values, possible: Possible) -> Possible:
    """Returns the consistent layouts; none of operators that do not take the numbers."""
    for cast in (_widened, torch.Tensor.to):
        data = {node: cast(value, node.meta["val"].dtype) for node, value in drawn.items()}
        try:
            return _consistent(region, inputs, data, possible)
        except Exception:
            # Some operators have no float64, or mix what they read with a fixed dtype.
            continue
    return [[] for _ in possible]


def _consistent(region: Sequence[fx.Node], inputs: dict[fx.Node, Layout], data: Values, possible: Possible) -> Possible:
    """Returns those of the possible layouts of each output by which each subset has the results of the batch."""
    whole = _run(region, data, BATCH)
    for chosen in SUBSETS:
        part = _run(region, {node: take(x, inputs[node], BATCH, chosen) for node, x in data.items()}, len(chosen))
        possible = [
            [layout for layout in layouts if _equal(take(expected, layout, BATCH, chosen), found)]
            for layouts, expected, found in zip(possible, whole, part, strict=True)
        ]
    return possible


def _run(region: Sequence[fx.Node], data: Values, batch: int) -> list[torch.Tensor]:
    """Runs a region; returns the outputs of its last operator."""
    values: dict[fx.Node, Any] = dict(data)

    def value(node: fx.Node) -> Any:
        if node in values:
            return values[node]
        if is_size(node):
            return value_at(node.meta["val"], batch)
        return attrgetter(str(node.target))(node.graph.owning_module)

    for node in region:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return pytree.tree_leaves(values[region[-1]])


def _random(node: fx.Node, draw: Draw, generator: torch.Generator) -> torch.Tensor:
    """Draws numbers for all but integers of the model, such as a mask, which would hide what it lets through."""
    value = node.meta["val"]
    shape = [value_at(size, BATCH) for size in value.shape]
    if value.is_floating_point() or value.is_complex():
        drawn = draw(torch.randn(shape, generator=generator, dtype=WIDE[value.is_complex()]))
    elif node.op == "get_attr":
        drawn = attrgetter(str(node.target))(node.graph.owning_module)
    else:
        drawn = torch.randint(value_count(node), shape, generator=generator)
    return drawn.to(value.device)


def _widened(drawn: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers in the most precise dtype of a kind."""
    return drawn.to(WIDE[dtype.is_complex] if dtype.is_floating_point or dtype.is_complex else dtype)


def _equal(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if expected.shape != found.shape or not (found.is_floating_point() or found.is_complex()):
        return torch.equal(expected, found)
    tolerance = torch.finfo(found.dtype).eps ** 0.6
    # Sums of large numbers differ by the order in which batches of different sizes are summed.
    scale = float(expected.abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
    return torch.allclose(expected, found, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
