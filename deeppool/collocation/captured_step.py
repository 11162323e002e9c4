"""A training step cut into pieces that a GPU repeats one by one: a background's work between two looks at its gate.

    forward 0 … forward n │ backward n … backward 0 │ update

Every piece reads and writes memory that stays where it is, so each can be a CUDA graph, all in one pool: captured in
the order in which they run, what one piece frees serves the next. Gradients are made anew by each step; none is zeroed.
On a CPU the pieces run as they are. Never run on a GPU so far.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import fx

from deeppool.device.common import Device, Precision
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import extract
from deeppool.training.precision import autocast

Values = dict[fx.Node, torch.Tensor]


class CapturedStep:
    """A model, a batch that stays in place, and the pieces of a step on it."""

    def __init__(
        self,
        captured: CapturedModel,
        cuts: Sequence[range],
        data: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer,
        precision: Precision = "fp32",
    ) -> None:
        """Runs nothing yet.

        Args:
            captured: the model, on its device.
            cuts: the layers of each piece, in order.
            data: each input, and the targets, of one batch, on the device; overwritten by :meth:`feed`.
            optimizer: of the model's parameters; one whose step reads nothing back from the device, as SGD's.
            precision: of products and convolutions; fp32 is whatever torch is set to.
        """
        placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
        self._data: Values = dict(zip(placeholders, (tensor.clone() for tensor in data), strict=True))
        self._batch = len(data[0])
        self._segments = [extract(captured, cut) for cut in cuts]
        self._model, self._optimizer, self._precision = captured.program, optimizer, precision
        self._values: Values = {}
        self._leaves: list[Values] = [{} for _ in cuts]
        self._outputs: list[tuple[torch.Tensor, ...]] = [() for _ in cuts]
        self._gradients: Values = {}

    @property
    def works(self) -> tuple[Callable[[], None], ...]:
        """The pieces in order; run one after another, they are a step."""
        order = range(len(self._segments))
        forwards = [partial(self._forward, index) for index in order]
        backwards = [partial(self._backward, index) for index in reversed(order)]
        return (*forwards, *backwards, self._update)

    def capture(self, device: Device) -> tuple[Callable[[], None], ...]:
        """The pieces as what the device repeats, at the priority of the current stream; the model stays as it is.

        Warming up takes some steps, whose traces are wiped out.
        """
        with self.tried():
            return device.repeatable(*self.works)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Steps in the block are no training: the model is then as before, and the optimizer as if it were new."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        before = [tensor.detach().clone() for tensor in tensors]
        yield
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            for state in self._optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()

    def feed(self, data: Sequence[torch.Tensor]) -> None:
        """Puts another batch in the place of the last, in the order of what the current stream was given."""
        for held, given in zip(self._data.values(), data, strict=True):
            held.copy_(given, non_blocking=True)
            if given.is_cuda:
                # Its memory must not serve another batch before the device has come to this copy.
                given.record_stream(torch.cuda.current_stream(given.device))

    def loss(self) -> torch.Tensor:
        """Of the last step, on the device."""
        return self._outputs[-1][-1].detach()

    def _forward(self, index: int) -> None:
        if index == 0:
            # A gradient that is not there is written by the backward, one that is there would be added to.
            for parameter in self._model.parameters():
                parameter.grad = None
        leaves = self._leaves[index] = {node: self._leaf(node) for node in self._segments[index].inputs}
        # A weight that was cast in one graph must not be kept for another.
        with autocast(next(iter(self._data.values())).device.type, self._precision, cache_enabled=False):
            outputs = self._segments[index].module(self._batch, *leaves.values())
        self._outputs[index] = outputs
        self._values.update(zip(self._segments[index].outputs, outputs, strict=True))

    def _leaf(self, node: fx.Node) -> torch.Tensor:
        if node.op == "placeholder":
            return self._data[node]
        value = self._values[node]
        return value.detach().requires_grad_(value.requires_grad)

    def _backward(self, index: int) -> None:
        if index == len(self._segments) - 1:
            loss = self._outputs[index][-1]
            self._gradients = {self._segments[index].outputs[-1]: torch.ones_like(loss)}
        outputs = zip(self._segments[index].outputs, self._outputs[index], strict=True)
        roots = [(value, self._gradients.pop(node)) for node, value in outputs if node in self._gradients]
        if roots:
            torch.autograd.backward([value for value, _ in roots], [gradient for _, gradient in roots])
        for node, leaf in self._leaves[index].items():
            if node.op != "placeholder" and leaf.grad is not None:
                known = self._gradients.get(node)
                self._gradients[node] = leaf.grad if known is None else known + leaf.grad

    def _update(self) -> None:
        self._optimizer.step()
