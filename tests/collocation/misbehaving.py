"""Background jobs with every kind of fault, caused by their data at a given step, some of them once."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import deeppool as dp
from deeppool.training.data import SampleOrder

BATCH = 4
SIZE = 20


def net() -> nn.Module:
    """A model whose steps depend on their number: dropout masks, and BatchNorm's statistics."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5)
    )


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(SIZE, 3, 6, 6, generator=generator), torch.arange(SIZE) % 5)


class Faulty(Dataset):
    """The data, with a fault when the first sample of a step is read."""

    def __init__(self, fault: Callable[[], None], step: int, once: Path | None = None) -> None:
        self.data, self.fault, self.step, self.once, self.read = dataset(), fault, step, once, 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read += 1
        if self.read == BATCH * (self.step - 1) + 1 and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            self.fault()
        return self.data[position]


class NonFinite(Dataset):
    """Infinite images from a step on."""

    def __init__(self, step: int) -> None:
        self.data, self.step, self.read = dataset(), step, 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, target = self.data[position]
        self.read += 1
        return (image * torch.inf if self.read > BATCH * (self.step - 1) else image), target


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def fill_memory(size: int) -> None:
    """Fills memory and waits."""
    held = bytearray(os.urandom(2**20)) * (size // 2**20)
    threading.Event().wait()
    del held


def spin_forever() -> None:
    while True:
        pass


def ignore_signals(pids: Path) -> None:
    """Ignores signals, starts two processes that do too, one outside the process group, and writes the process IDs."""
    for what in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(what, signal.SIG_IGN)
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    started = [
        subprocess.Popen([sys.executable, "-c", program], start_new_session=alone).pid for alone in (False, True)
    ]
    written = pids.with_suffix(".partial")
    written.write_text(" ".join(map(str, [os.getpid(), *started])))
    written.rename(pids)


def adam(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def decay(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def training(data: Callable[[], Dataset] = dataset) -> dp.TrainingJob:
    return dp.TrainingJob(
        model=net(), input_shape=(3, 6, 6), dataset=data, optimizer=adam, schedule=decay, clip_norm=1.0
    )


def faulty(fault: Callable[[], None], step: int = 5, once: Path | None = None) -> dp.TrainingJob:
    return training(partial(Faulty, fault, step, once))


def plain_training(data: Callable[[], Dataset] = dataset) -> dp.TrainingJob:
    """The training of :func:`plain_loop`: without dropout, whose masks differ, and without clipping, which rounds."""
    module = nn.Sequential(*(layer for layer in net() if not isinstance(layer, nn.Dropout)))
    return dataclasses.replace(training(data), model=module, clip_norm=None)


def plain_loop(module: nn.Module, steps: int) -> list[float]:
    """Losses of the same training as a plain loop."""
    # More threads add up in another order.
    torch.set_num_threads(1)
    optimizer = adam([*module.named_parameters()])
    schedule = decay(optimizer)
    order = SampleOrder(SIZE, BATCH, seed=0)
    data, losses = dataset(), []
    for step in range(steps):
        images, targets = data[order.positions(step)]
        loss = nn.functional.cross_entropy(module(images), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses
