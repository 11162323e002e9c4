"""``nn.Module`` → :class:`CapturedModel`, by torch.export.

The exported program's operators are grouped into layers in three steps:

1. operators of one call of one leaf module are together (an attention module is one layer);
2. a *follower* (activation, normalisation, reshaping) joins the layer whose only reader it is, so
   convolution, batch norm and ReLU are one layer, as in DeepPool's profiles;
3. a value whose leading dimension is not the batch is no place to cut, because samples cannot be
   resharded there: the layers on both sides of it become one.
"""

import contextlib
import hashlib
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.graph.losses import classification_loss, main_output
from deeppool.graph.workloads import build_model, find_workload

if TYPE_CHECKING:
    from torch.export import ExportedProgram

EXAMPLE_BATCH = 3
"""Odd and small: a model that fixes its batch, or needs an even one, shows it."""

FIXED_BATCH = ("specialized", "Constraints violated", "inferred a static shape")
"""How torch.export says that a model has its batch as a number in it."""

FOLLOWERS = frozenset(
    (
        "relu relu6 hardtanh hardswish hardsigmoid silu gelu mish sigmoid tanh leaky_relu elu softplus "
        "dropout feature_dropout batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax "
        "flatten unflatten view _unsafe_view reshape permute transpose contiguous squeeze unsqueeze clone to "
        "type_as cross_entropy_loss mean select slice getitem"
    ).split()
)
"""Operators cheap enough beside a convolution or a product to be part of it."""

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A model as data and as a program, layer by layer."""

    graph: LayerGraph
    program: fx.GraphModule
    """Maps (inputs, target) to the mean loss; shares the parameters and buffers of ``source``."""
    nodes: tuple[tuple[fx.Node, ...], ...]
    """Per layer the nodes of ``program`` that compute it, in execution order."""
    batch_symbols: frozenset[str]
    """Names of the symbols that stand for the batch in the shapes of ``program``."""
    source: nn.Module
    """The model that was captured."""

    def __str__(self) -> str:
        return str(self.graph)


def capture(
    model: nn.Module | str,
    input_shape: tuple[int, ...] | None = None,
    *,
    input_dtype: torch.dtype = torch.float32,
    loss: Loss = classification_loss,
    seed: int = 0,
) -> CapturedModel:
    """Captures a model and its loss as a static graph of layers.

    Args:
        model: a module, in the mode in which it will train; a workload's name; ``package.module:callable``.
        input_shape: of one sample, without the batch; a named workload has its own.
        input_dtype: of the input.
        loss: maps (outputs, target) to the mean over the samples; target holds class indices.
        seed: of the weights, when ``model`` is a name.

    Raises:
        CaptureError: unknown model, wrong input shape, data-dependent control flow, a fixed batch.
    """
    if isinstance(model, str):
        workload = find_workload(model)
        name, input_shape = model, tuple(input_shape or workload.input_shape)
        module = build_model(model, seed)
    else:
        name, module = type(model).__name__, model
    if not input_shape or any(size < 1 for size in input_shape):
        raise CaptureError(
            f"input_shape of {name} is {input_shape}, expected the positive sizes of one sample (for example 3,224,224)"
        )
    exported = _export_model(module, name, tuple(input_shape), input_dtype)
    program = exported.module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols = {str(inputs[0].meta["val"].shape[0])}
    symbols |= _append_loss(program, loss, name)
    # Export's check of the inputs knows nothing of the target.
    program._forward_pre_hooks.clear()
    program._forward_pre_hooks_with_kwargs.clear()
    _remove_in_place(program.graph, name)
    program.recompile()
    groups = _cut_at_batch(_join_followers(_group_by_module(program.graph)), symbols)
    nodes = tuple(tuple(group) for group in groups)
    layers = _describe_layers(program, nodes)
    size = sum(p.numel() * p.element_size() for p in program.parameters() if p.requires_grad)
    graph = LayerGraph(name, tuple(input_shape), layers, size)
    return CapturedModel(graph, program, nodes, frozenset(symbols), module)


# -- export -----------------------------------------------------------------------------------------


def _export_model(module: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> "ExportedProgram":
    """torch.export with a dynamic batch, and its many ways to fail told in one line each."""
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    example = torch.zeros(EXAMPLE_BATCH, *shape, dtype=dtype, device=device)
    path: list[str] = []
    try:
        with _quiet(), _tracking(module, path):
            return torch.export.export(
                module,
                (example,),
                strict=False,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        where = f" in {path[-1]}" if path and path[-1] else ""
        text = str(error).strip().splitlines()
        kind = type(error).__name__
        if "DataDependent" in kind or "data-dependent" in str(error):
            raise CaptureError(
                f"{name} has control flow that depends on data{where}, at {_user_line(error)}: "
                "the graph must be static (replace the branch by torch.where or torch.cond)"
            ) from error
        if any(phrase in str(error) for phrase in FIXED_BATCH):
            raise CaptureError(
                f"{name} fixes its batch to {EXAMPLE_BATCH} samples{where}: it must take any batch "
                "(use x.shape[0], not a number, in view and reshape)"
            ) from error
        raise CaptureError(
            f"{name} cannot take a sample of shape {shape}{where}: {text[0] if text else kind} "
            "(is it the shape of one sample, without the batch?)"
        ) from error


@contextlib.contextmanager
def _tracking(module: nn.Module, path: list[str]) -> Iterator[None]:
    """Keeps in ``path`` the modules that are running; after an error it ends with the one that raised."""
    names = {id(child): name for name, child in module.named_modules()}

    def enter(child: nn.Module, _: Any) -> None:
        path.append(names[id(child)])

    def leave(*_: Any) -> None:
        path.pop()

    hooks = [child.register_forward_pre_hook(enter) for child in module.modules()]
    hooks += [child.register_forward_hook(leave) for child in module.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Export logs whole graphs before it raises; our error says it in a line."""
    loggers = [logging.getLogger(name) for name in ("torch.fx.experimental", "torch.export", "torch._export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _user_line(error: BaseException) -> str:
    """``file:line`` of the innermost frame outside torch."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename and f.filename != __file__
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"


# -- the loss ---------------------------------------------------------------------------------------


class _LossModule(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, target: torch.Tensor) -> torch.Tensor:
        return self.loss(outputs, target)


def _append_loss(program: fx.GraphModule, loss: Loss, name: str) -> set[str]:
    """Makes ``program`` map (inputs, target) to the loss; returns the loss's symbols for the batch."""
    graph = program.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    codegen: Any = graph._codegen
    values = pytree.tree_leaves(output.args)
    examples = [
        torch.zeros([EXAMPLE_BATCH, *value.meta["val"].shape[1:]], dtype=value.meta["val"].dtype)
        if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)
        else value
        for value in values
    ]
    outputs = pytree.tree_unflatten(examples, codegen.pytree_info.out_spec)
    scores = main_output(outputs)
    target = torch.zeros(scores.shape[0], *scores.shape[2:], dtype=torch.int64)
    batch_first = {0: torch.export.Dim.DYNAMIC}
    dynamic = pytree.tree_map(lambda leaf: batch_first if isinstance(leaf, torch.Tensor) else None, (outputs, target))
    try:
        with _quiet():
            program_of_loss = torch.export.export(
                _LossModule(loss), (outputs, target), dynamic_shapes=dynamic, strict=False
            )
    except Exception as error:
        raise CaptureError(
            f"the loss cannot take the outputs of {name}, of shape {tuple(scores.shape)}: "
            f"{str(error).strip().splitlines()[0]} (give loss=, a function of outputs and target)"
        ) from error
    tail = program_of_loss.module(check_guards=False).graph
    mapping: dict[fx.Node, Any] = {}
    placeholders = [node for node in tail.nodes if node.op == "placeholder"]
    symbols = {
        str(node.meta["val"].shape[0]) for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)
    }
    mapping.update(zip(placeholders[:-1], values, strict=True))
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last_input):
        target_node = graph.placeholder("target")
        target_node.meta["val"] = placeholders[-1].meta["val"]
    mapping[placeholders[-1]] = target_node
    with graph.inserting_before(output):
        result = graph.graph_copy(tail, mapping)
    while isinstance(result, tuple | list):
        result = result[0]
    graph.erase_node(output)
    graph.output(result)
    graph.set_codegen(fx.graph.CodeGen())
    for original, copy in mapping.items():
        if original.op == "call_function":
            copy.meta["nn_module_stack"] = {"loss": ("loss", "loss")}
    program.recompile()
    return symbols


# -- clean-up ---------------------------------------------------------------------------------------


def _remove_in_place(graph: fx.Graph, name: str) -> None:
    """Erases dead operators and BatchNorm's counters; makes ``relu_`` and its kind out of place.

    A stage starts with a detached leaf of autograd, which must not be written.
    """
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_module") and not node.users:
            schema = getattr(node.target, "_schema", None)
            written = node.args[0] if schema is not None and schema.is_mutable and node.args else None
            counter = isinstance(written, fx.Node) and not written.meta["val"].is_floating_point()
            if isinstance(written, fx.Node) and not counter:
                raise CaptureError(
                    f"{name} writes {written.name} in place and never reads it back: layers may only "
                    "update the buffers of torch's own normalisation modules"
                )
            graph.erase_node(node)
    for node in list(graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not target._schema.name.endswith("_"):
            continue
        packet = getattr(torch.ops.aten, target._schema.name.split("::")[1].rstrip("_"), None)
        functional = getattr(packet, target._overloadname, None) if packet is not None else None
        written = node.args[0]
        if functional is None or not isinstance(written, fx.Node):
            raise CaptureError(f"{name} has an in-place operator, {target}, that has no functional form (avoid it)")
        if _is_seen_elsewhere(node, written):
            raise CaptureError(
                f"{name} writes {written.name} in place and reads the same memory by another view: "
                "write out of place there (relu, not relu_)"
            )
        node.target = functional
        _read_from(node, written)
    graph.lint()


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows; a node that is no view, or writes in place, is its own."""
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and not schema.is_mutable and any(r.alias_info for r in schema.returns)
    source = node.args[0] if is_view and node.args else None
    return _base(source) if isinstance(source, fx.Node) else node


def _is_seen_elsewhere(node: fx.Node, written: fx.Node) -> bool:
    """Whether an operator after ``node`` reads the memory that it writes, by another name than ``written``."""
    order = {other: index for index, other in enumerate(node.graph.nodes)}
    before = [other for other in order if order[other] < order[node] and other.op == "call_function"]
    aliases = [other for other in before if other is not written and _base(other) is _base(written)]
    return any(order[user] > order[node] for alias in aliases for user in alias.users)


def _read_from(node: fx.Node, written: fx.Node) -> None:
    """Users of ``written`` that come after ``node`` read ``node`` instead: it holds what they saw in place."""
    following = set()
    after = node.next
    while after.op != "root":
        following.add(after)
        after = after.next
    written.replace_all_uses_with(node, delete_user_cb=lambda user: user in following)


# -- layers -----------------------------------------------------------------------------------------

Groups = list[list[fx.Node]]


def is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is a tensor, or several."""
    return isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def _compute_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Nodes that depend on the data: not parameters, sizes, or what is made of these alone."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        depends = any(arg.op == "placeholder" or arg in found for arg in node.all_input_nodes)
        if node.op == "call_function" and is_tensor(node) and depends:
            found[node] = None
    return list(found)


def _module_call(node: fx.Node) -> tuple[str, str]:
    """(identity of the call, path) of the innermost module that a node belongs to; the root's path is empty."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    key, (path, _) = list(stack.items())[-1]
    return ("", "") if key.startswith("_empty") else (key, path.removeprefix("L__self__").lstrip("."))


def _group_by_module(graph: fx.Graph) -> Groups:
    """Step 1: runs of operators in one call of a leaf module; every other operator alone."""
    nodes = _compute_nodes(graph)
    paths = {_module_call(node)[1] for node in nodes}
    groups: Groups = []
    previous = None
    for node in nodes:
        call, path = _module_call(node)
        leaf = path and not any(other.startswith(path + ".") for other in paths)
        picks_from_previous = groups and operator_name(node) == "getitem" and node.args[0] in groups[-1]
        if picks_from_previous or (leaf and call == previous):
            groups[-1].append(node)
        else:
            groups.append([node])
        previous = call if leaf else None
    return groups


def _join_followers(groups: Groups) -> Groups:
    """Step 2: a group of followers joins the group that it alone reads, if it alone reads it."""
    owner = {node: index for index, group in enumerate(groups) for node in group}
    for index, group in enumerate(groups):
        if not all(operator_name(node) in FOLLOWERS for node in group):
            continue
        sources = {owner[arg] for node in group for arg in node.all_input_nodes if arg in owner} - {index}
        if len(sources) != 1:
            continue
        (source,) = sources
        readers = {owner.get(user, -1) for node in groups[source] for user in node.users} - {source}
        if readers == {index}:
            groups[source].extend(group)
            owner.update(dict.fromkeys(group, source))
            groups[index] = []
    return [group for group in groups if group]


def _cut_at_batch(groups: Groups, symbols: set[str]) -> Groups:
    """Step 3: joins all groups from a value that is not batch-first to its last reader."""
    index = 0
    while index < len(groups):
        owner = {node: position for position, group in enumerate(groups) for node in group}
        last = index
        for node in groups[index]:
            if not _is_batch_first(node, symbols):
                last = max([last, *(owner.get(user, last) for user in node.users)])
        if last == index:
            index += 1
        else:
            groups[index : last + 1] = [[node for group in groups[index : last + 1] for node in group]]
    order = {node: position for position, node in enumerate(groups[0][0].graph.nodes)} if groups else {}
    return [sorted(group, key=order.__getitem__) for group in groups]


def _is_batch_first(node: fx.Node, symbols: set[str]) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dim() > 0 and str(value.shape[0]) in symbols


def operator_name(node: fx.Node) -> str:
    """``conv2d`` of ``aten.conv2d.default``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[1]
    return getattr(target, "__name__", str(target))


# -- records ----------------------------------------------------------------------------------------


def leaf_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """The placeholders, parameters and buffers that a node is made of, through whatever lies between."""
    for arg in node.all_input_nodes:
        if arg.op in ("get_attr", "placeholder"):
            yield arg
        else:
            yield from leaf_inputs(arg)


def sample_bytes(node: fx.Node) -> int:
    """Bytes per sample of a batch-first value."""
    value = node.meta["val"]
    count = 1
    for size in value.shape[1:]:
        count *= int(size)
    return count * int(value.element_size())


def _describe_layers(program: fx.GraphModule, groups: tuple[tuple[fx.Node, ...], ...]) -> tuple[Layer, ...]:
    owner = {node: index for index, group in enumerate(groups) for node in group}
    trainable = {name for name, parameter in program.named_parameters() if parameter.requires_grad}
    # A parameter tied under two names is one parameter of the state dict; get_attr finds it by either.
    canonical = {
        id(parameter): name for name, parameter in reversed(list(program.named_parameters(remove_duplicate=False)))
    }
    names: dict[str, int] = {}
    layers = []
    for index, group in enumerate(groups):
        sources: dict[fx.Node, int] = {}
        parameters: dict[str, int] = {}
        for node in group:
            for arg in node.all_input_nodes:
                if arg in owner and owner[arg] != index:
                    sources[arg] = owner[arg]
                for attribute in _attributes(arg, owner):
                    value = _get(program, attribute)
                    if isinstance(value, nn.Parameter) and canonical[id(value)] in trainable:
                        parameters[canonical[id(value)]] = value.numel() * value.element_size()
        predecessors = sorted(set(sources.values()))
        layers.append(
            Layer(
                name=_unique(_layer_name(group), names),
                operators=tuple(operator_name(node) for node in group),
                predecessors=tuple(predecessors),
                input_bytes=tuple(sum(sample_bytes(n) for n, i in sources.items() if i == p) for p in predecessors),
                parameter_bytes=sum(parameters.values()),
                parameters=tuple(parameters),
                signature=_signature(program, group, owner),
            )
        )
    return tuple(layers)


def _attributes(node: fx.Node, owner: dict[fx.Node, int]) -> Iterator[str]:
    """Parameters and buffers behind an argument that no layer owns."""
    if node.op == "get_attr":
        yield str(node.target)
    elif node not in owner and node.op == "call_function":
        for arg in node.all_input_nodes:
            yield from _attributes(arg, owner)


def _get(program: fx.GraphModule, attribute: str) -> Any:
    value: Any = program
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _layer_name(group: tuple[fx.Node, ...]) -> str:
    anchor = next((node for node in group if operator_name(node) not in FOLLOWERS), group[0])
    path = _module_call(anchor)[1]
    alone = all(_module_call(node)[1] == path or operator_name(node) in FOLLOWERS for node in group)
    is_leaf_name = alone and path and anchor.meta["nn_module_stack"] and _is_module_of_one_call(anchor, path)
    return path if is_leaf_name else ".".join(filter(None, (path, operator_name(anchor))))


def _is_module_of_one_call(anchor: fx.Node, path: str) -> bool:
    """Whether a module has no submodule that runs: then its path says which operator is meant."""
    return not any(_module_call(node)[1].startswith(path + ".") for node in anchor.graph.nodes)


def _unique(name: str, seen: dict[str, int]) -> str:
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def _signature(program: fx.GraphModule, group: tuple[fx.Node, ...], owner: dict[fx.Node, int]) -> str:
    """Hash of operators, constants and shapes, and of which inputs need gradients."""
    local = {node: f"%{position}" for position, node in enumerate(group)}

    def describe(node: fx.Node) -> str:
        if node in local:
            return local[node]
        value = node.meta.get("val")
        if node.op == "get_attr":
            attribute = _get(program, str(node.target))
            return f"attribute{tuple(attribute.shape)}{attribute.dtype}{attribute.requires_grad}"
        kind = "activation" if node in owner else node.op
        return f"{kind}{tuple(value.shape)}{value.dtype}" if isinstance(value, torch.Tensor) else f"{kind}{value}"

    def named(argument: Any) -> Any:
        return _Named(describe(argument)) if isinstance(argument, fx.Node) else argument

    parts = [(str(node.target), repr(pytree.tree_map(named, (node.args, node.kwargs)))) for node in group]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class _Named:
    """Stands for a node in a signature."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text
