"""``TransferStrategy``: a strategy of Lightning whose gradients travel by a plan of transfers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from deeppool.adapters.stepped_optimizer import SteppedOptimizer
from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining
from deeppool.execution.transfer_scheduler import TransferScheduler
from deeppool.records.transfer_plan import TransferPlan


class TransferStrategy(DDPStrategy):
    """DDP of Lightning, but for the gradients, which are sent in the order of need.

        strategy = TransferStrategy(dp.load("mine.json"))
        trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=10)
        trainer.fit(module, data)
        print(strategy.plan)

    The training is the same. It takes one optimizer and automatic optimization; with ``gradient_clip_val`` each update
    waits for all transfers.
    """

    def __init__(self, cluster: Cluster, method: TransferScheduler | None = None, **options: Any) -> None:
        """Takes the network between the ranks.

        Args:
            cluster: measured by ``deeppool network`` or a preset.
            method: how transfers are planned.
            options: as for Lightning's DDPStrategy.
        """
        super().__init__(**options)
        self._cluster, self._method = cluster, method or TransferScheduler()
        self._training: ScheduledTraining | None = None
        self.plan: TransferPlan | None = None
        """Plan of the transfers, once the training has ended."""
        self.timeline: Timeline | None = None
        """Measured last complete iteration of this rank, once the training has ended."""

    def configure_ddp(self) -> None:
        """Wraps the module in one that only calls it, so that hooks of its forward run."""
        assert isinstance(self.model, nn.Module)
        self.model = _Replica(self.model)

    def setup(self, trainer: Trainer) -> None:
        """Gives all replicas the parameters of rank 0, and plans their transfers.

        Raises:
            InvalidValueError: several optimizers, manual optimization, or fp16.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        module = self.lightning_module
        assert isinstance(module, LightningModule)
        if len(self.optimizers) != 1 or not module.automatic_optimization or "16-true" in str(trainer.precision):
            raise InvalidValueError(
                f"transfers need one optimizer and automatic optimization in fp32 or bf16-mixed, got "
                f"{len(self.optimizers)} optimizers in {trainer.precision} (use DDPStrategy)"
            )
        self._waits = bool(trainer.gradient_clip_val) or any(
            is_overridden(hook, module) for hook in ("configure_gradient_clipping", "on_before_optimizer_step")
        )
        self._training = self._method.wrap(module, self.optimizers[0], self._cluster)

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Makes an update, whose end may be left for the next forward."""
        training = self._training
        assert isinstance(training, ScheduledTraining)

        def backward() -> Any:
            result = closure()
            if self._waits:
                training.sum_gradients()
            return result

        stepped = SteppedOptimizer(optimizer, training)
        return super().optimizer_step(stepped, backward, model, **kwargs)  # type: ignore[arg-type]

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Adds the gradients of the backwards in this block to those of the next one outside of it."""
        if self._training is None:
            yield
            return
        with self._training.no_sync():
            yield

    def teardown(self) -> None:
        """Completes the last update, and ends the transfers."""
        training, self._training = self._training, None
        if training is not None:
            training.drain()
            self.plan, self.timeline = training.transfers, training.timeline
            training.close()
        if isinstance(self.model, _Replica):
            self.model = self.model.module
        super().teardown()


class _Replica(nn.Module):
    """Module whose forward is that of another one, as DistributedDataParallel's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)
