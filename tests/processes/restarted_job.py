"""A training with loader workers, one of whose ranks is killed once: see test_torchrun.py."""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import torch

import deeppool as dp
from examples import own_training

KILLED = "DEEPPOOL_TEST_KILLED"
"""Variable with the file that exists once a rank was killed."""
UPDATE = 3
updates = itertools.count(1)


def loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The example's, but the first rank that comes to an update is killed there: its workers cannot remove anything."""
    if next(updates) == UPDATE:
        try:
            Path(os.environ[KILLED]).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return own_training.smoothed(outputs, target)


def job() -> dp.TrainingJob:
    return replace(own_training.job(), loss=loss, loader_workers=1)
