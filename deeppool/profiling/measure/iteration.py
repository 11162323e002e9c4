"""One training iteration of a captured model, with a time stamp between consecutive layers.

    forward    │ layer 0 │ layer 1 │ … │ layer n │
    backward   │ layer n │ … │ layer 1 │ layer 0 │

A layer alone in a loop finds its weights cached and its memory allocated, unlike in an iteration. So layers are
timed in place: the captured program runs as one part of a training step, and only the stamps are added. In
the forward they lie between the operators of two layers, in the backward before the first operator of each layer.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn

from deeppool.device.protocol import Device, Precision
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import Segment
from deeppool.graph.capture.index_ranges import value_count
from deeppool.training.segment_run import SegmentRun

Pass = Literal["forward", "backward"]


@dataclass(slots=True)
class TimestampLog:
    """Readings of the clock, or of memory use, at each boundary of an iteration, in order."""

    read: Callable[[], Any]
    start: Any = None
    marks: list[tuple[Pass, int, Any]] = field(default_factory=list)
    """The pass and the layer that end, and the reading."""
    running: int = 0
    """Layer whose backward is running."""

    def begin(self, last: int) -> None:
        """Starts an iteration; the last layer of its forward is the first of its backward."""
        self.marks = []
        self.running = last
        self.start = self.read()

    def end(self, direction: Pass, layer: int) -> None:
        """Records the end of a layer, or of a part of it."""
        self.marks.append((direction, layer, self.read()))

    def begin_backward(self, layer: int) -> None:
        """Records the end of the running layer's backward, where another layer's begins."""
        if layer != self.running:
            self.end("backward", self.running)
            self.running = layer


class _Boundary(nn.Module):
    """Module after the operators of a layer that records readings in both passes."""

    def __init__(self, iteration: "Iteration", layer: int) -> None:
        super().__init__()
        self.__dict__["iteration"] = iteration  # bypasses registration as a submodule: the iteration holds this module
        self.layer = layer

    def forward(self, *outputs: torch.Tensor) -> None:
        log: TimestampLog = self.__dict__["iteration"].log
        log.end("forward", self.layer)
        for output in outputs:
            if output.grad_fn is not None:
                # An operator may return its input, as a dropout of 0 does: the backward is that of the layer before.
                notes: Any = output.grad_fn.metadata
                if notes.setdefault("layer", self.layer) == self.layer:
                    output.grad_fn.register_prehook(lambda _: log.begin_backward(self.layer))


class Iteration:
    """Forward and backward of a captured model, with or without boundaries between its layers."""

    def __init__(self, captured: CapturedModel, weights: nn.Module, *, stamped: bool) -> None:
        """Builds the program.

        Args:
            captured: the model.
            weights: parameters and buffers, of :func:`copy_weights`.
            stamped: whether to add boundaries between layers, or only around the two passes.
        """
        self.log = TimestampLog(lambda: None)
        self.last = len(captured.nodes) - 1
        self.broken = False
        """Whether the last run raised, or is still running."""
        self.pieces = _pieces(captured) if stamped else []
        self.parameters = list(weights.parameters())
        self.segment = self._build(captured, weights)

    def _build(self, captured: CapturedModel, weights: nn.Module) -> Segment:
        """Copies the program as one segment, with a boundary after each piece."""
        holder = nn.Module()
        holder.__dict__.update(weights.__dict__)
        holder._modules = dict(weights._modules)
        ends = {nodes[-1]: index for index, (_, nodes) in enumerate(self.pieces)}
        graph = fx.Graph()
        graph.placeholder("batch")
        copies: dict[fx.Node, fx.Node] = {}
        place = next((parameter.device for parameter in self.parameters), None)

        def move_device(argument: Any) -> Any:
            # The program refers to the device on which it was captured.
            return place if place is not None and isinstance(argument, torch.device) else argument

        *nodes, end = captured.program.graph.nodes
        for node in nodes:
            copied = copies[node] = graph.node_copy(node, copies.__getitem__)
            copied.args, copied.kwargs = fx.node.map_aggregate((copied.args, copied.kwargs), move_device)
            if node in ends:
                layer, members = self.pieces[ends[node]]
                name = f"boundary_{ends[node]}"
                holder._modules[name] = _Boundary(self, layer)
                graph.call_module(name, tuple(copies[output] for output in _outputs(members)))
        (loss,) = end.all_input_nodes
        graph.output((copies[loss],))
        data = tuple(node for node in nodes if node.op == "placeholder")
        return Segment(fx.GraphModule(holder, graph), data, (loss,))

    def run(self, data: Sequence[torch.Tensor], log: TimestampLog, precision: Precision) -> None:
        """Runs one iteration on ``data`` of :func:`example_data`, with a reading per boundary in ``log``.

        Gradients are reset before, as by ``zero_grad``, and remain on the weights.
        """
        for parameter in self.parameters:
            parameter.grad = None
        self.log, self.broken = log, True
        part = SegmentRun(self.segment, len(data[0]), data[0].device, precision)
        log.begin(self.last)
        outputs = part.forward(data)
        if not self.pieces:
            log.end("forward", self.last)
        part.backward({node: torch.ones_like(loss) for node, loss in outputs.items()})
        log.end("backward", log.running)
        self.broken = False

    def failed_layer(self) -> int | None:
        """Returns the layer that was running when :meth:`run` raised; None without boundaries or without an error."""
        if not self.pieces or not self.broken:
            return None
        done = len(self.log.marks)
        return self.pieces[done][0] if done < len(self.pieces) else self.log.running


def copy_weights(captured: CapturedModel, device: Device) -> nn.Module:
    """Copies parameters and buffers to a device, so that measuring leaves the model's running statistics unchanged."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(captured.program.graph, {}))
    bare: nn.Module = copy.deepcopy(fx.GraphModule(captured.program, graph))
    return bare.to(device.torch_device())


def example_data(captured: CapturedModel, batch: int, device: Device) -> list[torch.Tensor]:
    """Draws inputs and targets of the captured shapes for ``batch`` samples."""
    place = device.torch_device()
    data = []
    for node in captured.program.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            shape = [batch, *(int(size) for size in value.shape[1:])]
            if value.is_floating_point():
                # Targets may have to be probabilities.
                draw = torch.rand if node.name == "target" else torch.randn
                data.append(draw(shape, dtype=value.dtype, device=place))
            else:
                data.append(torch.randint(value_count(node), shape, dtype=value.dtype, device=place))
    return data


def _pieces(captured: CapturedModel) -> list[tuple[int, list[fx.Node]]]:
    """Returns consecutive operators of one layer, in program order; branches cut a layer into several pieces."""
    owner = {node: index for index, group in enumerate(captured.nodes) for node in group}
    found: list[tuple[int, list[fx.Node]]] = []
    for node in captured.program.graph.nodes:
        if node not in owner:
            continue
        if not found or found[-1][0] != owner[node]:
            found.append((owner[node], []))
        found[-1][1].append(node)
    return found


def _outputs(piece: list[fx.Node]) -> list[fx.Node]:
    """Returns the tensors of a piece that other pieces read."""
    inside = set(piece)
    return [
        node
        for node in piece
        if isinstance(node.meta.get("val"), torch.Tensor) and any(user not in inside for user in node.users)
    ]
