"""Splits a training step into pieces that a GPU replays one by one, so that a gate can admit each of them.

    forward 0 … forward n │ backward n … backward 0 │ update

Every piece reads and writes memory at fixed addresses, so each can be a CUDA graph. All share one pool and are captured
in the order in which they run: memory that one piece frees is reused by the next. Each step creates its gradients; none
is zeroed. On a CPU the pieces run as they are. Never run on a GPU so far.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import fx

from deeppool.device.protocol import Device, Precision
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import extract
from deeppool.training.precision import autocast

Values = dict[fx.Node, torch.Tensor]


class CapturedStep:
    """A model, a batch at a fixed address, and the pieces of a training step on it."""

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
            cuts: layers of each piece, in order.
            data: inputs and targets of one batch, on the device; overwritten by :meth:`load_batch`.
            optimizer: optimizer of the model's parameters; its step must not read from the device (SGD's does not).
            precision: precision of matrix products and convolutions; fp32 is whatever torch is set to.
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
    def pieces(self) -> tuple[Callable[[], None], ...]:
        """The pieces in order; run one after another they make one step."""
        order = range(len(self._segments))
        forwards = [partial(self._forward, index) for index in order]
        backwards = [partial(self._backward, index) for index in reversed(order)]
        return (*forwards, *backwards, self._update)

    def capture(self, device: Device) -> tuple[Callable[[], None], ...]:
        """Captures the pieces for replay, at the priority of the current stream; the model does not change.

        The steps of the warm-up are undone.
        """
        with self.undone():
            return device.repeatable(*self.pieces)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undoes the steps of the block: restores the model, and clears the optimizer's state."""
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

    def load_batch(self, data: Sequence[torch.Tensor]) -> None:
        """Copies another batch over the last one, in order with the work of the current stream."""
        for held, given in zip(self._data.values(), data, strict=True):
            held.copy_(given, non_blocking=True)
            if given.is_cuda:
                # Its memory must not be reused before the device has made this copy.
                given.record_stream(torch.cuda.current_stream(given.device))

    def loss(self) -> torch.Tensor:
        """Loss of the last step, on the device."""
        return self._outputs[-1][-1].detach()

    def _forward(self, index: int) -> None:
        if index == 0:
            # The backward writes a missing gradient, and would add to an existing one.
            for parameter in self._model.parameters():
                parameter.grad = None
        leaves = self._leaves[index] = {node: self._leaf(node) for node in self._segments[index].inputs}
        # A weight cast in one graph must not be cached for another.
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
