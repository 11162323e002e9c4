"""How gradients become updates: what a user chooses beside the plan, as Python's own objects."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.errors import InvalidValueError
from deeppool.graph.layer import Granularity
from deeppool.graph.models.torchvision_operators import define_missing_operators

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from deeppool.graph.capture.appended_loss import Loss
    from deeppool.graph.capture.capture import CapturedModel
    from deeppool.graph.inputs import Dtypes
    from deeppool.graph.shapes import Shapes

    MakeDataset = Callable[[], Dataset[Any]]
    NamedParameters = list[tuple[str, torch.nn.Parameter]]
    MakeOptimizer = Callable[[NamedParameters], torch.optim.Optimizer]
    MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]

LAUNCHED = "job.launched"


@dataclass(frozen=True, kw_only=True)
class Training:
    """The rule that every rank of a run follows."""

    optimizer: "MakeOptimizer"
    """Makes any torch optimizer of (name, parameter) pairs: those that a rank computes with."""
    schedule: "MakeSchedule | None" = None
    """Makes a learning-rate schedule that steps once an update."""
    accumulation: int = 1
    """Global batches whose mean gradient makes one update."""
    clip_norm: float | None = None
    """The most that the norm of all gradients together may be, as in ``torch.nn.utils.clip_grad_norm_``."""
    synchronise_batch_norm: bool = False
    """BatchNorm's statistics over all shards of the batch; False: over each shard, as in DDP."""
    seed: int = 0
    """Of weights, of the order of samples and of dropout's masks."""

    def __post_init__(self) -> None:
        if self.accumulation < 1:
            raise InvalidValueError(f"accumulation must be at least 1, got {self.accumulation}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise InvalidValueError(f"clip_norm must be positive and finite, got {self.clip_norm:g}")


@dataclass(frozen=True, kw_only=True)
class TrainingJob(Training):
    """A training of the user's own: model, data, loss and rule, given as Python.

    Whatever it holds travels to the processes of a run with its code, so it may be defined in a notebook.
    """

    model: "torch.nn.Module | str"
    """A module in the mode in which it trains, a workload's name, or ``package.module:callable``."""
    input_shape: "Shapes | None" = None
    """Of one sample, without the batch, as for :func:`deeppool.capture`."""
    input_dtype: "Dtypes | None" = None
    """As for :func:`deeppool.capture`."""
    dataset: "MakeDataset"
    """Makes, in each process, a dataset with a length whose items are each input, and the target."""
    loss: "Loss | None" = None
    """Maps (outputs, target) to the mean over the samples; None: as for :func:`deeppool.capture`."""
    loader_workers: int = 0
    """Processes per rank that load samples ahead; with 0 the rank itself does."""

    def capture(self, granularity: Granularity = "module") -> "CapturedModel":
        """The model and its loss as layers: what to profile and plan."""
        from deeppool.graph.capture.capture import capture

        return capture(
            self.model,
            self.input_shape,
            input_dtype=self.input_dtype,
            loss=self.loss,
            granularity=granularity,
            seed=self.seed,
        )


def save_job(job: TrainingJob, folder: str | os.PathLike[str]) -> None:
    """Hands a job to the processes of this run; ``folder`` must be private, as whoever can write it can run code."""
    import cloudpickle

    (Path(folder) / LAUNCHED).write_bytes(cloudpickle.dumps(job))


def load_job(folder: str | os.PathLike[str]) -> TrainingJob:
    """Takes over a job that the launcher of this very process saved."""
    import cloudpickle

    define_missing_operators()
    job: TrainingJob = cloudpickle.loads((Path(folder) / LAUNCHED).read_bytes())
    return job
