"""One rank of the tests of jobs that cross over; see test_bit_equality.py."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

import deeppool as dp
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.execution import training_task
from deeppool.execution.training_task import user_task
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, RandomNumbers, take_turn
from deeppool.interleaving.crossover.order import turns
from deeppool.interleaving.crossover.transfer_queue import TransferQueue

BATCH = 6
SAMPLES = 24

CPU = CpuDevice()
SLOW = "slow"
"""Label of a scenario in which one rank comes late to every turn."""

Scenario = tuple[str, dict[str, int], str | None]
"""A label, the steps of each job, and the pattern of the all-reduce."""


class Noisy(Dataset):
    """Samples that draw from the process's own random numbers, as augmentation does."""

    def __init__(self, shape: tuple[int, ...], noise: float = 0.1) -> None:
        self.shape, self.noise = shape, noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        clean = torch.randn(self.shape, generator=torch.Generator().manual_seed(index))
        noise = torch.rand(self.shape) + float(np.random.rand()) + random.random()
        return clean + self.noise * noise, index % 4


class Image(nn.Module):
    """BatchNorm, dropout, and frozen, unused and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.frozen = nn.Conv2d(8, 8, 1).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.3)
        self.tied = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.frozen(self.norm(self.stem(x)))).mean((2, 3))
        x = torch.tanh(self.tied(self.drop(x)))
        return self.head(torch.tanh(self.tied(x)))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def vector() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(27, 4))


def make_jobs() -> dict[str, dp.TrainingJob]:
    """Three jobs that differ in all that could leak from one to another."""
    return {
        "image": dp.TrainingJob(
            model=seeded(Image), input_shape=(3, 6, 6), dataset=lambda: Noisy((3, 6, 6)), optimizer=momentum, seed=1
        ),
        "vector": dp.TrainingJob(
            model=seeded(vector),
            input_shape=(12,),
            dataset=lambda: Noisy((12,)),
            optimizer=adamw,
            schedule=halving,
            clip_norm=0.1,
            accumulation=2,
            seed=2,
        ),
        "plain": dp.TrainingJob(
            model=seeded(plain),
            input_shape=(3, 3, 3),
            dataset=lambda: Noisy((3, 3, 3), noise=0.0),
            optimizer=momentum,
            synchronise_batch_norm=True,
            seed=3,
        ),
    }


def join(rank: int, ranks: int, folder: str, device: Device = CPU) -> TransferQueue:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    return TransferQueue(device)


def capture_once(model: nn.Module, shapes: dict[str, tuple[int, ...]], **options) -> CapturedModel:
    """Captures each job's model once, for all ranks and scenarios; each has weights of its own."""
    key = tuple(shapes.values())
    if key not in CAPTURED:
        CAPTURED[key] = capture(model, shapes, **options)
    return CAPTURED[key].copy()


CAPTURED: dict[tuple[tuple[int, ...], ...], CapturedModel] = {}


def prepare(ranks: int, scenarios: list[Scenario], *_: object) -> None:
    """Captures the models of all jobs, in a process of these ranks alone."""
    training_task.capture = capture_once
    for name in {name for _, steps, _ in scenarios for name in steps}:
        user_task(make_jobs()[name], BATCH, CPU.torch_device())


def on_rank(name: str, queue: TransferQueue, pattern: str | None = None, device: Device = CPU) -> JobOnRank:
    job, place = make_jobs()[name], device.torch_device()
    own = RandomNumbers(job.seed)
    with own.current():
        task = user_task(job, BATCH, place)
    choose = None if pattern is None else lambda ranks, size: ALL_REDUCES[pattern](ranks, 1)
    return JobOnRank(name, task, BATCH, queue, device, place, own, choose_schedule=choose)


def state_of(job: JobOnRank) -> dict[str, torch.Tensor]:
    """Weights, buffers, and the optimizer's state."""
    optimizer = job.trainer.update.optimizer
    states = [
        value
        for state in optimizer.state_dict()["state"].values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {name: value.detach().cpu() for name, value in job.trainer.state.items()} | {
        f"optimizer {number}": value.cpu() for number, value in enumerate(states)
    }


def train_scenarios(rank: int, ranks: int, scenarios: list[Scenario], folder: str, kind: str = "cpu") -> None:
    """Trains the jobs of each scenario together; saves each job's state and losses."""
    device = find_device(kind)
    queue = join(rank, ranks, folder, device)
    for number, (label, steps, pattern) in enumerate(scenarios):
        jobs = {name: on_rank(name, queue, pattern, device) for name in steps}
        losses: dict[str, list[float]] = {name: [] for name in steps}
        # Whatever the process drew before must not matter.
        torch.manual_seed(number)
        for turn in turns(steps):
            if label == SLOW and rank == 0:
                time.sleep(0.01)
            done = take_turn(jobs[turn.job], settles=turn.settles, computes=turn.computes)
            if done["computes"]:
                losses[turn.job].append(done["loss"])
        for name, job in jobs.items():
            assert job.updates == steps[name]
            assert not job.in_flight
            found = {"state": state_of(job), "losses": torch.tensor(losses[name], dtype=torch.float64)}
            torch.save(found, Path(folder, f"{label}-{name}-{rank}.pt"))
            job.close()
    queue.close()


def hold_transfers(rank: int, ranks: int, folder: str) -> None:
    """The sum of the first job's gradients cannot begin before the second job has computed."""
    queue = join(rank, ranks, folder)
    first, second = on_rank("image", queue), on_rank("plain", queue)
    assert queue._queue is not None
    assert queue._queue._thread is not None
    computed = threading.Event()
    held = queue._queue._thread.submit(computed.wait, 30.0)
    compute = second.compute

    def compute_and_release() -> float:
        assert first.in_flight
        loss = compute()
        computed.set()
        return loss

    second.compute = compute_and_release  # type: ignore[method-assign]
    for turn in turns({"image": 1, "plain": 1}):
        take_turn({"image": first, "plain": second}[turn.job], settles=turn.settles, computes=turn.computes)
    assert held.result(), "the second job's computing waited for the first job's gradients"
    queue.close()
