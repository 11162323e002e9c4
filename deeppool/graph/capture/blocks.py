"""Grouping of module layers into blocks: residual blocks, transformer layers, inception modules, found by repetition.

A *container* is a module whose call computes at least two layers. Of the containers that a model calls, from
the outermost inwards, a *block* is one whose kind is called more than once, or that shares its parent with
such a one (Inception-v3 has three ``InceptionA`` and one ``InceptionB``). A kind is a class; that of a plain
``nn.Sequential`` is what it holds.

A container is opened and its inner containers are examined where nothing in it or in its parent repeats (BERT's
encoder), or where it is a series of containers of one kind that every path passes through (a stage of residual
blocks, T5's stack of layers, but not the parallel branches of an inception module, nor a dense block, whose layers
are also read by later ones).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import fx

SEQUENTIAL = "torch.nn.modules.container.Sequential"


def module_call(node: fx.Node) -> tuple[str, str]:
    """Returns (identity of the call, path) of the innermost module of a node; the root's path is empty."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    key, (path, _) = list(stack.items())[-1]
    return ("", "") if key.startswith("_empty") else (key, path.removeprefix("L__self__").lstrip("."))


def modules_with_inner_calls(nodes: Iterable[fx.Node]) -> set[str]:
    """Returns the paths of the modules inside which an operator of another module runs."""
    parts = [path.split(".") for path in {module_call(node)[1] for node in nodes}]
    return {".".join(names[:length]) for names in parts for length in range(1, len(names))}


@dataclass(slots=True)
class _Call:
    """One call of a module."""

    name: str
    """Qualified name of its class."""
    layers: list[int] = field(default_factory=list)
    children: dict[str, "_Call"] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return f"{self.name}[{', '.join(child.name for child in self.children.values())}]" if self.plain else self.name

    @property
    def plain(self) -> bool:
        return self.name == SEQUENTIAL

    def containers(self) -> list["_Call"]:
        return [child for child in self.children.values() if len(child.layers) > 1]

    def descendants(self) -> Iterator["_Call"]:
        yield self
        for child in self.children.values():
            yield from child.descendants()


def block_calls(groups: Sequence[Sequence[fx.Node]]) -> list[int | None]:
    """Returns the block number of each module layer, None outside of blocks, by the layer's first operator."""
    root = _calls(groups)
    owner = {node: index for index, group in enumerate(groups) for node in group}
    sources = [{owner[arg] for node in group for arg in node.all_input_nodes if arg in owner} for group in groups]
    count = Counter(call.kind for call in root.descendants() if len(call.layers) > 1)
    found: list[int | None] = [None] * len(groups)

    def visit(parent: _Call) -> None:
        containers = parent.containers()
        repeats = any(count[call.kind] > 1 for call in containers)
        for call in containers:
            if repeats and not _is_series(call, sources):
                for layer in call.layers:
                    found[layer] = call.layers[0]
            else:
                visit(call)

    visit(root)
    return found


def _calls(groups: Sequence[Sequence[fx.Node]]) -> _Call:
    """Builds the tree of module calls; its leaves are modules without inner calls."""
    root = _Call("")
    for index, group in enumerate(groups):
        call = root
        for key, (path, name) in (group[0].meta.get("nn_module_stack") or {}).items():
            if path.removeprefix("L__self__") and not key.startswith("_empty"):
                call = call.children.setdefault(key, _Call(name))
                call.layers.append(index)
    return root


def _is_series(call: _Call, sources: list[set[int]]) -> bool:
    """Whether some kind is called at least twice directly inside, and every path passes through each such call."""
    inside = call.containers()
    while any(child.plain for child in inside):
        inside = [inner for child in inside for inner in (child.containers() if child.plain else [child])]
    of_kind: dict[str, list[_Call]] = {}
    for child in inside:
        of_kind.setdefault(child.kind, []).append(child)
    return any(
        len(calls) > 1 and all(not _is_bypassed(child, call, sources) for child in calls) for calls in of_kind.values()
    )


def _is_bypassed(child: _Call, call: _Call, sources: list[set[int]]) -> bool:
    """Whether a path inside ``call`` leads from before ``child`` to after it without passing through it."""
    first, last, own = child.layers[0], child.layers[-1], set(child.layers)
    reached = {layer for layer in call.layers if layer < first}
    for layer in call.layers:
        if layer > first and layer not in own and sources[layer] & reached:
            reached.add(layer)
    return any(layer > last for layer in reached)
