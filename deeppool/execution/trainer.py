"""One rank's share of every iteration of a plan.

    forward    for each stage: fetch its inputs (reshard), run it on detached inputs
    backward   for each stage in reverse: run its backward, send the inputs' gradients back (reshard),
               sum the gradients of its parameters over its ranks
    update     the optimizer, on the parameters that this rank computes with (see update)

Several global batches may go into one update: gradients then add up on each rank, and are summed over the ranks
in the last one.

Stages run their backwards explicitly rather than through one autograd graph, so every rank meets every
transfer in the same order, whatever order autograd would choose. A rank outside a stage skips it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import fx

from deeppool.collectives.layout import Layout
from deeppool.device.common import Precision
from deeppool.execution.batch_norm import synchronise_batch_norm
from deeppool.execution.dropout import Draw, replace_dropout
from deeppool.execution.exchange import Exchange
from deeppool.execution.gradient_sync import GradientSync
from deeppool.execution.precision import autocast, boundary_types
from deeppool.execution.stages import Stage
from deeppool.execution.training import Training
from deeppool.execution.update import Update
from deeppool.graph.capture import CapturedModel
from deeppool.graph.extract import Segment, extract
from deeppool.timeline import SpanKind

Batch = Callable[[range], tuple[torch.Tensor, ...]]
"""Each input, and the targets, of a range of samples of the current global batch."""
RawSpan = tuple[SpanKind, int, str, float, float]
"""Kind, stage, operation, and start and end on the clock of ``time.perf_counter``."""


class Trainer:
    """Runs iterations; owns the process groups and the optimizer of one rank."""

    def __init__(
        self,
        captured: CapturedModel,
        stages: Sequence[Stage],
        rank: int,
        training: Training,
        precision: Precision = "fp32",
    ) -> None:
        """Every rank must make one, in the same order with other users of torch.distributed."""
        self.stages = stages
        self.rank, self.ranks = rank, dist.get_world_size()
        self._precision = precision
        self.iterations = 0
        """Global batches that were trained on."""
        self.spans: list[RawSpan] = []
        self.doing: tuple[str, int, float] | None = None
        """Kind of work, stage, and start as in a span; for another thread to read."""
        self.segments = [extract(captured, stage.layers) for stage in stages]
        self._types = boundary_types(captured, self.segments, precision)
        self._producer = {node: index for index, segment in enumerate(self.segments) for node in segment.outputs}
        placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
        self._data = {node: position for position, node in enumerate(placeholders)}
        self._exchange = Exchange(rank)
        parameters = dict(captured.program.named_parameters())
        self._owners = _owners(captured, stages)
        together = [stage.layout.gpus for stage in stages] if training.synchronise_batch_norm else []
        self._sync = GradientSync([*self._owners.values(), *together])
        self._synced_after = _synced_after(captured, stages, self._owners)
        self._by_name = parameters
        self._device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
        self._draw = Draw(training.seed)
        for segment, stage in zip(self.segments, stages, strict=True):
            replace_dropout(segment, self._draw)
            if training.synchronise_batch_norm and len(stage.layout.gpus) > 1 and rank in stage.layout.gpus:
                synchronise_batch_norm(segment, self._sync.group(stage.layout.gpus))
        names = dict(captured.source.named_parameters()) | dict(captured.source.named_buffers())
        owners = self._owners | _buffer_owners(self.segments, stages, set(names) - set(self._owners))
        self.state = {name: names[name] for name, ranks in owners.items() if rank in ranks}
        """Parameters and buffers that this rank computes with, by name."""
        self.first_owned = [name for name, ranks in owners.items() if ranks[0] == rank]
        """Those that it writes into checkpoints; rank 0 also what nobody computes with or nobody trains."""
        if rank == 0:
            rest = {name: value for name, value in names.items() if name not in owners}
            self.state |= rest
            self.first_owned += rest
        self.update = Update(parameters, self._owners, rank, training, scaled=precision == "fp16")

    def iterate(self, batches: Sequence[Batch]) -> float:
        """As many forwards and backwards as go into an update, and the update.

        Returns this rank's part of the mean loss over the global batches.
        """
        self.spans = []
        loss = self.gradients(batches)
        # Nothing keeps a rank without layers in step: a span of it would lie before the iteration of the others.
        if self.update.optimizer is not None:
            with self._span("update", len(self.stages) - 1, "update"):
                self.update.step()
        else:
            self.update.step()
        return loss

    def close(self) -> None:
        """Leaves the process groups; every rank does, in the same order with other users of torch.distributed."""
        self._sync.close()

    def gradients(self, batches: Sequence[Batch]) -> float:
        """Forwards and backwards; returns as :meth:`iterate` does.

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
        values: dict[fx.Node, torch.Tensor] = {}
        kept: dict[int, tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]] = {}
        loss = 0.0
        for index, (stage, segment) in enumerate(zip(self.stages, self.segments, strict=True)):
            inputs = self._fetch(index, values, batch)
            shard = stage.layout.shard(self.rank)
            if not len(shard):
                continue
            self._draw.samples = shard
            with self._span("forward", index, stage.name), autocast(self._device.type, self._precision):
                outputs = segment.module(len(shard), *inputs)
            values.update((node, output.detach()) for node, output in zip(segment.outputs, outputs, strict=True))
            kept[index] = (inputs, outputs)
            if index == len(self.stages) - 1:
                loss = float(outputs[-1].detach()) * len(shard) / stage.layout.batch
        self._backward(kept, values, last=last)
        self._exchange.finish()
        return loss

    def _fetch(self, index: int, values: dict[fx.Node, torch.Tensor], batch: Batch) -> list[torch.Tensor]:
        """A stage's inputs on this rank, as leaves of autograd; empty outside the stage."""
        layout = self.stages[index].layout
        shard = layout.shard(self.rank)
        inputs = []
        self.doing = ("data", index, time.perf_counter())
        data = batch(shard) if len(shard) and any(n.op == "placeholder" for n in self.segments[index].inputs) else None
        for node in self.segments[index].inputs:
            if node.op == "placeholder":
                tensor = None if data is None else data[self._data[node]]
            else:
                tensor = self._move(index, node, values.get(node), self._layout(node), layout, "→")
            if tensor is not None:
                inputs.append(tensor.detach().requires_grad_(tensor.is_floating_point() and node.op != "placeholder"))
        return inputs

    def _backward(
        self,
        kept: dict[int, tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]],
        values: dict[fx.Node, torch.Tensor],
        *,
        last: bool,
    ) -> None:
        gradients: dict[fx.Node, torch.Tensor] = {}
        for index in reversed(range(len(self.stages))):
            stage, segment = self.stages[index], self.segments[index]
            inputs: list[torch.Tensor] = []
            if index in kept:
                inputs, outputs = kept.pop(index)
                with self._span("backward", index, stage.name):
                    self._run_backward(index, segment, outputs, gradients)
            self._return_gradients(index, inputs, gradients, values)
            for names, ranks in self._synced_after[index] if last else ():
                if self.rank in ranks and len(ranks) > 1:
                    with self._span("sync", index, f"{stage.name} {len(names)} parameters"):
                        self._sync.sum([self._by_name[name] for name in names], ranks)

    def _run_backward(
        self, index: int, segment: Segment, outputs: tuple[torch.Tensor, ...], gradients: dict[fx.Node, torch.Tensor]
    ) -> None:
        roots, seeds = [], []
        for node, output in zip(segment.outputs, outputs, strict=True):
            if not output.requires_grad:
                continue
            if index == len(self.stages) - 1 and output is outputs[-1]:
                layout = self.stages[index].layout
                # The shard's mean loss counts for its share of the global batch: uneven shards need no other weight.
                seed = torch.full_like(output, self._weight * len(layout.shard(self.rank)) / layout.batch)
            else:
                seed = gradients.pop(node) if node in gradients else torch.zeros_like(output)
            roots.append(output)
            seeds.append(seed)
        if roots:
            torch.autograd.backward(roots, seeds)

    def _return_gradients(
        self,
        index: int,
        inputs: list[torch.Tensor],
        gradients: dict[fx.Node, torch.Tensor],
        values: dict[fx.Node, torch.Tensor],
    ) -> None:
        """Sends the gradients of a stage's inputs to the stages that made them, and adds them up there."""
        here = self.stages[index].layout
        by_node = dict(zip(self.segments[index].inputs, inputs, strict=False))
        for node in self.segments[index].inputs:
            if node.op == "placeholder" or not node.meta["val"].is_floating_point():
                continue
            leaf = by_node.get(node)
            gradient = None if leaf is None else leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            received = self._move(index, node, gradient, here, self._layout(node), "←", values.get(node))
            if received is not None:
                gradients[node] = gradients[node] + received if node in gradients else received

    def _layout(self, node: fx.Node) -> Layout:
        return self.stages[self._producer[node]].layout

    def _move(
        self,
        index: int,
        node: fx.Node,
        tensor: torch.Tensor | None,
        source: Layout,
        destination: Layout,
        arrow: str,
        like: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Reshards one value, or hands it on where the layouts are equal."""
        if source == destination:
            return tensor
        if self.rank not in source.gpus and self.rank not in destination.gpus:
            return None
        if tensor is not None:
            like = tensor
        elif like is None:
            shape = [int(size) for size in node.meta["val"].shape[1:]]
            like = torch.empty((0, *shape), dtype=self._types[node], device=self._device)
        with self._span("reshard", index, f"{node.name} {arrow} {self.stages[index].name}"):
            return self._exchange.move(tensor, source, destination, like)

    @contextmanager
    def _span(self, kind: SpanKind, stage: int, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self.doing = (kind, stage, started)
        yield
        self.doing = None
        self.spans.append((kind, stage, name, started, time.perf_counter()))


def _owners(captured: CapturedModel, stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
    """Per parameter the ranks that compute with it: of all stages that use it, where it is tied."""
    owners: dict[str, set[int]] = {}
    for stage in stages:
        for layer in stage.layers:
            for name in captured.graph.layers[layer].parameters:
                owners.setdefault(name, set()).update(stage.layout.gpus)
    return {name: tuple(sorted(ranks)) for name, ranks in owners.items()}


def _buffer_owners(segments: Sequence[Segment], stages: Sequence[Stage], names: set[str]) -> dict[str, tuple[int, ...]]:
    """Per buffer, and parameter that is not trained, the ranks that compute with it."""
    owners: dict[str, set[int]] = {}
    for segment, stage in zip(segments, stages, strict=True):
        for node in segment.module.graph.nodes:
            if node.op == "get_attr" and node.target in names:
                owners.setdefault(node.target, set()).update(stage.layout.gpus)
    return {name: tuple(sorted(ranks)) for name, ranks in owners.items()}


def _synced_after(
    captured: CapturedModel, stages: Sequence[Stage], owners: dict[str, tuple[int, ...]]
) -> list[list[tuple[list[str], tuple[int, ...]]]]:
    """Per stage, the parameters whose gradients are complete once its backward is done, grouped by their ranks."""
    first: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for layer in stage.layers:
            for name in captured.graph.layers[layer].parameters:
                first.setdefault(name, index)
    plan: list[dict[tuple[int, ...], list[str]]] = [{} for _ in stages]
    for name, index in first.items():
        plan[index].setdefault(owners[name], []).append(name)
    return [[(names, ranks) for ranks, names in groups.items()] for groups in plan]
