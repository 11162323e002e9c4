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

    The training is the same. With a clipped norm, which is the Trainer's default (``max_grad_norm=1.0``), each update
    waits for all transfers; ``max_grad_norm=0`` lets them run on into the next forward, and logs no norm.

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
    trainer.add_callback(callback)
    return callback


class TransferCallback(TrainerCallback):
    """Callback that replaces a Trainer's step; :func:`use_transfers` makes it."""

    def __init__(self, trainer: Trainer, cluster: Cluster, method: TransferScheduler) -> None:
        """Keeps the Trainer from wrapping its model."""
        self._trainer, self._cluster, self._method = trainer, cluster, method
        self._training: ScheduledTraining | None = None
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
        model, optimizer, accelerator = others["model"], others["optimizer"], self._trainer.accelerator
        self._training = training = self._method.wrap(model, optimizer.optimizer, self._cluster)
        optimizer.optimizer = SteppedOptimizer(optimizer.optimizer, training)
        # The Trainer accumulates gradients and clips them by these.
        self._replaced = [(model, "no_sync"), (accelerator, "clip_grad_norm_")]
        model.no_sync = training.no_sync
        accelerator.clip_grad_norm_ = self._clip

    def on_epoch_end(self, *_: Any, **others: Any) -> None:
        """Completes the update that is under way: the best model may be loaded next."""
        if self._training is not None:
            self._training.drain()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Completes the last update, and gives the Trainer its own step back."""
        if self._training is None:
            return
        self._training.drain()
        self.plan, self.timeline = self._training.transfers, self._training.timeline
        self._training.close()
        self._training = None
        optimizer = others["optimizer"]
        optimizer.optimizer = optimizer.optimizer.replaced
        for owner, name in self._replaced:
            delattr(owner, name)

    def _clip(self, parameters: Iterable[nn.Parameter], max_norm: float, norm_type: int = 2) -> torch.Tensor | None:
        """Clips the mean gradients; the norm that is only logged is not worth waiting for."""
        if math.isinf(max_norm) or self._training is None:
            return None
        return self._training.clip_grad_norm_(max_norm)
