"""One rank's share of every iteration of a plan.

    compute    forward, for each stage: await its inputs, run it on detached inputs, send what others read (reshard);
               backward, in reverse: await its outputs' gradients, run it, send the inputs' gradients back (reshard)
    sync       sum the gradients of each bucket over its ranks, beside the backward pass or after each stage
    update     the optimizer, on the parameters that this rank computes with

Several global batches may go into one update: gradients then add up on each rank, and are summed over the ranks
in the last one.

Stages run their backwards explicitly rather than through one autograd graph, so every rank meets every
transfer in the same order, whatever order autograd would choose. A rank outside a stage skips it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from deeppool.collectives.buckets import DEFAULT_BUCKETS, Buckets
from deeppool.device.find import device_of
from deeppool.device.protocol import Precision
from deeppool.execution.batch_norm import synchronise_batch_norm
from deeppool.execution.communicator import Communicator
from deeppool.execution.emulated_rank import EmulatedCommunicator
from deeppool.execution.exchange import Exchange
from deeppool.execution.flow import Flow, Routes
from deeppool.execution.gradient_sync import GradientSync, ScheduleChoice, buckets_of_parts, make_buckets
from deeppool.execution.span_recorder import SpanRecorder
from deeppool.execution.stages import Division, Stage, divided
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import Segment, extract
from deeppool.records.transfer_plan import TransferPlan
from deeppool.training.bucket import Bucket
from deeppool.training.step import Batch, Part, TrainingStep
from deeppool.training.training_job import Training
from deeppool.training.update import Update


class SyncDriver:
    """Orders the parts of a rank's training steps; this one completes each update in the iteration that begins it."""

    transfers: TransferPlan | None = None
    """Plan of the transfers, once there is one."""

    def __init__(self, trainer: "Trainer") -> None:
        """Takes the trainer of this rank."""
        self._trainer = trainer

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs one update on some global batches, or begins it; returns this rank's part of their mean loss."""
        loss = self._trainer.gradients(batches)
        self._trainer.step.update()
        return loss

    def drain(self) -> None:
        """Completes the updates of all iterations, as parameters may be those of an earlier one; all ranks call it."""

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beside parameters and optimizer, as tensors and plain values by name.

        All ranks call it. Replicas that differ by the method's own doing are equal after it.
        """
        return {}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores what :meth:`state` returned on each rank of an earlier run, whatever their number."""

    def close(self) -> None:
        """Ends it; all ranks call it after the same iteration."""


class Trainer(SpanRecorder):
    """Runs the iterations of one rank; owns its groups of ranks, and its training step."""

    def __init__(
        self,
        captured: CapturedModel,
        stages: Sequence[Stage],
        communicator: Communicator,
        training: Training,
        precision: Precision = "fp32",
        *,
        overlap_sync: bool = False,
        buckets: Buckets = DEFAULT_BUCKETS,
        choose_schedule: ScheduleChoice | None = None,
        divide_stages: Division | None = None,
        replay_graphs: bool = True,
        make_driver: Callable[["Trainer"], SyncDriver] | None = None,
    ) -> None:
        """Creates groups and optimizer; every rank calls it, in the same order with other users of its communicator.

        Args:
            captured: the model, and its loss.
            stages: all of the plan, in order.
            communicator: all ranks, and which of them this one is.
            training: the rule.
            precision: precision of products and convolutions.
            overlap_sync: whether all-reduces run beside the backward pass, or after each stage's.
            buckets: rule that groups the gradients of a stage and its ranks.
            choose_schedule: chooses the schedule of each all-reduce; None: the library's own.
            divide_stages: how stages are divided into parts of the step, each of which announces its gradients when
                its backward has ended: by ``buckets`` graphs of a device overlap all-reduces, too. None: not at all.
            replay_graphs: whether parts become graphs of a device that has them.
            make_driver: makes the driver of the iterations; None: gradients are summed in the iteration that made them.
        """
        self.stages = stages
        self.parts: Sequence[Stage] = stages
        """What runs at once: the stages, or their divisions."""
        stage_of: Sequence[int] = range(len(stages))
        if divide_stages is not None:
            self.parts, stage_of = divided(captured, stages, divide_stages, buckets)
        self.parameters = parameters = dict(captured.program.named_parameters())
        place = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
        replay = communicator if isinstance(communicator, EmulatedCommunicator) else None
        super().__init__(device_of(place), stage_of, replay)
        self.communicator = communicator
        self.rank = rank = communicator.rank
        self.ranks = communicator.ranks
        self.precision = precision
        self.computed = True
        """Whether this rank computed in the last iteration; a driver may leave one out."""
        self._overlap = overlap_sync
        segments = [extract(captured, part.layers) for part in self.parts]
        self._owners = _owners(captured, stages)
        self.captured, self.training = captured, training
        self.synchronises_batch_norm = training.synchronise_batch_norm
        """Whether forwards wait for other ranks."""
        together = [stage.layout.gpus for stage in stages] if training.synchronise_batch_norm else []
        self.gradient_sync = GradientSync(communicator, [*self._owners.values(), *together], choose_schedule)
        self.shared = _shared(captured, self.parts, self._owners)
        """Per part, by the ranks that sum them, the parameters whose gradients its backward completes."""
        made = make_buckets(self.shared, rank, buckets)
        if divide_stages == "buckets":
            # Those that the planner prices: a small gradient may share one with gradients of other parts.
            whole = make_buckets(_shared(captured, stages, self._owners), rank, buckets)
            made = buckets_of_parts(whole, self.shared)
        self._counted = [parameters[name] for name, ranks in self._owners.items() if ranks[0] == rank]
        routes, exchange = Routes(self.parts, segments), Exchange(communicator, place)
        self.step = TrainingStep(
            captured,
            [
                self._part(part, segment, training, replay_graphs)
                for part, segment in zip(self.parts, segments, strict=True)
            ],
            training,
            self.device,
            precision,
            buckets=made,
            counted=self._counted,
            announces_early=overlap_sync and divide_stages is None,
            flow=lambda: Flow(routes, exchange, self.step.types, self.span),
            gradient_sum=self.gradient_sync,
            monitor=self,
        )
        names = dict(captured.source.named_parameters()) | dict(captured.source.named_buffers())
        buffer_owners = _buffer_owners(segments, self.parts, set(names) - set(self._owners))
        owners = self._owners | buffer_owners
        self.buffers = [
            names[name]
            for name, ranks in buffer_owners.items()
            if rank in ranks and names[name].is_floating_point() and not names[name].requires_grad
        ]
        """Statistics, and other numbers that this rank computes with and that no optimizer updates."""
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
        self.driver = (make_driver or SyncDriver)(self)
        """Orders the parts of an iteration."""

    @property
    def update(self) -> Update:
        """Optimizer, learning-rate schedule and loss scale of this rank."""
        return self.step.rule

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs one update on some global batches; returns this rank's part of their mean loss.

        A driver may leave some of the update for the next iteration, or for its ``drain``.
        """
        self.recorded = []
        if self._replay is not None:
            self._replay.begin()
        loss = self.driver.iterate(batches)
        if self._replay is not None:
            self._replay.end()
        return loss

    def gradients(self, batches: Sequence[Batch]) -> float:
        """Runs forward, backward and all-reduces of one update; returns as :meth:`iterate` does.

        Leaves the mean gradients over all samples, times the loss's scale, on the parameters that this rank owns.
        """
        self.step.compute(batches, self.step.start_sync if self._overlap else self._sync_in_turn)
        self.step.finish_sync()
        return self.step.loss()

    def replica(self) -> tuple[CapturedModel, TrainingStep]:
        """Returns a copy of the model as it is now, and its step, whose gradients this trainer's groups sum.

        All stages must lie on all ranks; one thread alone starts the sums of both replicas.
        """
        copied = self.captured.copy()
        own = dict(zip(self.captured.source.parameters(), copied.source.parameters(), strict=True))
        return copied, TrainingStep(
            copied,
            [
                replace(part, segment=extract(copied, stage.layers))
                for part, stage in zip(self.step.parts, self.parts, strict=True)
            ],
            self.training,
            self.device,
            self.precision,
            buckets=[
                replace(bucket, parameters=tuple(own[parameter] for parameter in bucket.parameters))
                for bucket in self.step.buckets
            ],
            counted=[own[parameter] for parameter in self._counted],
            gradient_sum=self.gradient_sync,
            monitor=self,
        )

    @property
    def computed_share(self) -> float:
        """This rank's share of the samples whose loss it computed in the last iteration."""
        return len(self.parts[-1].layout.shard(self.rank)) / self.parts[-1].layout.batch if self.computed else 0.0

    def close(self) -> None:
        """Closes the groups; every rank calls it, in the same order with other users of its communicator."""
        self.driver.close()
        self.step.close()
        self.gradient_sync.close()

    def _sync_in_turn(self, bucket: Bucket) -> None:
        """Waits for the all-reduces of a stage, once its last bucket is announced."""
        stage = self.step.buckets_of(bucket.part)
        if bucket is stage[-1]:
            self.step.finish_sync(*stage)

    def _part(self, stage: Stage, segment: Segment, training: Training, replay_graphs: bool) -> Part:
        waits = training.synchronise_batch_norm and len(stage.layout.gpus) > 1
        if waits and self.rank in stage.layout.gpus:
            share = len(stage.layout.shard(self.rank)) / stage.layout.batch
            synchronise_batch_norm(segment, self.gradient_sync.group(stage.layout.gpus), share)
        return Part(
            stage.name,
            segment,
            stage.layout.shard(self.rank),
            stage.layout.batch,
            replayable=replay_graphs and not waits,
        )


def _owners(captured: CapturedModel, stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
    """Returns, per parameter, the ranks that compute with it, in their stage's order.

    Those of a parameter that several stages use are all of these stages', ascending.
    """
    owners: dict[str, set[tuple[int, ...]]] = {}
    for stage in stages:
        for layer in stage.layers:
            for name in captured.graph.layers[layer].parameters:
                owners.setdefault(name, set()).add(stage.layout.gpus)
    return {
        name: next(iter(used)) if len(used) == 1 else tuple(sorted(set().union(*used))) for name, used in owners.items()
    }


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
) -> list[dict[tuple[int, ...], list[torch.nn.Parameter]]]:
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
    return groups
