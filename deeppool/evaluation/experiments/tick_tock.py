"""One wave, two waves and one of twice the batch on an emulated GPU: the memory that they reserve, and their speed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deeppool.cluster.cluster import Cluster
from deeppool.collectives.layout import Layout
from deeppool.device.emulated.device import new_device
from deeppool.device.protocol import Device
from deeppool.execution.communicator import SingleRank
from deeppool.execution.span_recorder import RawSpan
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.placement import place_model
from deeppool.interleaving.wavelet.driver import WaveDriver
from deeppool.interleaving.wavelet.predict import TickTockPrediction, predict_tick_tock
from deeppool.profiling.measure.profile import profile
from deeppool.training.synthetic_task import SyntheticTask
from deeppool.training.training_job import Training

WARM_UP, TIMED = 3, 4
"""Iterations; an even number is timed, so that both waves count alike."""


@dataclass(frozen=True, slots=True)
class WaveRun:
    """A training on one GPU, one rank alone."""

    waves: int
    batch: int
    """Samples of an iteration, which is of one wave."""
    memory: int
    """Bytes that the allocator reserves."""
    iteration_time: float

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.iteration_time

    def __str__(self) -> str:
        return f"{self.waves} of batch {self.batch}: {self.memory / 2**20:,.0f} MiB, {self.throughput:,.0f} samples/s"


def tick_tock(captured: CapturedModel, gpu: str, batches: Sequence[int]) -> tuple[WaveRun, ...]:
    """Runs, for each batch, one wave, two waves, and one wave of twice the batch, which computes as much at once.

    Args:
        captured: the model on the CPU; it is copied.
        gpu: name of a data sheet, such as ``h200``.
        batches: samples of an iteration.
    """
    found = []
    for batch in batches:
        for waves, samples in ((1, batch), (2, batch), (1, 2 * batch)):
            run, _ = train_waves(captured, new_device(gpu), samples, waves=waves)
            found.append(run)
    return tuple(found)


def predicted_tick_tock(captured: CapturedModel, gpu: str, batches: Sequence[int]) -> tuple[TickTockPrediction, ...]:
    """Predicts the same from layer times on that emulated GPU; arguments as for :func:`tick_tock`."""
    sizes = {size for batch in batches for size in (batch, 2 * batch)}
    times = profile(captured, device=f"emulated:{gpu}", batch_sizes=sorted(sizes))
    return tuple(predict_tick_tock(times, Cluster(1, memory=None), batch) for batch in batches)


def train_waves(captured: CapturedModel, device: Device, batch: int, *, waves: int) -> tuple[WaveRun, list[RawSpan]]:
    """Trains kernel by kernel, on an emulated device without values; returns memory and time, and spans.

    The allocator of the device should have reserved nothing before.
    """
    model = place_model(captured.copy(), device.torch_device())
    stage = Stage(captured.graph.model, tuple(range(len(captured.graph.layers))), Layout((0,), batch))
    data = SyntheticTask(captured, batch, 0).shard(0, 0, batch)
    with device.times_only(), device.stream("high").current():
        trainer = Trainer(
            model,
            [stage],
            SingleRank(),
            Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
            replay_graphs=False,
            make_driver=WaveDriver if waves == 2 else None,
        )
        recorded = []
        for iteration in range(WARM_UP + TIMED):
            if iteration == WARM_UP:
                trainer.driver.drain()
                device.synchronize()
                started = device.clock.now()
            trainer.iterate([lambda samples: data])
            recorded.append(trainer.recorded)
        trainer.driver.drain()
        device.synchronize()
        seconds = (device.clock.now() - started) / TIMED
        spans = [span for each in recorded for span in trainer.timed(each)]
        trainer.close()
    return WaveRun(waves, batch, device.reserved_memory() or 0, seconds), spans
