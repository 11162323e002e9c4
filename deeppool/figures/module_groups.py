"""Groups of consecutive layers that are one module each, so that a model of a thousand layers fits on a page.

blocks.0.norm  blocks.0.linear  blocks.1.norm  blocks.1.linear  head
└───────── blocks.0 ─────────┘  └───────── blocks.1 ─────────┘  └──┘
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

FEW = 12
"""Number of modules below which several of the next level share a group, if that level does not fit."""


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """Consecutive layers that are drawn as one node."""

    name: str
    """Name of the layer or of the module; of several modules the first and the last."""
    first: int
    end: int
    """Index of the first layer after it."""

    @property
    def size(self) -> int:
        """Number of layers."""
        return self.end - self.first


def module_groups(names: Sequence[str], part: range, most: int) -> tuple[ModuleGroup, ...]:
    """Divides layers into at most ``most`` groups, along their modules as far as there is room for.

    Args:
        names: names of all layers of a model, in order of execution; dots separate modules.
        part: consecutive indices of the layers to divide.
        most: number of groups that fit.
    """
    levels = [_level(names, part, depth) for depth in range(1, 1 + max(names[i].count(".") + 1 for i in part))]
    fitting = [level for level in levels if len(level) <= most]
    if fitting and (fitting[-1] == levels[-1] or len(fitting[-1]) >= min(FEW, most)):
        return fitting[-1]
    finer = levels[len(fitting)]
    size = -(-len(finer) // most)
    return tuple(_joined(finer[start : start + size]) for start in range(0, len(finer), size))


def part_of_module(names: Sequence[str], module: str) -> range:
    """Returns the indices from the first to the last layer of a module; empty if there is none of this name."""
    found = [index for index, name in enumerate(names) if name == module or name.startswith(f"{module}.")]
    return range(found[0], found[-1] + 1) if found else range(0)


def _level(names: Sequence[str], part: range, depth: int) -> tuple[ModuleGroup, ...]:
    """Groups consecutive layers whose names agree in their first ``depth`` parts."""
    runs = [tuple(run) for _, run in groupby(part, lambda index: names[index].split(".")[:depth])]
    return tuple(
        ModuleGroup(names[run[0]] if len(run) == 1 else ".".join(names[run[0]].split(".")[:depth]), run[0], run[-1] + 1)
        for run in runs
    )


def _joined(groups: Sequence[ModuleGroup]) -> ModuleGroup:
    first, last = groups[0], groups[-1]
    return ModuleGroup(first.name if first is last else f"{first.name} … {last.name}", first.first, last.end)
