"""A foreground in a stream of high priority, whose iterations are timed by the device: a model, or a rank of a plan.

Without gaps the host is an iteration ahead of the device. A rank of a plan whose other ranks are emulated waits as
long as it would for them, so its gaps are those of the plan.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from deeppool.collectives.buckets import DEFAULT_BUCKETS, Buckets
from deeppool.collocation.pieces import stage_of
from deeppool.device.protocol import Device, Precision
from deeppool.execution.communicator import Communicator, SingleRank
from deeppool.execution.emulated_rank import emulate_other_ranks
from deeppool.execution.iteration_record import IterationRecord, IterationTimes
from deeppool.execution.stages import Stage, stages_of
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.placement import place_model
from deeppool.graph.models.workloads import find_workload
from deeppool.planning.plan import Plan
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.training.momentum_sgd import momentum_sgd
from deeppool.training.synthetic_task import SyntheticTask
from deeppool.training.training_job import Training

STAGES = 8
"""Stages of a whole model: operators that the feedback tells apart."""
PROBE_GAP = 1e-3
"""Seconds without foreground before a probe of the wake-up delay."""


@dataclass(frozen=True, slots=True)
class _Program:
    """What a foreground computes."""

    captured: CapturedModel
    stages: Sequence[Stage]
    communicator: Communicator
    batch: int
    """Samples of the global batch."""
    precision: Precision
    overlap_sync: bool = False
    buckets: Buckets = DEFAULT_BUCKETS


class StreamForeground:
    """A training, each stage of which is a graph, whose iterations are timed."""

    def __init__(self, program: _Program, device: Device) -> None:
        """Captures it on a stream of high priority; see :meth:`of_model` and :meth:`of_rank`."""
        place, batch = device.torch_device(), program.batch
        self._device, self._stream, self._precision = device, device.stream("high"), program.precision
        self._communicator = program.communicator
        # Ranks that do not exist send noise, from which nothing is to be learned.
        rule = Training(optimizer=lambda named: momentum_sgd(named, 0.0, 0.9))
        with self._stream.current(), device.arithmetic(program.precision):
            task = SyntheticTask(program.captured, batch, 0)
            self._data = [tensor.to(place) for tensor in task.shard(0, 0, batch)]
            self._trainer = Trainer(
                program.captured,
                program.stages,
                program.communicator,
                rule,
                program.precision,
                overlap_sync=program.overlap_sync,
                buckets=program.buckets,
            )
            self._probe = _probe(device)
        self._trainer.follow_device()
        self.limits, self.gap = FREE, 0.0

    @classmethod
    def of_model(cls, name: str, batch: int, precision: Precision, device: Device) -> Self:
        """Captures a whole model in stages of about as many layers.

        Args:
            name: name of the workload.
            batch: samples of an iteration.
            precision: precision of products and convolutions.
            device: runs it.
        """
        captured = _capture(name, device)
        edges = sorted({round(edge) for edge in np.linspace(0, len(captured.graph.layers), STAGES + 1)})
        stages = [stage_of(captured, range(first, last), batch) for first, last in itertools.pairwise(edges)]
        return cls(_Program(captured, stages, SingleRank(), batch, precision), device)

    @classmethod
    def of_rank(cls, plan: Plan, rank: int, device: Device) -> Self:
        """Captures one rank of a plan of a workload; the others are emulated in the time of the machine.

        Args:
            plan: the plan.
            rank: the rank that computes.
            device: runs it.
        """
        captured = _capture(plan.model, device)
        others = emulate_other_ranks(rank, plan, device.torch_device())
        program = _Program(
            captured,
            stages_of(plan),
            others,
            plan.global_batch,
            plan.precision,
            overlap_sync=plan.overlap_sync,
            buckets=plan.buckets,
        )
        return cls(program, device)

    def current(self) -> AbstractContextManager[None]:
        """Makes its stream current in the block, in which it runs.

        Not for each iteration: a background enters and leaves its own stream, too, and through the stream around both
        each would wait for the other.
        """
        return self._stream.current()

    def start(self) -> None:
        """Begins the first of some iterations."""
        self._communicator.barrier()
        self._record = IterationRecord(self._trainer)

    def iterate(self) -> IterationTimes | None:
        """Launches an iteration; returns the times of the one before, or with gaps its own.

        Without gaps the device always has the next iteration: launching, waiting and launching again would leave it
        idle in between, and a background harmless there.
        """
        with self._device.arithmetic(self._precision):
            self._trainer.iterate([self._samples])
            self._record.lap()
            measured = self._record.next_times(last=self.gap > 0)
            if self.gap:
                self._device.clock.sleep(self.gap)
                self._record = IterationRecord(self._trainer)
        return measured

    def _samples(self, samples: range) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[samples.start : samples.stop] for tensor in self._data)

    def finish(self) -> IterationTimes | None:
        """Returns the times of the last iteration, unless :meth:`iterate` has returned them."""
        return self._record.next_times(last=True)

    def repeat(self, iterations: int) -> list[IterationTimes]:
        """Returns the times of some iterations in a row."""
        self.start()
        found = [self.iterate() for _ in range(iterations)]
        return [times for times in (*found, self.finish()) if times is not None]

    def wake(self, probes: int) -> list[float]:
        """Returns the seconds from the launch of a short graph on the idle stream until it has ended, several times."""
        found = []
        for _ in range(probes):
            self._device.clock.sleep(PROBE_GAP)
            launch = self._stream.launch(self._probe)
            while not launch.done():
                self._device.clock.sleep(PROBE_GAP / 10)
            found.append(launch.seconds())
        return found

    def state(self) -> tuple[BackgroundLimits, Operator | None]:
        """Returns the background's limits, and the operator that the device runs."""
        return self.limits, self._trainer.running


def _capture(name: str, device: Device) -> CapturedModel:
    torch.manual_seed(0)
    workload = find_workload(name)
    return place_model(capture(workload.build(), workload.inputs[0].shape), device.torch_device())


def _probe(device: Device) -> Callable[[], None]:
    """Returns a graph of one short kernel."""
    counter = torch.zeros(1, device=device.torch_device())

    def count() -> None:
        counter.add_(1)

    (graph,) = device.repeatable(count)
    return graph
