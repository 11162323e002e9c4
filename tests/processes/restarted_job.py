"""A training with loader workers, one of whose ranks is killed once: see test_torchrun.py."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

import deeppool as dp
from examples import own_training

KILLED = "DEEPPOOL_TEST_KILLED"
"""Variable with the file that exists once a rank was killed."""
UPDATE = 3


class Killing(CosineAnnealingLR):
    """The example's schedule, but the first rank that comes to an update is killed there: nothing is tidied up."""

    def step(self, epoch: int | None = None) -> None:
        super().step()
        if self.last_epoch == UPDATE:
            try:
                Path(os.environ[KILLED]).touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def schedule(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return Killing(optimizer, 200)


def job() -> dp.TrainingJob:
    return replace(own_training.job(), schedule=schedule, loader_workers=1)
