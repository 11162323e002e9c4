"""One training step of a process, in four parts that a driver orders.

    compute       forward and backward of every part of the model, on one or more batches
    start_sync    starts to sum the gradients of buckets over the ranks that compute with them
    finish_sync   waits for these sums
    update        the optimizer, with clipping, loss scale and learning-rate schedule

``compute`` announces each bucket whose gradients are complete, and each part before its forward; the others take
buckets, by default all that are pending. Overlapping data parallelism calls ``start_sync`` at the announcement, and
the rest when ``compute`` has returned. Sums may also be left in flight, and finished in the next ``compute`` before
the part that uses the parameters. In one process there is nothing to sum, and values pass from part to part as they
are.

A driver runs its parts in an order of its own, but per update each bucket is computed, summed and updated once.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import fx

from deeppool.base.timeline import SpanKind
from deeppool.device.protocol import Device, Precision
from deeppool.errors import RunError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import Segment
from deeppool.training.bucket import Announcer, Bucket, OnReady
from deeppool.training.dropout import DropoutSeed, replace_dropout
from deeppool.training.gradient_sum import GradientSum
from deeppool.training.graph_replay import GraphReplay, fixed_inputs, replayed
from deeppool.training.precision import boundary_types
from deeppool.training.segment_run import SegmentRun
from deeppool.training.training_job import Training, refuse_gradient_hooks
from deeppool.training.update import Update
from deeppool.training.value_flow import LocalFlow, ValueFlow

Batch = Callable[[range], tuple[torch.Tensor, ...]]
"""Function that returns each input, and the targets, of a range of samples of the global batch, on any device."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model, and the samples on which this process computes it."""

    name: str
    segment: Segment
    samples: range
    """Positions in the global batch; empty: other processes compute it."""
    global_batch: int
    replayable: bool = True
    """Whether it may become a graph of the device: it does not wait for other ranks inside."""


class Monitor:
    """Observes a step; this one observes nothing."""

    def span(self, kind: SpanKind, part: int, name: str) -> AbstractContextManager[None]:
        """Encloses some work: its kind, the part of the model, and a name."""
        return nullcontext()

    def reading(self, part: int) -> None:
        """Marks the start of reading samples."""


class TrainingStep:
    """A process's share of a training step: ``compute``, ``start_sync``, ``finish_sync``, ``update``."""

    def __init__(
        self,
        captured: CapturedModel,
        parts: Sequence[Part],
        training: Training,
        device: Device,
        precision: Precision = "fp32",
        *,
        buckets: Sequence[Bucket] | None = None,
        counted: Sequence[torch.nn.Parameter] | None = None,
        announces_early: bool = False,
        flow: Callable[[], ValueFlow] = LocalFlow,
        gradient_sum: GradientSum | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        """Prepares the parts, captures those that can be graphs of the device, and makes the optimizer.

        Args:
            captured: the model, and its loss.
            parts: all parts of the model, in the order of their forwards.
            training: the rule of updates.
            device: device of the model.
            precision: precision of products and convolutions.
            buckets: all parameters of this process, in the order in which backward completes them. Default: one
                bucket per part and type.
            counted: parameters whose gradients this process adds to the norm of all. Default: all.
            announces_early: whether a bucket is announced during the backward of its part, or when that has ended.
            flow: makes the flow of values of a batch.
            gradient_sum: sums gradients over ranks. Default: there is one rank.
            monitor: observes the step.
        """
        self.parts = parts
        parameters = dict(captured.program.named_parameters())
        place = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
        self._flow, self._sum = flow, gradient_sum or GradientSum()
        self.monitor = monitor or Monitor()
        placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
        self._data = {node: position for position, node in enumerate(placeholders)}
        self.types = boundary_types(captured, [part.segment for part in parts], precision)
        """Type of every value between parts."""
        self._draw = DropoutSeed(training.seed, place)
        for part in parts:
            replace_dropout(part.segment, self._draw, part.samples)
        self.replays = device.asynchronous
        """Whether parts are replayed as graphs."""
        self._device, self._place = device, place
        self.passes = self._passes(device, place, precision, training.accumulation)
        # A replay has no moments at which single gradients are ready.
        self._announces_early = announces_early and not self.replays
        buckets = _bucket_per_part(parts) if buckets is None else buckets
        names = {parameter: name for name, parameter in parameters.items()}
        mine = [(names[parameter], parameter) for bucket in buckets for parameter in bucket.parameters]
        order = {name: position for position, name in enumerate(parameters)}
        self.rule = Update(
            sorted(mine, key=lambda named: order[named[0]]),
            training,
            place,
            device.fetch,
            trained=[named for named in captured.source.named_parameters() if named[1].requires_grad],
            counted=[parameter for _, parameter in mine] if counted is None else counted,
            total=self._sum.total,
            scaled=precision == "fp16",
        )
        """Optimizer, learning-rate schedule, clipping and loss scale."""
        # The model's own, or those of the functions that have made the optimizer and its schedule.
        refuse_gradient_hooks(captured.graph.model, captured.source)
        self._set_buckets(buckets)
        self.before_compute: Callable[[], None] = lambda: None
        """Called at the start of :meth:`compute`."""
        self.iterations = 0
        """Global batches that were trained on."""
        self._losses: list[tuple[Callable[[], torch.Tensor], float]] = []
        """Copies of the losses to the host, which may be in progress, and their weights."""
        self._computed: set[Bucket] = set()
        """Buckets with gradients that are not used for an update yet."""
        self._started: set[Bucket] = set()
        self._summed: set[Bucket] = set()

    def _passes(
        self, device: Device, place: torch.device, precision: Precision, accumulation: int
    ) -> list[SegmentRun | GraphReplay]:
        runs = [SegmentRun(part.segment, len(part.samples), place, precision) for part in self.parts]
        passes: list[SegmentRun | GraphReplay] = [*runs]
        if not self.replays:
            return passes
        chosen = [index for index, part in enumerate(self.parts) if part.samples and part.replayable]
        samples = [
            fixed_inputs(self.parts[index].segment, len(self.parts[index].samples), self.types, place)
            for index in chosen
        ]
        graphs = replayed([runs[index] for index in chosen], samples, device, accumulates=accumulation > 1)
        for index, graph in zip(chosen, graphs, strict=True):
            passes[index] = graph
        return passes

    def compute(
        self,
        batches: Sequence[Batch],
        on_ready: OnReady = lambda bucket: None,
        before_use: Callable[[int], None] = lambda part: None,
        before_backward: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs forward and backward of every part; gradients are the mean over all samples, times the loss scale.

        Args:
            batches: global batches whose mean gradient makes the update.
            on_ready: called with each bucket, in their order, once this process's gradients of it are complete.
            before_use: called with each part before the first forward that uses its parameters.
            before_backward: called between forward and backward of each batch.
        """
        self._losses.clear()
        self.before_compute()
        for number, batch in enumerate(batches):
            self._draw.begin(self.iterations)
            weight = 1 / len(batches)
            flow = self._flow()
            self._forward(flow, batch, weight, before_use if number == 0 else lambda part: None)
            self.iterations += 1
            before_backward()
            self._backward(flow, self.rule.scale.factor * weight, on_ready if number == len(batches) - 1 else None)
            flow.finish()

    def start_sync(self, *buckets: Bucket) -> None:
        """Starts to sum the gradients of buckets over their ranks; all ranks call it in the same order."""
        for bucket in buckets or self.pending():
            if bucket not in self._started:
                self._started.add(bucket)
                self._sum.start(bucket)

    def finish_sync(self, *buckets: Bucket) -> None:
        """Waits for the sums of buckets, and starts those that have not started."""
        for part, members in itertools.groupby(buckets or self.pending(), lambda bucket: bucket.part):
            waiting = [bucket for bucket in members if bucket not in self._summed]
            if any(len(bucket.ranks) > 1 for bucket in waiting):
                patterns = self._sum.patterns(waiting)
                name = self.parts[part].name + (f" by {', '.join(patterns)}" if patterns else "")
                with self.monitor.span("sync", part, name):
                    self._finish(waiting)
            else:
                self._finish(waiting)

    def _finish(self, buckets: Sequence[Bucket]) -> None:
        if buckets:
            self.start_sync(*buckets)
        for bucket in buckets:
            self._sum.finish(bucket)
            self._summed.add(bucket)

    def update(self, *buckets: Bucket) -> None:
        """Updates the parameters of buckets from their summed gradients, and clears these.

        Raises:
            RunError: the gradients of a bucket are not summed, or the rule needs the norm of all of them and some are
                not.
        """
        updated = buckets or self.pending()
        needed = self.pending() if self.rule.needs_norm else updated
        if missing := [bucket for bucket in needed if bucket not in self._summed]:
            which = "all, as clipping and the loss scale need their norm" if self.rule.needs_norm else "its own"
            raise RunError(
                f"the gradients of {len(missing)} of {len(self.buckets)} buckets are not summed: an update needs "
                f"those of {which} (call finish_sync first)"
            )
        if self.buckets and not updated:
            return
        chosen = None if not buckets else [parameter for bucket in buckets for parameter in bucket.parameters]
        # Nothing keeps a rank without parameters in step: a span of it would lie before the iteration of the others.
        if self.rule.optimizer is not None:
            with self.monitor.span("update", len(self.parts) - 1, "update"):
                self.rule.step(chosen)
        else:
            self.rule.step(chosen)
        for state in (self._computed, self._started, self._summed):
            state.difference_update(updated)

    def discard(self) -> None:
        """Leaves the gradients to the caller: no update of this step uses them."""
        for state in (self._computed, self._started, self._summed):
            state.clear()

    def pending(self, part: int | None = None) -> list[Bucket]:
        """Returns the buckets, of a part or of all, whose gradients are not used for an update yet, in their order."""
        buckets = self.buckets if part is None else self._buckets[part]
        return [bucket for bucket in buckets if bucket in self._computed]

    def regroup(self, buckets: Sequence[Bucket]) -> None:
        """Replaces the buckets by others of the same parameters, in the order in which backward completes them.

        Raises:
            RunError: gradients of a bucket are not used for an update yet.
        """
        if pending := self.pending():
            raise RunError(f"{len(pending)} buckets that others replace are not updated yet (call update first)")
        self._announcer.close()
        self._set_buckets(buckets)

    def _set_buckets(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = tuple(buckets)
        self._buckets: dict[int, list[Bucket]] = defaultdict(list)
        for bucket in self.buckets:
            self._buckets[bucket.part].append(bucket)
        self._announcer = Announcer(self.buckets, early=self._announces_early)

    def buckets_of(self, part: int) -> Sequence[Bucket]:
        """Returns the buckets that the backward of a part completes, in their order."""
        return self._buckets[part]

    def loss(self) -> float:
        """Returns this process's part of the mean loss over the batches of the last :meth:`compute`.

        Waits for the forwards alone: the device goes on with what was launched after them.
        """
        return sum(float(copied()) * weight for copied, weight in self._losses)

    def close(self) -> None:
        """Ends announcements."""
        self._announcer.close()

    def _forward(self, flow: ValueFlow, batch: Batch, weight: float, before_use: Callable[[int], None]) -> None:
        for index, (part, run) in enumerate(zip(self.parts, self.passes, strict=True)):
            outputs: dict[fx.Node, torch.Tensor] = {}
            before_use(index)
            if part.samples:
                inputs = self._inputs(index, flow, batch)
                with self.monitor.span("forward", index, part.name):
                    outputs = run.forward(inputs)
                if index == len(self.parts) - 1:
                    self._loss = outputs[part.segment.outputs[-1]]
                    share = len(part.samples) / part.global_batch * weight
                    self._losses.append((self._device.fetch(self._loss), share))
            flow.send_forward(index, outputs)

    def _inputs(self, index: int, flow: ValueFlow, batch: Batch) -> list[torch.Tensor]:
        part, found = self.parts[index], flow.inputs(index)
        if any(node.op == "placeholder" for node in part.segment.inputs):
            self.monitor.reading(index)
            data = batch(part.samples)
            # Only what this part reads is sent to the device, behind the work that is launched.
            found = found | {
                node: self._device.send(data[self._data[node]], self._place)
                for node in part.segment.inputs
                if node.op == "placeholder"
            }
        return [found[node] for node in part.segment.inputs]

    def _backward(self, flow: ValueFlow, seed: float, on_ready: OnReady | None) -> None:
        for index in reversed(range(len(self.parts))):
            part, gradients = self.parts[index], dict[fx.Node, torch.Tensor]()
            if on_ready is not None:
                self._started.difference_update(self._buckets[index])
                self._summed.difference_update(self._buckets[index])
                self._computed.update(self._buckets[index])
                self._announcer.expect(self._buckets[index], on_ready)
            if part.samples:
                arrived = flow.gradients(index)
                if index == len(self.parts) - 1:
                    # The mean loss of these samples counts by their number: uneven shards need no other weight.
                    weight = seed * len(part.samples) / part.global_batch
                    arrived = {part.segment.outputs[-1]: torch.full_like(self._loss, weight)}
                with self.monitor.span("backward", index, part.name):
                    gradients = self.passes[index].backward(arrived)
            if on_ready is not None:
                self._announcer.part_done()
            flow.send_backward(index, gradients)


def _bucket_per_part(parts: Sequence[Part]) -> list[Bucket]:
    """Returns a bucket for each part and type; a tied parameter is complete after the backward of its first part."""
    first: dict[torch.nn.Parameter, int] = {}
    for index, part in enumerate(parts):
        for parameter in part.segment.module.parameters():
            if parameter.requires_grad:
                first.setdefault(parameter, index)
    members: dict[tuple[int, torch.dtype], list[torch.nn.Parameter]] = defaultdict(list)
    for parameter, index in reversed(first.items()):
        members[-index, parameter.dtype].append(parameter)
    return [Bucket(tuple(members[key]), -key[0]) for key in sorted(members, key=lambda key: key[0])]
