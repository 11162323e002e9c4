"""Task of a training process: the captured model, the rule of its updates, and the source of its samples.

A rank of a foreground captures the model as its plan does; a background job, which has no plan, as its job specifies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.batch_norm import check_statistics
from deeppool.graph.capture.appended_loss import Loss
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.placement import place_model
from deeppool.graph.inputs import Dtypes, describe, resolve, torch_dtype
from deeppool.graph.layer import Granularity, Input
from deeppool.graph.models.workloads import find_workload, load_model
from deeppool.graph.shapes import Shapes
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.training.batch_check import BatchCheck
from deeppool.training.data import ShardReader, first_sample
from deeppool.training.momentum_sgd import momentum_sgd
from deeppool.training.synthetic_task import SyntheticTask
from deeppool.training.training_job import Training, TrainingJob


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """Task of a training process."""

    captured: CapturedModel
    training: Training
    samples: Callable[[int, range], tuple[torch.Tensor, ...]]
    """Samples of an iteration: each input, and the targets."""
    order: str | None = None
    """Hash of the order of a dataset's samples, which must be the same on every rank."""
    forget: Callable[[], None] = lambda: None
    """Ends what reads the samples so far; called before others are read."""


def user_task(
    job: TrainingJob, batch: int, place: torch.device, plan: Plan | None = None, *, background: bool = False
) -> TrainingTask:
    """Returns the task of a user's training job.

    Args:
        job: training job of the user.
        batch: samples of an iteration, over all ranks.
        place: device of the model.
        plan: plan of which this process is a rank; None: of none.
        background: whether it is a background job.

    Raises:
        CaptureError: the model cannot become a graph.
        RunError: it is not the plan's any more.
        InvalidValueError: the dataset has no positions, too few samples, or no target, or the sampler does not fit; or
            a shard is too small for its BatchNorm, or the model has a SyncBatchNorm that the job does not ask for, or
            nothing to train.
    """
    module = load_model(job.model, job.seed) if isinstance(job.model, str) else job.model
    if plan is not None and plan.gpus > 1 and not job.synchronise_batch_norm:
        _check_no_sync_batch_norm(module)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidValueError(
            f"no parameter of {type(module).__name__} requires a gradient: nothing would train "
            "(requires_grad_(True) on those that shall)"
        )
    inputs = plan.inputs if plan else _inputs(job.model, job.input_shape, job.input_dtype)
    if plan is not None and job.input_shape is not None:
        own = _inputs(job.model, job.input_shape, job.input_dtype)
        if [given.shape for given in own] != [given.shape for given in inputs]:
            raise RunError(
                f"the plan is of {plan.model} with samples of {describe(inputs)}, the job's samples are of "
                f"{describe(own)} (profile what its capture() returns and plan with that, or give the job of the plan)"
            )
    dataset = job.dataset()
    reader = ShardReader(dataset, batch, job.seed, job.loader_workers, job.sampler, background=background)
    target = None if job.loss is None else first_sample(dataset)[-1][0]
    captured = _capture(module, place, inputs, plan, job.loss, target)
    reader.check = BatchCheck(captured, batch)
    together = [batch if job.synchronise_batch_norm else batch // gpus for gpus in _gpu_counts(captured, plan)]
    check_statistics(captured, together)
    return TrainingTask(captured, job, reader.shard, reader.order.digest(), reader.forget)


def synthetic_task(job: Job, place: torch.device, folder: Path, plan: Plan | None = None) -> TrainingTask:
    """Returns the task of SGD on synthetic data that any classifier can learn.

    Args:
        job: its batch is over all ranks.
        place: device of the model.
        folder: folder of the run, where the launcher pickled the model, if it has no name.
        plan: plan of which this process is a rank; None: it is a background job.

    Raises:
        CaptureError: the model is unknown, or cannot become a graph.
        RunError: it is not the plan's any more.
    """
    module = load_model(job.model, job.seed, folder)
    inputs = plan.inputs if plan else _inputs(job.model, job.input_shape or None)
    captured = _capture(module, place, inputs, plan)
    task = SyntheticTask(captured, job.batch, job.seed)

    def optimizer(parameters: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        return momentum_sgd(parameters, job.learning_rate, job.momentum)

    def samples(iteration: int, shard: range) -> tuple[torch.Tensor, ...]:
        return task.shard(iteration, shard.start, shard.stop)

    return TrainingTask(captured, Training(optimizer=optimizer, seed=job.seed), samples)


def _inputs(model: "torch.nn.Module | str", shapes: Shapes | None, dtypes: Dtypes | None = None) -> tuple[Input, ...]:
    """Returns the inputs of a named model, unless the job specifies others."""
    if isinstance(model, str):
        return resolve(find_workload(model).inputs, model, shapes, dtypes)
    return resolve((), type(model).__name__, shapes, dtypes)


def _check_no_sync_batch_norm(module: torch.nn.Module) -> None:
    for name, child in module.named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm) and child.training:
            raise InvalidValueError(
                f"{name} is a SyncBatchNorm, and the job takes the statistics of each shard alone "
                "(synchronise_batch_norm=True, or BatchNorm in its place)"
            )


def _gpu_counts(captured: CapturedModel, plan: Plan | None) -> list[int]:
    return [1] * len(captured.graph.layers) if plan is None else [layer.gpu_count for layer in plan.layers]


def _capture(
    module: torch.nn.Module,
    place: torch.device,
    inputs: tuple[Input, ...],
    plan: Plan | None,
    loss: Loss | None = None,
    target: torch.Tensor | None = None,
) -> CapturedModel:
    granularity: Granularity = plan.granularity if plan else "module"
    captured = capture(
        module,
        {given.name: given.shape for given in inputs},
        input_dtype={given.name: torch_dtype(given) for given in inputs},
        loss=loss,
        target=target,
        granularity=granularity,
    )
    if plan is not None and captured.graph.fingerprint != plan.graph_fingerprint:
        mode = "" if module.training else "call model.train(), it is in evaluation mode, or "
        there, here = ([layer.name for layer in found.layers] for found in (plan, captured.graph))
        if there != here:
            raise RunError(
                f"the plan is of another model, {plan.model} of layers {there[0]} … {there[-1]} ({len(there)}), and "
                f"not of {captured.graph.model} of layers {here[0]} … {here[-1]} ({len(here)}) ({mode}profile and plan "
                "this one, or give the job of the plan)"
            )
        raise RunError(
            f"model {plan.model} has changed since the plan was made, or its loss: the graph is "
            f"{captured.graph.fingerprint}, the plan's {plan.graph_fingerprint} ({mode}profile and plan it again)"
        )
    return place_model(captured, place)
