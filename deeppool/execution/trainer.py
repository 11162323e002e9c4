"""One rank's share of every iteration of a plan.

    forward    for each stage: await its inputs, run it on detached inputs, send what others read (reshard)
    backward   for each stage in reverse: await its outputs' gradients, run its backward, send the inputs'
               gradients back (reshard), sum the gradients of its parameters over its ranks
    update     the optimizer, on the parameters that this rank computes with (see update)

Several global batches may go into one update: gradients then add up on each rank, and are summed over the ranks
in the last one.

Stages run their backwards explicitly rather than through one autograd graph, so every rank meets every
transfer in the same order, whatever order autograd would choose. A rank outside a stage skips it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import fx

from deeppool.base.timeline import SpanKind
from deeppool.device.protocol import Precision
from deeppool.execution.batch_norm import synchronise_batch_norm
from deeppool.execution.communicator import Communicator
from deeppool.execution.cuda_graphs import stage_forwards
from deeppool.execution.exchange import Exchange
from deeppool.execution.flow import Flow, Routes
from deeppool.execution.gradient_sync import GradientSync, SharedParameters
from deeppool.execution.stages import Stage
from deeppool.execution.update import Update
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import Segment, extract
from deeppool.training.dropout import DropoutSeed, replace_dropout
from deeppool.training.precision import autocast, boundary_types
from deeppool.training.training_job import Training

Batch = Callable[[range], tuple[torch.Tensor, ...]]
"""Function that returns each input, and the targets, of a range of samples of the current global batch."""
RawSpan = tuple[SpanKind, int, str, float, float]
"""Kind, stage, operation, and start and end on the clock of ``time.perf_counter``."""


class Watcher(Protocol):
    """Protocol of an observer of the parts of an iteration; in a background it may delay them."""

    def begin(self, kind: SpanKind, stage: int) -> None:
        """Marks the start of a part; may delay it."""

    def end(self) -> None:
        """Marks the end of the part."""


class Trainer:
    """Runs iterations; owns the groups of ranks and the optimizer of one rank."""

    def __init__(
        self,
        captured: CapturedModel,
        stages: Sequence[Stage],
        communicator: Communicator,
        training: Training,
        precision: Precision = "fp32",
        *,
        overlap_sync: bool = False,
    ) -> None:
        """Creates groups and optimizer; every rank calls it, in the same order with other users of its communicator.

        Args:
            captured: the model, and its loss.
            stages: all of the plan, in order.
            communicator: all ranks, and which of them this one is.
            training: the rule.
            precision: precision of products and convolutions.
            overlap_sync: whether all-reduces run beside the backward pass, or after each stage's.
        """
        self.stages = stages
        self._communicator = communicator
        self.rank = rank = communicator.rank
        self.ranks = communicator.ranks
        self.precision = precision
        self.iterations = 0
        """Global batches that were trained on."""
        self.spans: list[RawSpan] = []
        self.doing: tuple[str, int, float] | None = None
        """Kind of work, stage, and start as in a span; for another thread to read."""
        self.watcher: Watcher | None = None
        self.segments = [extract(captured, stage.layers) for stage in stages]
        self._types = boundary_types(captured, self.segments, precision)
        self._routes = Routes(stages, self.segments)
        placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
        self._data = {node: position for position, node in enumerate(placeholders)}
        parameters = dict(captured.program.named_parameters())
        self._device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
        self._exchange = Exchange(communicator, self._device)
        self._owners = _owners(captured, stages)
        together = [stage.layout.gpus for stage in stages] if training.synchronise_batch_norm else []
        shared = _shared(captured, stages, self._owners)
        self._sync = GradientSync(communicator, [*self._owners.values(), *together], shared, overlap=overlap_sync)
        self._draw = DropoutSeed(training.seed)
        for segment, stage in zip(self.segments, stages, strict=True):
            replace_dropout(segment, self._draw)
            if training.synchronise_batch_norm and len(stage.layout.gpus) > 1 and rank in stage.layout.gpus:
                synchronise_batch_norm(segment, self._sync.group(stage.layout.gpus))
        shards = [len(stage.layout.shard(rank)) for stage in stages]
        self._forwards = stage_forwards(
            self.segments, shards, self._types, self._device, precision, accumulation=training.accumulation
        )
        names = dict(captured.source.named_parameters()) | dict(captured.source.named_buffers())
        owners = self._owners | _buffer_owners(self.segments, stages, set(names) - set(self._owners))
        self.state_dict_names = _state_dict_names(captured, names)
        """Each name of the model's ``state_dict``, with the name in ``state``: a tied parameter has several."""
        self.state = {name: names[name] for name, ranks in owners.items() if rank in ranks}
        """Parameters and buffers that this rank computes with, by name."""
        self.first_owned = [name for name, ranks in owners.items() if ranks[0] == rank]
        """Names of those that it writes into checkpoints; on rank 0 also those that no rank computes with or trains."""
        if rank == 0:
            rest = {name: value for name, value in names.items() if name not in owners}
            self.state |= rest
            self.first_owned += rest
        self.update = Update(parameters, self._owners, communicator, training, self._device, scaled=precision == "fp16")

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs the forwards and backwards of one update, and the update.

        Returns this rank's part of the mean loss over the global batches.
        """
        self.spans = []
        self._communicator.begin()
        loss = self.gradients(batches)
        # Nothing keeps a rank without layers in step: a span of it would lie before the iteration of the others.
        if self.update.optimizer is not None:
            with self._span("update", len(self.stages) - 1, "update"):
                self.update.step()
        else:
            self.update.step()
        self._communicator.end()
        return loss

    def close(self) -> None:
        """Closes the groups; every rank calls it, in the same order with other users of its communicator."""
        self._sync.close()

    def gradients(self, batches: Sequence[Batch]) -> float:
        """Runs the forwards and backwards of one update; returns as :meth:`iterate` does.

        Leaves the mean gradients over all samples, times the loss's scale, on the parameters that this rank owns.
        """
        loss = 0.0
        for number, batch in enumerate(batches):
            self._weight = self.update.scale.factor / len(batches)
            self._draw.iteration = self.iterations
            loss += self._forward_and_backward(batch, last=number == len(batches) - 1) / len(batches)
            self.iterations += 1
        return loss

    def _forward_and_backward(self, batch: Batch, *, last: bool) -> float:
        flow = Flow(self._routes, self._exchange, self._types, self._span)
        kept: dict[int, tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]] = {}
        loss = 0.0
        for index, (stage, segment) in enumerate(zip(self.stages, self.segments, strict=True)):
            shard = stage.layout.shard(self.rank)
            if len(shard):
                inputs = self._inputs(index, flow, batch)
                self._draw.samples = shard
                self._communicator.await_scheduled_start("forward", index)
                with self._span("forward", index, stage.name), autocast(self._device.type, self.precision):
                    outputs = self._forwards[index](*inputs)
                kept[index] = (inputs, outputs)
                if index == len(self.stages) - 1:
                    loss = float(outputs[-1].detach()) * len(shard) / stage.layout.batch
                flow.send_forward(index, {n: x.detach() for n, x in zip(segment.outputs, outputs, strict=True)})
            else:
                flow.send_forward(index, {})
        self._backward(kept, flow, last=last)
        self._exchange.finish()
        return loss

    def _inputs(self, index: int, flow: Flow, batch: Batch) -> list[torch.Tensor]:
        """Returns the inputs of a stage that this rank runs, as leaves of autograd."""
        found = flow.inputs(index)
        nodes = self.segments[index].inputs
        if len(found) < len(nodes):
            self.doing = ("data", index, time.perf_counter())
            data = batch(self.stages[index].layout.shard(self.rank))
            found |= {node: data[self._data[node]] for node in nodes if node.op == "placeholder"}
        return [
            found[node].detach().requires_grad_(found[node].is_floating_point() and node.op != "placeholder")
            for node in nodes
        ]

    def _backward(
        self, kept: dict[int, tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]], flow: Flow, *, last: bool
    ) -> None:
        for index in reversed(range(len(self.stages))):
            if last:
                self._sync.expect(index)
            gradients: dict[fx.Node, torch.Tensor] = {}
            if index in kept:
                inputs, outputs = kept.pop(index)
                arrived = flow.gradients(index)
                self._communicator.await_scheduled_start("backward", index)
                with self._span("backward", index, self.stages[index].name):
                    self._run_backward(index, outputs, arrived)
                gradients = {
                    node: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                    for node, leaf in zip(self.segments[index].inputs, inputs, strict=True)
                }
            if last and self._sync.overlap:
                self._sync.start(index)
            flow.send_backward(index, gradients)
            if last and not self._sync.overlap:
                self._finish_sync(index)
        if last and self._sync.overlap:
            for index in reversed(range(len(self.stages))):
                self._finish_sync(index)

    def _finish_sync(self, index: int) -> None:
        if self._sync.involves(index):
            with self._span("sync", index, self.stages[index].name):
                self._sync.start(index)
                self._sync.finish(index)

    def _run_backward(
        self, index: int, outputs: tuple[torch.Tensor, ...], gradients: dict[fx.Node, torch.Tensor]
    ) -> None:
        roots, seeds = [], []
        for node, output in zip(self.segments[index].outputs, outputs, strict=True):
            if not output.requires_grad:
                continue
            if index == len(self.stages) - 1 and output is outputs[-1]:
                layout = self.stages[index].layout
                # The shard's mean loss counts for its share of the global batch: uneven shards need no other weight.
                seed = torch.full_like(output, self._weight * len(layout.shard(self.rank)) / layout.batch)
            else:
                seed = gradients[node] if node in gradients else torch.zeros_like(output)
            roots.append(output)
            seeds.append(seed)
        if roots:
            torch.autograd.backward(roots, seeds)

    @contextmanager
    def _span(self, kind: SpanKind, stage: int, name: str) -> Iterator[None]:
        if self.watcher is not None:
            self.watcher.begin(kind, stage)
        self._communicator.enter(kind, stage)
        started = time.perf_counter()
        self.doing = (kind, stage, started)
        yield
        met = self._communicator.leave(kind, stage)
        self.doing = None
        self.spans.append((kind, stage, name, max(started, met), time.perf_counter()))
        if self.watcher is not None:
            self.watcher.end()


def _owners(captured: CapturedModel, stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
    """Returns, per parameter, the ranks that compute with it; for a tied one, those of all stages that use it."""
    owners: dict[str, set[int]] = {}
    for stage in stages:
        for layer in stage.layers:
            for name in captured.graph.layers[layer].parameters:
                owners.setdefault(name, set()).update(stage.layout.gpus)
    return {name: tuple(sorted(ranks)) for name, ranks in owners.items()}


def _buffer_owners(segments: Sequence[Segment], stages: Sequence[Stage], names: set[str]) -> dict[str, tuple[int, ...]]:
    """Returns, per buffer and per parameter that is not trained, the ranks that compute with it."""
    owners: dict[str, set[int]] = {}
    for segment, stage in zip(segments, stages, strict=True):
        for node in segment.module.graph.nodes:
            if node.op == "get_attr" and node.target in names:
                owners.setdefault(node.target, set()).update(stage.layout.gpus)
    return {name: tuple(sorted(ranks)) for name, ranks in owners.items()}


def _state_dict_names(captured: CapturedModel, names: dict[str, torch.Tensor]) -> dict[str, str]:
    """Returns, per name of the model's ``state_dict``, the one under which ``names`` has the same object."""
    found = {id(value): name for name, value in names.items()}
    state = captured.source.state_dict(keep_vars=True)
    return {key: found[id(value)] for key, value in state.items() if id(value) in found}


def _shared(
    captured: CapturedModel, stages: Sequence[Stage], owners: dict[str, tuple[int, ...]]
) -> list[list[SharedParameters]]:
    """Groups by ranks, per stage, the parameters whose gradients are complete once its backward is done."""
    parameters = dict(captured.program.named_parameters())
    first: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for layer in stage.layers:
            for name in captured.graph.layers[layer].parameters:
                first.setdefault(name, index)
    groups: list[dict[tuple[int, ...], list[torch.nn.Parameter]]] = [{} for _ in stages]
    for name, index in first.items():
        groups[index].setdefault(owners[name], []).append(parameters[name])
    return [[(members, ranks) for ranks, members in stage.items()] for stage in groups]
