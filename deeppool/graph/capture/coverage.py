"""Coverage of a model by its captured graph, and warnings for planning."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import fx

from deeppool.graph.capture.batch_sizes import multiple_of_batch
from deeppool.graph.capture.blocks import module_call
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.functionalize import DROPOUTS
from deeppool.graph.capture.grouping import operator_name
from deeppool.graph.capture.index_ranges import value_count
from deeppool.graph.layer import LayerGraph
from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, decompose, parts_of
from deeppool.units import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class Coverage:
    """Layers, operators and parameters of a captured graph, compared with its model."""

    layers: int
    distinct: int
    """Number of distinct layers, which are measured."""
    operators: tuple[tuple[str, int], ...]
    """Names and numbers of calls, most frequent first."""
    structure: str
    """``chain``, ``series-parallel``, or the sizes of its non-series-parallel regions."""
    parameter_bytes: int
    """Bytes of all parameters of the model, tied ones once."""
    trained_bytes: int
    """Bytes of parameters that the loss depends on and that are trained."""
    frozen_bytes: int
    """Bytes of parameters that the loss depends on and that require no gradient."""
    unread: tuple[str, ...]
    """Modules whose parameters the loss does not depend on."""
    warnings: tuple[str, ...]
    """Warnings, a sentence each."""

    @property
    def share(self) -> float:
        """Fraction of the parameter bytes that the loss depends on; 1 for a model without parameters."""
        return (self.trained_bytes + self.frozen_bytes) / self.parameter_bytes if self.parameter_bytes else 1.0

    def __str__(self) -> str:
        calls = sum(count for _, count in self.operators)
        frozen = f", {format_bytes(self.frozen_bytes)} frozen" if self.frozen_bytes else ""
        return (
            f"{format_count(self.layers, 'layer')} ({self.distinct} distinct) of {format_count(calls, 'operator')}, "
            f"{self.structure}; "
            f"{100 * self.share:.4g} % of {format_bytes(self.parameter_bytes)} of parameters{frozen}"
        )


def coverage(captured: CapturedModel) -> Coverage:
    """Compares a graph with the model that it was captured from."""
    graph, model = captured.graph, captured.source
    read = _read_parameters(captured)
    owned = list(model.named_parameters())
    unread = tuple(dict.fromkeys(name.rpartition(".")[0] or name for name, x in owned if id(x) not in read))
    frozen = sum(_size(x) for _, x in owned if id(x) in read and not x.requires_grad)
    return Coverage(
        layers=len(graph.layers),
        distinct=len({layer.signature for layer in graph.layers}),
        operators=tuple(Counter(name for layer in graph.layers for name in layer.operators).most_common()),
        structure=structure(graph),
        parameter_bytes=sum(_size(x) for _, x in owned),
        trained_bytes=sum(_size(x) for _, x in owned if id(x) in read and x.requires_grad),
        frozen_bytes=frozen,
        unread=unread,
        warnings=tuple(_warnings(captured, unread)),
    )


def structure(graph: LayerGraph) -> str:
    """Returns ``chain``, ``series-parallel``, or the sizes of the regions that are neither."""
    parts = list(parts_of(decompose([layer.predecessors for layer in graph.layers])))
    regions = [str(len(part.layers)) for part in parts if isinstance(part, NonSeriesParallel)]
    if regions:
        return f"non-series-parallel region{'s' * (len(regions) > 1)} of {', '.join(regions)} layers"
    return "series-parallel" if any(isinstance(part, ParallelBlock) for part in parts) else "chain"


def _read_parameters(captured: CapturedModel) -> set[int]:
    """Returns the identities of the attributes that the loss depends on."""
    waiting = [captured.program.graph.output_node()]
    seen = set(waiting)
    for node in waiting:
        waiting += [arg for arg in node.all_input_nodes if arg not in seen]
        seen.update(node.all_input_nodes)
    return {id(attrgetter(str(node.target))(captured.program)) for node in seen if node.op == "get_attr"}


def _size(parameter: torch.nn.Parameter) -> int:
    return parameter.numel() * parameter.element_size()


def _warnings(captured: CapturedModel, unread: tuple[str, ...]) -> Iterator[str]:
    graph, model = captured.graph, captured.source
    if not model.training:
        yield (
            "the model was captured in evaluation mode: dropout does nothing and BatchNorm uses its running "
            "statistics (call model.train() before capturing, to plan its training)"
        )
    if unread:
        yield (
            f"the loss needs no parameters of {_some(unread)}: they get no gradient (is the output that needs them in "
            "the loss?)"
        )
    target = [node for node in captured.program.graph.nodes if node.op == "placeholder"][-1]
    if value_count(target) == 1:
        yield (
            "the scores have one class: their cross-entropy is 0 whatever the model computes, and nothing is learned "
            "(give loss=, such as torch.nn.functional.binary_cross_entropy_with_logits)"
        )
    normalised = [layer.name for layer in graph.layers if "batch_norm" in layer.operators]
    if normalised and model.training:
        yield (
            f"{format_count(len(normalised), 'layer')} with BatchNorm: where one is split over GPUs, each takes the "
            "statistics of its own samples, as in DDP (dp.TrainingJob(synchronise_batch_norm=True) takes those of all)"
        )
    drawing = [
        layer.name
        for layer, group in zip(graph.layers, captured.nodes, strict=True)
        if any(_draws_on_each_rank(node) for node in group)
    ]
    if drawing:
        yield (
            f"{format_count(len(drawing), 'layer')} ({_some(tuple(drawing))}) with random numbers other than an "
            "nn.Dropout's, as the dropout of fused attention or of an LSTM, or a drop path by bernoulli_: each GPU "
            "draws its own, as in DDP, and a training depends on the plan (self_attn.dropout = 0.0 turns that of "
            "attention off)"
        )
    for layer, group in zip(graph.layers, captured.nodes, strict=True):
        modules = _joined_by_second_dim(group, captured.batch_symbols)
        if len(modules) > 1:
            yield (
                f"layer {layer.name} holds {len(modules)} modules ({_some(modules)}), because the batch is dim 1 of "
                "the tensors between them and plans split dim 0: they all get the same GPUs (use batch_first=True in "
                "attention, transformer and recurrent modules, or keep the batch in dim 0)"
            )
    for part in parts_of(decompose([layer.predecessors for layer in graph.layers])):
        if isinstance(part, NonSeriesParallel):
            first, last = graph.layers[part.layers[0]].name, graph.layers[part.layers[-1]].name
            coarser = "" if graph.granularity == "block" else "; granularity 'block' may hide them in one layer"
            yield (
                f"{len(part.layers)} layers from {first} to {last} are not series-parallel: plans state a bound on "
                f"their distance from the optimum{coarser}"
            )
    joined = [layer.name for layer in graph.layers if len(layer.operators) > 1]
    if graph.granularity == "operator" and joined:
        yield (
            f"{format_count(len(joined), 'layer')} ({_some(tuple(joined))}) hold several operators, because no batch "
            "dimension separates the samples between these"
        )


def _draws_on_each_rank(node: fx.Node) -> bool:
    """Whether an operator draws random numbers, other than a dropout, whose masks runs draw for each sample."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    if operator_name(node) in DROPOUTS:
        return False
    names = [argument.name for argument in target._schema.arguments]
    given = {argument.name: argument.default_value for argument in target._schema.arguments}
    given |= dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if not given.get("train", True) or not given.get("training", True):
        return False
    probability = given.get("dropout_p", given.get("dropout"))
    return probability is None or probability > 0


def _joined_by_second_dim(group: tuple[fx.Node, ...], symbols: frozenset[str]) -> tuple[str, ...]:
    """Returns the modules of a layer that pass tensors with the batch in dim 1 to each other."""
    found: dict[str, None] = {}
    for node in group:
        value = node.meta["val"]
        sizes = value.shape[:2] if isinstance(value, torch.Tensor) else ()
        if [multiple_of_batch(size, symbols) for size in sizes] != [None, 1]:
            continue
        paths = {module_call(other)[1] for other in (node, *node.users) if other in group}
        if len(paths) > 1:
            found.update(dict.fromkeys(sorted(filter(None, paths))))
    return tuple(found)


def _some(names: tuple[str, ...]) -> str:
    """Formats the first few names and the number of further ones."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
