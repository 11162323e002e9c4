"""Regions of a program under ``torch.no_grad()`` or ``torch.autocast(…)``, as operators of the program itself.

torch.export moves what a model runs under such a context into a submodule, which a higher-order operator calls. Layers
consist of operators, so the submodules are inlined: operators without gradients read detached inputs; operators under
an autocast of their own are marked, and every program made of them enters and leaves that autocast around them.

A program is exported without autocast. Where a model reads ``torch.finfo(scores.dtype).min``, as masks of attention do,
it holds that of the exported type, which is beyond a type of 16 bits: such constants are read again as it runs.
"""

import math
import operator
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from deeppool.errors import CaptureError
from deeppool.graph.capture.functionalize import is_write, memory_of

AUTOCAST = "autocast"
"""Key in a node's ``meta`` of the arguments of :func:`enter_autocast`."""
MODES: dict[Any, int] = {wrap_with_set_grad_enabled: 1, wrap_with_autocast: 4}
"""Number of arguments of the higher-order operators before the submodule."""
FLOAT32_MAX = torch.finfo(torch.float32).max


def inline_regions(program: fx.GraphModule) -> None:
    """Replaces calls of regions by their operators."""
    # Inlined operators may call further regions, so each search starts anew.
    while (call := next((node for node in program.graph.nodes if node.target in MODES), None)) is not None:
        _inline(program, call)


def enter_autocast(device: torch.device, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None) -> Any:
    """Enters an autocast, whose device can be replaced by the one on which the program runs."""
    return _enter_autocast(device.type, dtype, enabled, cache_enabled)


def surround_by_autocast(graph: fx.Graph) -> None:
    """Enters and leaves the autocast of marked operators, once for consecutive ones."""
    entered, current = None, None
    for node in list(graph.nodes):
        wanted = node.meta.get(AUTOCAST)
        if wanted == current or node.op in ("placeholder", "get_attr"):
            continue
        with graph.inserting_before(node):
            if entered is not None:
                graph.call_function(_exit_autocast, (entered,))
            entered = graph.call_function(enter_autocast, wanted) if wanted else None
        current = wanted


def read_extremes(graph: fx.Graph) -> None:
    """Makes operators on a tensor and an extreme of float32 take that of the tensor's type, once it is known."""
    for node in graph.nodes:
        if node.op == "call_function" and any(map(_is_extreme, node.args)) and "dtype" not in node.kwargs:
            node.args, node.target = (node.target, *node.args), call_with_extremes


def call_with_extremes(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator with the extremes of float32 replaced by those of its first floating-point tensor."""
    values = next((value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()), None)
    limit = torch.finfo(torch.float32 if values is None else values.dtype).max
    if limit < FLOAT32_MAX:
        args = tuple(math.copysign(limit, each) if _is_extreme(each) else each for each in args)
    return operation(*args, **kwargs)


def _is_extreme(value: Any) -> bool:
    return isinstance(value, float) and abs(value) == FLOAT32_MAX


def _inline(program: fx.GraphModule, call: fx.Node) -> None:
    count = MODES[call.target]
    modes, region, inputs = call.args[:count], call.args[count], list(call.args[count + 1 :])
    assert isinstance(region, fx.Node)
    body = attrgetter(str(region.target))(program).graph
    autocast = call.meta.get(AUTOCAST)
    if call.target is wrap_with_autocast:
        autocast = _autocast_of(call) or autocast
    elif not modes[0]:
        _check_writes(program, body, inputs)
        inputs = [_detached(program, call, given) for given in inputs]
    copies: dict[fx.Node, Any] = dict(zip(body.find_nodes(op="placeholder"), inputs, strict=True))
    with call.graph.inserting_before(call):
        results: Any = call.graph.graph_copy(body, copies)
    for original, copied in copies.items():
        if original.op == "get_attr":
            copied.target = f"{region.target}.{copied.target}"
        elif original.op == "call_function" and autocast:
            copied.meta[AUTOCAST] = autocast
    for user in list(call.users):
        if user.target is not operator.getitem:
            raise CaptureError(
                f"{user.name} takes all results of region {region.target}, only single ones can be placed in layers "
                "(an error of deeppool: please report it with the model)"
            )
        user.replace_all_uses_with(results[user.args[1]])
        call.graph.erase_node(user)
    call.graph.erase_node(call)
    if not region.users:
        call.graph.erase_node(region)


def _detached(program: fx.GraphModule, call: fx.Node, given: Any) -> Any:
    """Returns an input of a region without gradients; what has none, such as buffers, stays as it is."""
    value = given.meta.get("val") if isinstance(given, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or given.op == "placeholder":
        return given
    if given.op == "get_attr" and not isinstance(attrgetter(given.target)(program), nn.Parameter):
        return given
    with call.graph.inserting_before(call):
        detached = call.graph.call_function(torch.ops.aten.detach.default, (given,))
    detached.meta = dict(given.meta)
    return detached


def _check_writes(program: fx.GraphModule, body: fx.Graph, inputs: list[Any]) -> None:
    """Raises if a region without gradients writes a value whose gradient passes it by unchanged."""
    memory = memory_of(body)
    written = {memory[node.args[0]] for node in body.nodes if is_write(node) and isinstance(node.args[0], fx.Node)}
    for inner, given in zip(body.find_nodes(op="placeholder"), inputs, strict=True):
        if inner in written and isinstance(given, fx.Node) and given.op == "call_function" and _trains(program, given):
            raise CaptureError(
                f"{given.name} is written in place under torch.no_grad(), which its gradient does not see, and no "
                "layer can hold that (write x + (f(x) - x).detach(), which has the same value and gradient)"
            )


def _trains(program: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a value depends on a trained parameter by a path without ``detach``."""
    waiting, seen = [node], {node}
    for each in waiting:
        if each.op == "get_attr" and getattr(attrgetter(str(each.target))(program), "requires_grad", False):
            return True
        if each.target is not torch.ops.aten.detach.default:
            waiting += [arg for arg in each.all_input_nodes if arg not in seen]
            seen.update(each.all_input_nodes)
    return False


def _autocast_of(call: fx.Node) -> tuple[Any, ...] | None:
    """Returns the arguments of a region's autocast; None where it is for another device than that of the values."""
    device, *others = call.args[: MODES[wrap_with_autocast]]
    values = (given.meta.get("val") for given in call.all_input_nodes)
    on = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    return (torch.device(str(device)), *others) if device in on else None
