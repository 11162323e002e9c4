"""Iterations of a rank in two waves.

    iterate m   start the forward and backward of batch m in the wave m mod 2
                beside them: wait for the backward of m - 1; average its gradients with those of m - 2; sum them over
                the ranks; update the other wave's replica
                wait for the forward of m, and return its loss

Forwards follow each other, and so do backwards. Only the main thread starts sums, so all ranks start them in the same
order.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from deeppool.base.timeline import SpanKind
from deeppool.errors import InvalidValueError
from deeppool.execution.trainer import SyncDriver, Trainer
from deeppool.interleaving.wavelet.wave import WAVES, Pass, Wave
from deeppool.training.step import Batch


class WaveDriver(SyncDriver):
    """Orders both waves of one rank."""

    def __init__(self, trainer: Trainer) -> None:
        """Copies the trainer's replica.

        Raises:
            InvalidValueError: the plan is not data parallel over all ranks, or the rule cannot be followed in waves.
        """
        _check(trainer)
        super().__init__(trainer)
        replicas = ((trainer.captured, trainer.step), trainer.replica())
        # Parameters are placed on the stream of the main thread.
        trainer.device.synchronize_stream()
        streams = trainer.device.streams_of_one_pool(len(WAVES))
        self.waves = [
            Wave(name, trainer, *replica, stream)
            for name, replica, stream in zip(WAVES, replicas, streams, strict=True)
        ]
        self.waves[1].step.before_compute = self._before_compute
        self._last: Pass | None = None
        """The iteration that is not updated yet."""
        self._averages = False
        """Whether there was an iteration before it, with whose gradients its own are averaged."""

    def _before_compute(self) -> None:
        # Set after this driver was made, of the trainer's own step alone.
        self._trainer.step.before_compute()

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Starts one iteration and completes the one before; see :meth:`SyncDriver.iterate`."""
        number = self._trainer.step.iterations
        wave = self.waves[number % len(WAVES)]
        wave.step.iterations = number
        data = batches[0](self._trainer.parts[0].layout.shard(self._trainer.rank))
        started = wave.start(lambda samples: data, self._last)
        try:
            self.drain()
        finally:
            self._last = started
        with self._waiting("forward"):
            started.forward.wait()
        self._trainer.step.iterations = number + 1
        return wave.step.loss()

    def drain(self) -> None:
        """Completes the last iteration; all ranks call it."""
        if self._last is None:
            return
        last, self._last = self._last, None
        wave = last.wave
        other = self.waves[1 - self.waves.index(wave)]
        with self._waiting("backward"):
            last.backward.wait()
        with wave.stream.current(), torch.no_grad():
            wave.average(other.raw if self._averages else None)
            # Set after this driver was made, of the trainer's own rule alone.
            wave.step.rule.on_end = self._trainer.update.on_end
            wave.update()
        # Not on its stream, whose backward would wait for this update: what its own update reads is ordered by that.
        other.skip_update()
        self._averages = True

    def state(self) -> dict[str, Any]:
        """Returns the tock wave's replica and its optimizer, and this rank's gradients of the last iteration."""
        tick, tock = self.waves
        last = (tick, tock)[(self._trainer.step.iterations - 1) % len(WAVES)]
        return {
            "replica": {name: value.detach().cpu() for name, value in tock.values.items()},
            "rule": tock.state(),
            "raw": [value.cpu() for value in last.raw] if self._averages else None,
        }

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores the states of all ranks of an earlier run: the first rank has the gradients of all."""
        tick, tock = self.waves
        kept = [state for state in states if "replica" in state]
        values = kept[0]["replica"] if kept else tick.values
        with torch.no_grad():
            for name, value in tock.values.items():
                value.copy_(values[name])
        # Loading keeps tensors as they are, which two optimizers must not share.
        tock.restore(kept[0]["rule"] if kept else copy.deepcopy(tick.state()))
        raws = [state["raw"] for state in kept if state["raw"] is not None]
        self._averages = bool(raws)
        for wave in self.waves:
            for position, value in enumerate(wave.raw):
                value.zero_()
                for raw in raws if self._trainer.rank == 0 else ():
                    value.add_(raw[position].to(value.device))
        self._trainer.device.synchronize_stream()

    def close(self) -> None:
        """Ends the threads."""
        for wave in self.waves:
            wave.close()

    @contextmanager
    def _waiting(self, kind: SpanKind) -> Iterator[None]:
        """Marks what the main thread waits for, for the detection of hangs."""
        self._trainer.doing = (kind, 0, time.perf_counter())
        yield
        self._trainer.doing = None


def _check(trainer: Trainer) -> None:
    everywhere = tuple(range(trainer.ranks))
    if any(stage.layout.gpus != everywhere for stage in trainer.stages):
        raise InvalidValueError(
            "waves are data parallel: every layer computes on all ranks (make the plan by "
            "deeppool.planning.evaluate.data_parallel.data_parallel_plan)"
        )
    if trainer.precision in ("fp16", "tf32"):
        raise InvalidValueError(
            f"precision {trainer.precision} cannot be used in waves, whose two threads would need a loss scale and a "
            "mode of arithmetic of their own (use fp32 or bf16)"
        )
    if (batches := trainer.training.accumulation) > 1:
        raise InvalidValueError(
            f"waves average the gradients of two batches by themselves, got accumulation {batches} (set it to 1)"
        )
    if trainer.synchronises_batch_norm:
        raise InvalidValueError(
            "synchronised BatchNorm makes the forward of each wave wait for other ranks, while only one thread of a "
            "rank may (synchronise_batch_norm=False)"
        )
