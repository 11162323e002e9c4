"""``use_transfers``: a Trainer of transformers whose gradients travel by a plan of transfers."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from deeppool.adapters.stepped_optimizer import SteppedOptimizer
from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining
from deeppool.execution.transfer_scheduler import TransferScheduler
from deeppool.records.transfer_plan import TransferPlan


def use_transfers(trainer: Trainer, cluster: Cluster, method: TransferScheduler | None = None) -> "TransferCallback":
    """Lets a Trainer of transformers send gradients in the order of need, in place of DistributedDataParallel.

    In processes that torchrun started:

        trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
        transfers = use_transfers(trainer, dp.load("mine.json"))
        trainer.train()
        print(transfers.plan)

    The training is the same, and so is what callbacks see; only buffers, such as the statistics of a BatchNorm, stay
    each rank's own. With a clipped norm, which is the Trainer's default (``max_grad_norm=1.0``), or a callback of yours
    with ``on_pre_optimizer_step``, each update waits for all transfers; ``max_grad_norm=0`` lets them run on into the
    next forward, and logs no norm. With a callback of yours that has ``on_optimizer_step``, ``on_step_end`` or
    ``on_step_begin``, each update is complete before it is called. A ``compute_loss`` of yours that reads parameters
    itself, for a penalty on weights, reads them after the model's forward.

    Args:
        trainer: not trained yet; each process has one replica.
        cluster: the network between the ranks; measured by ``deeppool network`` or a preset.
        method: how transfers are planned.

    Raises:
        InvalidValueError: fp16, DeepSpeed or FSDP, whose steps are other ones.
    """
    if trainer.args.fp16 or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InvalidValueError(
            "transfers need a Trainer in fp32 or bf16 without DeepSpeed and FSDP: loss scaling and sharding have steps "
            "of their own (use bf16=True, or dp.train)"
        )
    callback = TransferCallback(trainer, cluster, method or TransferScheduler())
    # The first one: an update is complete before others read parameters.
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback


READING_PARAMETERS = ("on_optimizer_step", "on_step_end", "on_step_begin")
"""Methods of callbacks that may read parameters after every update."""


class TransferCallback(TrainerCallback):  # type: ignore[misc]  # skipped by mypy
    """Callback that replaces a Trainer's step; :func:`use_transfers` makes it."""

    def __init__(self, trainer: Trainer, cluster: Cluster, method: TransferScheduler) -> None:
        """Keeps the Trainer from wrapping its model."""
        self._trainer, self._cluster, self._method = trainer, cluster, method
        self._training: ScheduledTraining | None = None
        self._completes = self._completes_logged = self._sums = False
        """Whether callbacks may read parameters after every update, or when it is logged, and gradients before it."""
        self.plan: TransferPlan | None = None
        """Plan of the transfers, once the training has ended."""
        self.timeline: Timeline | None = None
        """Measured last complete iteration of this rank, once the training has ended."""
        # For evaluation, accelerate prepares a model without DistributedDataParallel.
        accelerator = trainer.accelerator
        accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: Any,
    ) -> None:
        """Gives all replicas the parameters of rank 0, and takes over the step."""
        if self._training is not None:
            # The training before has failed.
            self._end()
        model, optimizer, accelerator = others["model"], others["optimizer"], self._trainer.accelerator
        callbacks = self._trainer.callback_handler.callbacks
        self._completes = _any_defines(callbacks, READING_PARAMETERS)
        self._completes_logged = _any_defines(callbacks, ("on_log",))
        self._sums = _any_defines(callbacks, ("on_pre_optimizer_step",))
        self._training = training = self._method.wrap(model, optimizer.optimizer, self._cluster)
        self._optimizer = optimizer
        optimizer.optimizer = SteppedOptimizer(optimizer.optimizer, training)
        # The Trainer accumulates gradients and clips them by these.
        self._replaced = [(model, "no_sync"), (accelerator, "clip_grad_norm_")]
        model.no_sync = training.no_sync
        accelerator.clip_grad_norm_ = self._clip

    def on_optimizer_step(self, *_: Any, **others: Any) -> None:
        """Completes the update if callbacks read parameters after every one."""
        if self._completes:
            self._drain()

    def on_log(self, *_: Any, **others: Any) -> None:
        """Completes the update that is under way if callbacks may read parameters."""
        if self._completes_logged:
            self._drain()

    def on_save(self, *_: Any, **others: Any) -> None:
        """Completes the update that is under way, on ranks that save nothing, too."""
        self._drain()

    def on_epoch_end(self, *_: Any, **others: Any) -> None:
        """Completes the update that is under way: the best model may be loaded next."""
        self._drain()

    def on_train_end(self, *_: Any, **others: Any) -> None:
        """Completes the last update, and gives the Trainer its own step back."""
        if self._training is not None:
            self._end()

    def _drain(self) -> None:
        if self._training is not None:
            self._training.drain()

    def _end(self) -> None:
        training, self._training = self._training, None
        assert training is not None
        training.drain()
        self.plan, self.timeline = training.transfers, training.timeline
        training.close()
        self._optimizer.optimizer = self._optimizer.optimizer.replaced
        for owner, name in self._replaced:
            delattr(owner, name)

    def _clip(self, parameters: Iterable[nn.Parameter], max_norm: float, norm_type: int = 2) -> torch.Tensor | None:
        """Clips the mean gradients; the norm that is only logged is not worth waiting for."""
        if self._training is None or (math.isinf(max_norm) and not self._sums):
            return None
        return self._training.clip_grad_norm_(max_norm)


def _any_defines(callbacks: Iterable[TrainerCallback], methods: Iterable[str]) -> bool:
    """Returns whether callbacks of the user have any of some methods; those of transformers read no parameters."""
    defined = [getattr(callback, name) for callback in callbacks for name in methods]
    return any(not method.__module__.startswith(("transformers.", __name__)) for method in defined)
