"""One rank of model-parallel training in waves; see test_model_parallel.py."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deeppool as dp
from deeppool.errors import InvalidValueError, RunError
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.layer import Granularity
from deeppool.interleaving.wavelet.model_parallel import WaveletModelParallel, on_all_ranks
from deeppool.training.training_job import Training

BATCH, UPDATES, WIDTH = 8, 3, 12


class Chain(nn.Module):
    """Layers of unequal size with a skip over some, a frozen one, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 20)
        self.second = nn.Linear(20, 24)
        self.frozen = nn.Linear(24, 20).requires_grad_(False)
        self.third = nn.Linear(20, 16)
        self.fourth = nn.Linear(16, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        y = torch.tanh(self.frozen(torch.tanh(self.second(x))))
        return self.head(x + torch.tanh(self.fourth(torch.tanh(self.third(y)))))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Chain()


def rule(name: str) -> Training:
    if name == "clipping":
        return Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), clip_norm=0.05)
    if name == "adamw":
        return Training(
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
            schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        )
    return Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


def batch_of(number: int, samples: range = range(BATCH)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    targets = torch.randint(4, (BATCH,), generator=generator)
    return inputs[samples.start : samples.stop], targets[samples.start : samples.stop]


@cache
def captured_once() -> CapturedModel:
    """Captures the model; called in advance, once for all ranks."""
    return capture(make_model(), (WIDTH,))


def prepare(*_: object) -> None:
    captured_once()


class Job(dp.TrainingJob):
    """A job with weights of its own, whose model is captured once."""

    def capture(self, granularity: Granularity = "module") -> CapturedModel:
        return captured_once().copy()


def make_job(name: str) -> Job:
    own = rule(name)
    return Job(
        model=make_model(),
        input_shape=(WIDTH,),
        dataset=list,
        optimizer=own.optimizer,
        schedule=own.schedule,
        clip_norm=own.clip_norm,
    )


def continue_training(rank: int, ranks: int, names: Sequence[str], updates: range, folder: str) -> None:
    """Continues the training of each rule, in a folder of its name."""
    torch.set_num_threads(1)
    meeting = Path(folder, f"rendezvous-{updates.start}").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    for name in names:
        torch.manual_seed(rank)
        continue_one(rank, ranks, name, updates, Path(folder, name))
    dist.destroy_process_group()


def continue_one(rank: int, ranks: int, name: str, updates: range, folder: Path) -> None:
    """Resumes the latest checkpoint, makes some updates, and writes one; saves what this rank has of the optimizer."""
    with WaveletModelParallel(make_job(name), global_batch=BATCH) as training:
        assert training.resume(folder) == updates.start
        states = len(training.trainer.update.optimizer.state)
        for number in updates:
            training.step(lambda samples, n=number: batch_of(n, samples))
        assert training.save(folder, keep=1).name == f"step-{updates.stop:06}"
        torch.save(states, Path(folder, f"states-{updates.start}-{rank}.pt"))
        refusal = f"at global batch {BATCH}, this is Chain at {2 * BATCH}"
        with (
            WaveletModelParallel(make_job(name), global_batch=2 * BATCH) as other,
            pytest.raises(InvalidValueError, match=refusal),
        ):
            other.resume(folder)
        if rank == ranks - 1:
            with torch.no_grad():
                training.trainer.parameters["head.weight"].fill_(float("nan"))
        with pytest.raises(RunError, match=r"'head\.weight' holds values that are no number"):
            training.save(folder)
        # What one rank alone sees or runs into is an error on all of them, and no wait for ever.
        with pytest.raises(
            RunError, match=rf"after {updates.stop}, 0.* updates .* \(give a folder that all of them share"
        ):
            training.resume(folder if rank == 0 else folder / "own")
        error, told = (OSError, "no space") if rank == 0 else (RunError, "rank 0: OSError: no space")
        with pytest.raises(error, match=told):
            on_all_ranks(lambda: full_disk() if rank == 0 else None)


def full_disk() -> None:
    raise OSError("no space")


def train(rank: int, ranks: int, cases: list[tuple[str, int]], folder: str) -> None:
    """Trains under each rule with a number of waves; saves this rank's weights, its losses, and what it computed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    for name, waves in cases:
        with WaveletModelParallel(make_job(name), global_batch=BATCH, waves=waves) as training:
            losses = [training.step(lambda samples, n=number: batch_of(n, samples)) for number in range(UPDATES)]
            states = training.trainer.update.optimizer.state
            held = {key for key, value in training.trainer.parameters.items() if value.untyped_storage().nbytes()}
            computed = [(kind, part) for kind, part, *_ in training.spans if kind in ("forward", "backward")]
            weights = training.state_dict()
            torch.save(
                {
                    "weights": weights,
                    "losses": torch.tensor(losses),
                    "held": sorted(held),
                    "with_state": len(states),
                    "computed": computed,
                    "samples": [[part.samples.start, part.samples.stop] for part in training.trainer.step.parts],
                },
                Path(folder, f"{name}-{waves}-{rank}.pt"),
            )
    dist.destroy_process_group()


def train_twice(rank: int, ranks: int, folder: str) -> None:
    """Trains the model of one job twice, and saves what both gave, and what became of the model."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    model, own = make_model(), rule("momentum")
    job = dp.TrainingJob(model=model, input_shape=(WIDTH,), dataset=list, optimizer=own.optimizer)
    for run in range(2):
        with WaveletModelParallel(job, global_batch=BATCH) as training:
            for number in range(UPDATES):
                training.step(lambda samples, n=number: batch_of(n, samples))
            torch.save(training.state_dict(), Path(folder, f"{run}-{rank}.pt"))
    torch.save(model.state_dict(), Path(folder, f"own-{rank}.pt"))
    dist.destroy_process_group()
