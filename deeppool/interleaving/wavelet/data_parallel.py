"""Data-parallel training in two waves, a tick and a tock wave, each with a replica of the model on every rank.

    record = dp.train(plan, job, steps=1000, gradient_sync=dp.WaveletDataParallel())

Iterations alternate between the waves. The forward of one wave runs in the backward of the other, in memory that this
backward frees, and gradients are summed in the backward of the other wave too. Update m is made from the mean of the
gradients of iterations m and m - 1, over all ranks, and changes only the replica of iteration m.

This is not synchronous SGD on the same batches: each replica makes every other update, and the two differ, with plain
SGD after an even number of steps by ``lr * (first gradient - last gradient) / 2``. What it should be compared with is
one wave with twice the batch.
"""

from dataclasses import dataclass

from deeppool.costs.communication import Network
from deeppool.execution.gradient_sync import ScheduleChoice
from deeppool.execution.trainer import Trainer
from deeppool.interleaving.wavelet.driver import WaveDriver


@dataclass(frozen=True, slots=True)
class WaveletDataParallel:
    """Trains two replicas of the model on each rank, in waves; for ``dp.train(gradient_sync=…)``.

    A checkpoint holds both; its weights are those of the tick wave, which makes the first update.
    """

    divides_stages = False
    replays_graphs = False
    ranks_wait = True

    def choose_schedule(self, network: Network) -> ScheduleChoice | None:
        """Returns the plan's choice of the schedule of each all-reduce."""
        return network.all_reduce_schedule if network.performs_schedules else None

    def driver(self, trainer: Trainer, network: Network) -> WaveDriver:
        """Makes the driver of a rank's trainer."""
        return WaveDriver(trainer)
