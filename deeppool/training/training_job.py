"""Training rule and training job: settings that a user chooses beside the plan, as Python objects."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.base.arguments import check_fields
from deeppool.base.number_checks import positive_number, seed_number, whole_number
from deeppool.base.pickling import load_pickled, save_pickled
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.graph.layer import Granularity
from deeppool.graph.models.torchvision_operators import define_missing_operators

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from deeppool.graph.capture.appended_loss import Loss
    from deeppool.graph.capture.capture import CapturedModel
    from deeppool.graph.inputs import Dtypes
    from deeppool.graph.shapes import Shapes
    from deeppool.training.sampler import MakeSampler

    MakeDataset = Callable[[], Dataset[Any]]
    NamedParameters = list[tuple[str, torch.nn.Parameter]]
    MakeOptimizer = Callable[[NamedParameters], torch.optim.Optimizer]
    MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]

LAUNCHED = "job.launched"
SUCH_AS = {
    "dataset": "lambda: dataset",
    "loss": "torch.nn.functional.mse_loss",
    "optimizer": "lambda parameters: torch.optim.AdamW(parameters)",
    "sampler": "lambda dataset: torch.utils.data.RandomSampler(dataset)",
    "schedule": "lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)",
}
"""Examples of the functions of a job."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rule that every rank of a run follows."""

    optimizer: "MakeOptimizer"
    """Function that makes a torch optimizer from (name, parameter) pairs, or from some of them.

    Each rank gives it all parameters of the model that require gradients, so that all make the same groups, and then
    keeps those that it computes with."""
    schedule: "MakeSchedule | None" = None
    """Function that makes a learning-rate schedule, which steps once an update."""
    accumulation: int = 1
    """Number of global batches whose mean gradient makes one update."""
    clip_norm: float | None = None
    """Maximum norm of all gradients together, as in ``torch.nn.utils.clip_grad_norm_``."""
    synchronise_batch_norm: bool = False
    """Whether BatchNorm's statistics are over all shards of the batch; False: over each shard, as in DDP.

    So are the running statistics of an InstanceNorm, on which no update depends."""
    seed: int = 0
    """Seed of weights, of the order of samples and of dropout's masks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "accumulation", whole_number("accumulation", self.accumulation))
        object.__setattr__(self, "seed", seed_number(self.seed))
        if self.clip_norm is not None:
            object.__setattr__(self, "clip_norm", positive_number("clip_norm", self.clip_norm, "None: no clipping"))
        _check_function(self, "optimizer", required=True)
        _check_function(self, "schedule")
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class TrainingJob(Training):
    """Training of the user's own: model, data, loss and rule, given as Python objects.

    Its contents are sent to the processes of a run with their code, so it may be defined in a notebook.
    """

    model: "torch.nn.Module | str"
    """Module in the mode in which it trains, name of a workload, or ``package.module:callable``."""
    input_shape: "Shapes | None" = None
    """Input shapes of one sample, without the batch, as for :func:`deeppool.capture`."""
    input_dtype: "Dtypes | None" = None
    """Input types, as for :func:`deeppool.capture`."""
    dataset: "MakeDataset"
    """Function that makes, in each process, a dataset with a length whose items are inputs and a target.

    :meth:`capture` makes one too, if ``loss`` is given, which takes targets like that of the first sample."""
    loss: "Loss | None" = None
    """Loss function of (outputs, target), the mean over the samples, with targets of any shape; None: cross-entropy.

    A loss that is no such mean is refused, as by :func:`deeppool.capture`."""
    sampler: "MakeSampler | None" = None
    """Function that makes, from the dataset, a torch sampler of positions with a length, anew for each epoch.

    While an epoch is drawn, the random numbers of torch, numpy and Python are seeded by ``seed + epoch``, so that all
    ranks draw the same order; its ``set_epoch`` is called if there is one. None: a permutation by ``torch.randperm``
    with that seed. Samples that fill no global batch at the end of an epoch are dropped."""
    loader_workers: int = 0
    """Number of prefetching processes per rank; with 0 the rank itself loads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "loader_workers", whole_number("loader_workers", self.loader_workers, 0))
        _check_function(self, "dataset", required=True)
        _check_function(self, "loss")
        _check_function(self, "sampler")

    @property
    def model_name(self) -> str:
        """Name of the model, or of its class."""
        return self.model if isinstance(self.model, str) else type(self.model).__name__

    def capture(self, granularity: Granularity = "module") -> "CapturedModel":
        """Captures the model and its loss as layers, to profile and plan.

        Raises:
            InvalidValueError: the first item of the dataset does not fit the model, or not the loss, if one is given.
            CaptureError: as for :func:`deeppool.capture`.
        """
        from deeppool.graph.capture.capture import capture
        from deeppool.training.batch_check import BatchCheck
        from deeppool.training.data import first_sample

        sample = None if self.loss is None else first_sample(self.dataset())
        captured = capture(
            self.model,
            self.input_shape,
            input_dtype=self.input_dtype,
            loss=self.loss,
            target=None if sample is None else sample[-1][0],
            granularity=granularity,
            seed=self.seed,
        )
        if sample is not None:
            BatchCheck(captured, global_batch=1)(sample)
        return captured


def _check_function(rule: Training, name: str, *, required: bool = False) -> None:
    value = getattr(rule, name)
    if not callable(value) and (required or value is not None):
        raise InvalidValueError(
            f"{name} must be a function, which each process calls, got a {type(value).__name__} "
            f"(such as {SUCH_AS[name]})"
        )


def refuse_gradient_hooks(name: str, model: "torch.nn.Module") -> None:
    """Refuses hooks on gradients: they would see those of a rank's samples, in the sender of a job none.

    Raises:
        InvalidValueError: a parameter of the model has one.
    """
    for each, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise InvalidValueError(
                f"'{each}' of {name} has a hook on its gradient, which would not see the sum over all ranks (remove "
                "the hook: clip_norm= clips gradients, and a step_pre_hook of the optimizer sees these sums)"
            )


def save_job(job: TrainingJob, folder: str | os.PathLike[str]) -> None:
    """Saves a job for the processes of this run; ``folder`` must be private, as its writers can run code.

    Raises:
        CaptureError: the model is neither a module nor a name.
        InvalidValueError: the job cannot be pickled, or its model has a hook on a gradient, which pickling drops.
        RunError: the file cannot be written.
    """
    if not isinstance(job.model, str):
        import torch

        from deeppool.graph.capture.capture import no_module

        if not isinstance(job.model, torch.nn.Module):
            raise CaptureError(no_module(job.model))
        refuse_gradient_hooks(job.model_name, job.model)
    save_pickled(job, "the job", Path(folder) / LAUNCHED)


def load_job(folder: str | os.PathLike[str]) -> TrainingJob:
    """Loads a job that the launcher of this process saved."""
    define_missing_operators()
    job: TrainingJob = load_pickled(Path(folder) / LAUNCHED)
    return job
