"""``TransferStrategy``: a strategy of Lightning whose gradients travel by a plan of transfers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from deeppool.adapters.stepped_optimizer import SteppedOptimizer
from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining
from deeppool.execution.transfer_scheduler import TransferScheduler
from deeppool.records.transfer_plan import TransferPlan

READING_GRADIENTS = ("on_before_optimizer_step", "configure_gradient_clipping")
READING_PARAMETERS = ("optimizer_step", "lr_scheduler_step", "on_train_batch_start", "on_train_batch_end")
"""Hooks that may read or change them in every update."""


class TransferStrategy(DDPStrategy):
    """DDP of Lightning, but for the gradients, which are sent in the order of need.

        strategy = TransferStrategy(dp.load("mine.json"))
        trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=10)
        trainer.fit(module, data)
        print(strategy.plan)

    The training is the same, and so is what hooks see; only buffers, such as the statistics of a BatchNorm, stay each
    rank's own. It takes one optimizer and automatic optimization. With ``gradient_clip_val``, or
    hooks of yours on gradients (``on_after_backward``, ``on_before_optimizer_step``), each update waits for all
    transfers; with hooks of yours on steps (``optimizer_step``, ``lr_scheduler_step``, ``on_train_batch_end``), it is
    complete before them. A ``training_step`` that reads parameters itself, for a penalty on weights, reads them after
    the forward.
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
        self._accumulates = False
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
            InvalidValueError: several optimizers, manual optimization, fp16, or parameters in bf16.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        module = self.lightning_module
        assert isinstance(module, LightningModule)
        # Of 16-mixed: a rank with an infinite gradient leaves out the step in which the others wait for it.
        others = str(trainer.precision).endswith("16-true") or trainer.precision == "16-mixed"
        if len(self.optimizers) != 1 or not module.automatic_optimization or others:
            raise InvalidValueError(
                f"transfers need one optimizer and automatic optimization in fp32 or bf16-mixed, got "
                f"{len(self.optimizers)} optimizers in {trainer.precision} (use DDPStrategy)"
            )
        self._callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Trainer assigns it elsewhere
        hooked = [module, *self._callbacks]
        self._sums = _any_defines(hooked, ("on_after_backward",))
        self._waits = bool(trainer.gradient_clip_val) or _any_defines(hooked, READING_GRADIENTS)
        self._completes = _any_defines(hooked, READING_PARAMETERS)
        self._training = self._method.wrap(module, self.optimizers[0], self._cluster)
        # Lightning clears them after the next forward, and hooks may read them before; it takes no further memory.
        self._training.keep_gradients()
        # The first one: what others read is complete before.
        self._first = _Completion(self)
        self._callbacks.insert(0, self._first)

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
        result = super().optimizer_step(stepped, backward, model, **kwargs)  # type: ignore[arg-type]
        if self._completes:
            training.drain()
        return result

    def complete_gradients(self) -> None:
        """Waits for the mean gradients after a backward if hooks read them then, but those of an accumulation."""
        if self._training is not None and self._sums and not self._accumulates:
            self._training.sum_gradients()

    def complete_update(self) -> None:
        """Completes the update that is under way."""
        if self._training is not None:
            self._training.drain()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Adds the gradients of the backwards in this block to those of the next one outside of it."""
        if self._training is None:
            yield
            return
        self._accumulates = True
        try:
            with self._training.no_sync():
                yield
        finally:
            self._accumulates = False

    def teardown(self) -> None:
        """Completes the last update, and ends the transfers."""
        training, self._training = self._training, None
        if training is not None:
            self._callbacks.remove(self._first)
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


class _Completion(Callback):
    """Callback that completes what the hooks after it read."""

    def __init__(self, strategy: TransferStrategy) -> None:
        self._strategy = strategy

    def on_after_backward(self, *_: Any) -> None:
        self._strategy.complete_gradients()

    def on_before_zero_grad(self, *_: Any) -> None:
        self._strategy.complete_update()

    def on_validation_start(self, *_: Any) -> None:
        self._strategy.complete_update()

    def on_train_epoch_end(self, *_: Any) -> None:
        self._strategy.complete_update()


def _any_defines(owners: Iterable[object], hooks: Iterable[str]) -> bool:
    """Returns whether any hook is the user's; of Lightning's own only averages of weights read after every update."""
    found = [hook for owner in owners for name in hooks if (hook := getattr(owner, name, None)) is not None]
    return any(
        not hook.__module__.startswith("lightning.") or hook.__module__.endswith(".weight_averaging") for hook in found
    )
