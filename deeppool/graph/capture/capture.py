"""Capture of an ``nn.Module`` as a :class:`CapturedModel`, by torch.export.

The model is exported with a dynamic batch, its loss is appended, its in-place writes are removed, and its operators
are grouped into layers (``grouping``) with their records (``layer_records``).
"""

import contextlib
import inspect
import operator
import re
import traceback
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, get_args

import torch
from torch import fx, nn

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import seed_number
from deeppool.base.user_code import user_frame
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.graph.capture.appended_loss import Loss, append_loss
from deeppool.graph.capture.batch_paths import check_paths
from deeppool.graph.capture.batch_sizes import check_sizes
from deeppool.graph.capture.blocks import module_call
from deeppool.graph.capture.constants import fold_constants
from deeppool.graph.capture.custom_gradients import GRADIENTS, check_gradients, lost_backwards
from deeppool.graph.capture.export import EXAMPLE_BATCH, fixes_batch, quiet
from deeppool.graph.capture.functionalize import remove_in_place
from deeppool.graph.capture.grouping import group_into_layers, is_tensor, operator_name
from deeppool.graph.capture.layer_records import describe_layers
from deeppool.graph.capture.one_at_a_time import one_at_a_time
from deeppool.graph.capture.python_state import ChangedValue, check_repeats, noting_changes
from deeppool.graph.capture.random_numbers import check_generators, drawing_by_torch
from deeppool.graph.capture.regions import inline_regions, read_extremes, surround_by_autocast
from deeppool.graph.capture.sample_independence import check_sample_independence
from deeppool.graph.inputs import Dtypes, describe, resolve, torch_dtype
from deeppool.graph.layer import Granularity, Input, LayerGraph
from deeppool.graph.models.workloads import build_model, find_workload
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress

if TYPE_CHECKING:
    from torch.export import ExportedProgram

TRANSFORMATIONS = ("_functorch/apis.py", "_functorch/eager_transforms.py")
"""Files of torch that transform functions."""
Model = Annotated[nn.Module | str, "its message names models"]
"""A model, the name of a workload, or ``package.module:callable``."""


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A captured model: its layer graph and its program."""

    graph: LayerGraph
    program: fx.GraphModule
    """Maps (inputs, target) to the mean loss; shares the parameters and buffers of ``source``."""
    nodes: tuple[tuple[fx.Node, ...], ...]
    """Nodes of ``program`` that compute each layer, in execution order."""
    batch_symbols: frozenset[str]
    """Names of the symbols for the batch in the shapes of ``program``."""
    source: nn.Module
    """The model that was captured."""

    def __str__(self) -> str:
        return str(self.graph)

    def copy(self) -> "CapturedModel":
        """Returns a copy with parameters and buffers of its own."""
        copies: dict[int, Any] = {}
        source = deepcopy(self.source, copies)
        graph, nodes = fx.Graph(), dict[fx.Node, fx.Node]()
        graph.output(graph.graph_copy(self.program.graph, nodes))
        held = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "get_attr")
        # Constants of the program alone are copied here, and what it shares with the source is not copied twice.
        tensors = {name: deepcopy(attrgetter(name)(self.program), copies) for name in held}
        program = fx.GraphModule(tensors, graph)
        groups = tuple(tuple(nodes[node] for node in group) for group in self.nodes)
        return CapturedModel(self.graph, program, groups, self.batch_symbols, source)


@interruptible
@typed
def capture(
    model: Model,
    input_shape: Shapes | None = None,
    *,
    input_dtype: Dtypes | None = None,
    loss: Loss | None = None,
    target: Annotated[torch.Tensor, "or what torch makes one of"] | None = None,
    granularity: Granularity = "module",
    seed: int = 0,
    on_progress: Progress | None = None,
) -> CapturedModel:
    """Captures a model and its loss as a static graph of layers.

    Args:
        model: a module, in the mode in which it will train; a workload's name; ``package.module:callable``.
        input_shape: shape of one sample, without the batch; a named workload has a default. For several inputs a
            mapping from the names of ``forward``'s arguments to shapes.
        input_dtype: dtype of the input (default float32), or a mapping as for ``input_shape``; a named workload
            has a default.
        loss: maps (outputs, target) to the mean over the samples, which is checked. Unless given it is the
            cross-entropy of the class scores, which come in dim 1, and target holds class indices; where the input
            is a sequence of tokens and dim 1 of the scores counts them, each token has a target and the classes
            come last.
        target: target of one sample, whose shape and dtype the loss takes. Unless given the loss is tried with class
            indices, with numbers of the shape of the scores, and with one number.
        granularity: size of a layer. ``operator``: each operator; ``module``: a module with the activation,
            normalisation and reshaping that follow it; ``block``: modules of one call of a repeated container,
            such as a residual block, a transformer layer or an inception module (see ``graph/capture/blocks.py``).
        seed: random seed of the weights, when ``model`` is a name.
        on_progress: see :data:`deeppool.job.Progress`; fractions count steps, which take unequal times.

    Raises:
        CaptureError: unknown model, wrong input shape, control flow that depends on data or on the batch, a fixed
            batch, samples that depend on each other (even if a plan might use one GPU), a forward that reads what an
            earlier one has changed, or a loss that is no mean over the samples.
    """
    if granularity not in get_args(Granularity):
        raise InvalidValueError(
            f"granularity must be one of {', '.join(get_args(Granularity))}, got '{granularity}' (module is usual)"
        )
    report = on_progress or (lambda what, share: None)
    with one_at_a_time(), torch.inference_mode(False):
        if isinstance(model, str):
            # As torch takes them.
            seed = seed_number(seed)
            report(f"building {model}", 0.0)
            name, module = model, build_model(model, seed)
            inputs = resolve(find_workload(model).inputs, model, input_shape, input_dtype)
        elif isinstance(model, nn.Module):
            name, module = type(model).__name__, model
            inputs = resolve((), name, input_shape, input_dtype)
        else:
            raise CaptureError(no_module(model))
        with _without_autocast(module):
            return _capture_module(module, name, inputs, loss, target, granularity, report)


@contextlib.contextmanager
def _without_autocast(module: nn.Module) -> Iterator[None]:
    """Leaves the caller's autocast: what it casts would be the types of the graph's values, in any precision."""
    with contextlib.ExitStack() as left:
        for kind in {"cpu", *(each.device.type for each in module.parameters())}:
            if torch.amp.is_autocast_available(kind):
                left.enter_context(torch.autocast(kind, enabled=False))
        yield


def _capture_module(
    module: nn.Module,
    name: str,
    inputs: tuple[Input, ...],
    loss: Loss | None,
    target: torch.Tensor | None,
    granularity: Granularity,
    report: Progress,
) -> CapturedModel:
    report(f"exporting {name}", 0.2)
    changed: list[ChangedValue] = []
    with lost_backwards() as lost, drawing_by_torch(name):
        exported = _export_model(module, name, inputs, lost, changed)
    _check_memory(module, name)
    _check_repeats(module, exported, inputs, changed, name)
    program = exported.module(check_guards=False)
    assert isinstance(program, fx.GraphModule)
    inline_regions(program)
    _check_operators(program, name)
    if any(each._backward_hooks for each in module.modules()):
        lost.append("a backward hook of a module, which")
    if lost:
        _check_gradients(module, program, inputs, lost, name)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols = {str(node.meta["val"].shape[0]) for node in placeholders}
    report(f"the loss of {name}", 0.6)
    symbols |= append_loss(program, loss, name, target)
    check_generators(program, name)
    # Export's check of the inputs rejects the added target.
    program._forward_pre_hooks.clear()
    program._forward_pre_hooks_with_kwargs.clear()
    fold_constants(program, exported.graph_signature.lifted_tensor_constants)
    remove_in_place(program.graph, name)
    check_sample_independence(program, name)
    with quiet():
        check_paths(exported, name, lambda batch: _export(module, inputs, [], batch))
    surround_by_autocast(program.graph)
    program.recompile()
    report(f"layers of {name}", 0.7)
    nodes = tuple(tuple(group) for group in group_into_layers(program.graph, symbols, granularity))
    layers = describe_layers(program, nodes, granularity)
    # The names and costs above are those of the operators themselves.
    read_extremes(program.graph)
    program.recompile()
    check_sizes(layers, nodes, symbols, name)
    size = sum(p.numel() * p.element_size() for p in program.parameters() if p.requires_grad)
    graph = LayerGraph(name, inputs[0].shape, layers, size, inputs, granularity)
    report(f"captured {name}", 1.0)
    return CapturedModel(graph, program, nodes, frozenset(symbols), module)


def no_module(model: object) -> str:
    """Returns what is wrong with a model that is neither a module nor a name: usually it makes one."""
    name = getattr(model, "__name__", "")
    got = f"'{name}'" if callable(model) and name else f"one of type {type(model).__name__}"
    hint = f"give what it returns: {name}()" if got == f"'{name}'" else "resnet50 is such a name"
    if hasattr(model, "capture"):
        hint = "give what its capture() returns"
    return f"a model is a torch.nn.Module, a model's name or package.module:callable, got {got} ({hint})"


# -- export -----------------------------------------------------------------------------------------


def _export_model(
    module: nn.Module, name: str, inputs: tuple[Input, ...], lost: Sequence[str], changed: list[ChangedValue]
) -> "ExportedProgram":
    """Exports with a dynamic batch; converts export's failures to one-line errors.

    Args:
        module: the model.
        name: its name, for errors.
        inputs: its inputs.
        lost: what it runs of which torch.export loses the backward, known at the end.
        changed: gets what its forward changes of what its modules hold.
    """
    if getattr(module.forward, "__func__", None) is nn.Module.forward:
        raise CaptureError(
            f"{name} has no forward, which maps its inputs to scores (give the network itself, not what trains it)"
        )
    path: list[str] = []
    try:
        with quiet(), _tracking(module, path):
            exported = _export(module, inputs, changed)
    except Exception as error:
        where = f" in {path[-1]}" if path and path[-1] else ""
        text = str(error).strip().splitlines()
        kind = type(error).__name__
        if wrapped := _wrapped(module):
            raise CaptureError(f"{name} wraps a model: give that one, its .{wrapped}") from error
        arguments = inspect.signature(module.forward).parameters
        if "targets" in arguments and not any(given.name == "targets" for given in inputs):
            raise CaptureError(
                f"{name} takes targets in training and returns losses, as detectors do: a model must map its inputs to "
                "scores (capture the part that does, such as its backbone)"
            ) from error
        if "DataDependent" in kind or "data-dependent" in str(error):
            instead = "replace a branch by torch.where, and what item() returns by the tensor"
            if path and getattr(module.get_submodule(path[-1]), "momentum", 0) is None:
                # It reads its count of batches as a number.
                instead = "momentum=None averages over all batches: give this normalisation a number, such as 0.1"
            raise CaptureError(
                f"{name} has control flow that depends on data{where}, at {_user_line(error)}: "
                f"the graph must be static ({instead})"
            ) from error
        if fixes_batch(error):
            raise CaptureError(
                f"{name} fixes its batch to {EXAMPLE_BATCH} samples{where}: it must take any batch "
                "(use x.shape[0], not a number, in view and reshape, and no loop over the samples)"
            ) from error
        if unknown := re.search(r"Found <class '([^']+)'> in output, which is not a known type", str(error)):
            instead = (
                "return a tuple or a dict, or call torch.export.register_dataclass on the class where it is defined"
            )
            if unknown[1].startswith("transformers.cache_utils."):
                instead = "a cache is of no use in training: config.use_cache = False of the model leaves it out"
            raise CaptureError(
                f"{name} returns a {unknown[1]}, whose tensors torch.export does not find ({instead})"
            ) from error
        hint = "is it the shape of one sample, without the batch? if so, torch.export cannot export this model"
        if any(each.startswith(GRADIENTS) for each in lost):
            hint = (
                f"it runs {GRADIENTS} in its forward, which no graph of layers holds: write the derivative by operators"
            )
        elif any(frame.filename.endswith(TRANSFORMATIONS) for frame in traceback.extract_tb(error.__traceback__)):
            hint = "it transforms functions, as torch.func does, which no layer holds: write it by operators on batches"
        if "types: Long" in str(error) and all(given.dtype == "float32" for given in inputs):
            hint = "do samples hold indices, as tokens? then input_dtype=torch.int64, or that attribute of the callable"
        others = [argument for argument in arguments if argument not in {given.name for given in inputs}]
        if isinstance(error, TypeError | AttributeError) and len(arguments) > len(inputs):
            hint = f"forward also takes {', '.join(others)}: input_shape maps the names of all that it needs to shapes"
        if "uninitialized parameter" in str(error):
            hint = "call the model once, on a batch, before it is captured"
        if "invalid data type 'str'" in str(error):
            hint = (
                "does forward take a dict? inputs are arguments of forward, a tensor each: forward(self, image, depth)"
            )
        if isinstance(module, torch.jit.ScriptModule):
            hint = "give the model before torch.jit: torch.export takes no script"
        raise CaptureError(
            f"{name} cannot take a sample of {describe(inputs)}{where}: {text[0] if text else kind} ({hint})"
        ) from error
    return exported


def _export(
    module: nn.Module, inputs: tuple[Input, ...], changed: list[ChangedValue], batch: int = EXAMPLE_BATCH
) -> "ExportedProgram":
    positional, named = _examples(module, inputs, batch)
    dynamic: Any = {given.name: {0: torch.export.Dim.DYNAMIC} for given in inputs}
    with noting_changes(module, changed):
        return torch.export.export(
            module,
            positional,
            named,
            strict=False,
            dynamic_shapes=tuple(dynamic.values()) if positional else dynamic,
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def _wrapped(module: nn.Module) -> str:
    """Returns where a module holds the model that it wraps, as torch.compile and DDP do; empty: it is none of these."""
    kinds = torch._dynamo.OptimizedModule, nn.DataParallel, nn.parallel.DistributedDataParallel
    return "" if not isinstance(module, kinds) else "_orig_mod" if hasattr(module, "_orig_mod") else "module"


def _examples(
    module: nn.Module, inputs: tuple[Input, ...], batch: int = EXAMPLE_BATCH, *, random: bool = False
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Returns zeros or, of floats, random numbers as positional and named inputs."""
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    found = {}
    for given in inputs:
        example = torch.zeros(batch, *given.shape, dtype=torch_dtype(given), device=device)
        found[given.name] = torch.randn_like(example) if random and example.is_floating_point() else example
    return tuple(found.pop(name) for name in list(found) if not name), found


def _check_gradients(
    module: nn.Module, program: fx.GraphModule, inputs: tuple[Input, ...], lost: list[str], name: str
) -> None:
    """Raises if an exported model has other gradients than the model itself."""
    positional, named = _examples(module, inputs, random=True)
    with noting_changes(module, []):
        check_gradients(
            name,
            lost,
            lambda: module(*positional, **named),
            lambda: program(*positional, **named),
            list(module.parameters()),
            list(module.buffers()),
        )


def _check_memory(module: nn.Module, name: str) -> None:
    """Raises for a parameter in the memory of another one, or of a buffer: ranks and copies hold each by itself."""
    first: dict[tuple[torch.device, int], str] = {}
    for key, value in (*module.named_parameters(), *module.named_buffers()):
        # Subclasses may have no memory.
        if type(value) not in (nn.Parameter, torch.Tensor) or value.is_meta or not value.numel():
            continue
        place = value.device, value.data_ptr()
        if place in first:
            raise CaptureError(
                f"{first[place]} and {key} of {name} are two tensors in the same memory, which copies of the model "
                "would not be (assign the parameter itself, as in decoder.weight = encoder.weight)"
            )
        if isinstance(value, nn.Parameter):
            first[place] = key


def _check_repeats(
    module: nn.Module, exported: "ExportedProgram", inputs: tuple[Input, ...], changed: list[ChangedValue], name: str
) -> None:
    """Raises if a model computes something else on the same samples when it runs again."""
    constants = exported.graph_signature.lifted_tensor_constants
    held = [each for each in constants if not each.startswith("lifted_tensor")]

    def run() -> Any:
        positional, named = _examples(module, inputs, random=True)
        return module(*positional, **named)

    check_repeats(module, changed, held, run, name)


def _check_operators(program: fx.GraphModule, name: str) -> None:
    """Raises for sizes that depend on data, such as the samples selected by a mask, and for what is no operator."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for node in program.graph.nodes:
        is_operator = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        if node.op == "call_function" and is_tensor(node) and not is_operator:
            raise CaptureError(
                f"{name} runs {operator_name(node)}, a transformation of functions, which no layer can hold "
                "(write it by operators on batches, without torch.cond, torch.vmap and the like)"
            )
        if isinstance(node.meta.get("val"), torch.Tensor) and free_unbacked_symbols(node.meta["val"]):
            path = module_call(node)[1]
            raise CaptureError(
                f"{name} makes a tensor whose size depends on data{f' in {path}' if path else ''}, by "
                f"{operator_name(node)}: the graph must be static (multiply by a mask instead of selecting by it)"
            )


@contextlib.contextmanager
def _tracking(module: nn.Module, path: list[str]) -> Iterator[None]:
    """Tracks the running modules in ``path``; after an error it ends with the one that raised."""
    names = {id(child): name for name, child in module.named_modules()}

    def enter(child: nn.Module, _: Any) -> None:
        # Export calls what an indexed container holds by proxies, which have no name here.
        path.append(names.get(id(child), path[-1] if path else ""))

    def leave(*_: Any) -> None:
        path.pop()

    hooks = [child.register_forward_pre_hook(enter) for child in module.modules()]
    hooks += [child.register_forward_hook(leave) for child in module.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _user_line(error: BaseException) -> str:
    """Returns ``file:line`` of the innermost frame of user code."""
    frame = user_frame(error)
    return "an unknown line" if frame is None else f"{frame.filename}:{frame.lineno}"
