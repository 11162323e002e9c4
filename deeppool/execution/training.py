"""How gradients become updates: what a user chooses beside the plan, as Python's own objects."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deeppool.errors import InvalidValueError

if TYPE_CHECKING:
    import torch

    NamedParameters = list[tuple[str, torch.nn.Parameter]]
    MakeOptimizer = Callable[[NamedParameters], torch.optim.Optimizer]
    MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Training:
    """One rank's rule; every rank of a run has the same one."""

    optimizer: "MakeOptimizer"
    """Makes any torch optimizer of (name, parameter) pairs: those that a rank computes with."""
    schedule: "MakeSchedule | None" = None
    """Makes a learning-rate schedule that steps once an update."""
    accumulation: int = 1
    """Global batches whose mean gradient makes one update."""
    clip_norm: float | None = None
    """The most that the norm of all gradients together may be, as in ``torch.nn.utils.clip_grad_norm_``."""
    precision: Precision = "fp32"
    """``bf16`` and ``fp16`` run under autocast; ``fp16`` with a scaled loss (see update.LossScale)."""
    synchronise_batch_norm: bool = False
    """BatchNorm's statistics over all shards of the batch; False: over each shard, as in DDP."""
    seed: int = 0
    """Of dropout's masks."""

    def __post_init__(self) -> None:
        if self.accumulation < 1:
            raise InvalidValueError(f"accumulation must be at least 1, got {self.accumulation}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise InvalidValueError(f"clip_norm must be positive and finite, got {self.clip_norm:g}")
