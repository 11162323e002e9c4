"""A background in the process of a rank trains as it would alone, piece by piece, when it is let."""

import dataclasses
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deeppool.base.sharing import POLICIES, Sharing
from deeppool.collocation.background_placement import PROCESS, PROCESS_UNDER_MPS, THREAD, place_background
from deeppool.collocation.background_training import BackgroundTraining
from deeppool.collocation.in_process_background import InProcessBackground
from deeppool.collocation.job_queue import BackgroundJob, save_background_job
from deeppool.device.emulated.scheduler import Event
from deeppool.device.find import find_device
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.losses import classification_loss
from deeppool.scheduling.background_limits import CLOSED, FREE, BackgroundLimits, Operator
from deeppool.training.data import ShardReader
from deeppool.training.training_job import TrainingJob

TIMEOUT = 300.0
BATCH, SAMPLES = 4, 64
THREADED = Sharing(priority="normal", home="thread")
PACED = dataclasses.replace(POLICIES["paced"], priority="normal", home="thread")


class Fixed(torch.utils.data.Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator)
        self.targets = torch.randint(4, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[position], self.targets[position]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def make_optimizer(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def make_job(**choices: Any) -> BackgroundJob:
    return BackgroundJob(
        TrainingJob(model=make_model(), input_shape=(6,), dataset=Fixed, optimizer=make_optimizer, **choices),
        batch=BATCH,
    )


class Foreground:
    """State of a foreground; counts how often it is read."""

    def __init__(self, limits: BackgroundLimits = FREE) -> None:
        self.limits = limits
        self.reads = threading.Semaphore(0)

    def __call__(self) -> tuple[BackgroundLimits, Operator | None]:
        self.reads.release()
        return self.limits, None

    def wait_for(self, reads: int) -> None:
        while self.reads.acquire(blocking=False):
            pass
        for _ in range(reads):
            assert self.reads.acquire(timeout=TIMEOUT)


Starter = Callable[..., InProcessBackground]


@pytest.fixture
def start_background(tmp_path: Path) -> Iterator[Starter]:
    """Starts backgrounds; none of their threads is left."""
    started: list[InProcessBackground] = []

    def start(
        job: BackgroundJob, sharing: Sharing, foreground: Callable[[], Any], device: str = "cpu"
    ) -> InProcessBackground:
        setup = {
            "folder": str(tmp_path),
            "saved_job": str(tmp_path),
            "sharing": asdict(sharing),
            **save_background_job(job, tmp_path),
        }
        found = find_device(device)
        training = BackgroundTraining(setup, found, found.torch_device(), paced=True)
        started.append(InProcessBackground(training, found, foreground))
        return started[-1]

    yield start
    for each in started:
        each.close()
        assert each._thread is None or not each._thread.is_alive()


def losses_of_a_plain_loop(steps: int) -> list[float]:
    """On the same batches, by torch alone."""
    model, reader = make_model(), ShardReader(Fixed(), BATCH, 0, 0)
    optimizer = make_optimizer(list(model.parameters()))
    losses = []
    for step in range(steps):
        inputs, targets = reader.shard(step, range(BATCH))
        loss = classification_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("sharing", [THREADED, PACED], ids=["whole", "in pieces"])
def test_an_in_process_background_trains_as_a_plain_loop_does_however_often_it_rests(
    sharing: Sharing, device: str, start_background: Starter
) -> None:
    foreground = Foreground()
    background = start_background(make_job(), sharing, foreground, device)
    losses = [background.training.last_loss]
    for _ in range(6):
        background.begin()
        foreground.wait_for(10)
        done = background.rest()
        assert "why" not in done
        losses += done["parts"][0][1]
        assert done["updates"] == len(losses)
    assert background.finished > 10
    assert losses == pytest.approx(losses_of_a_plain_loop(len(losses)), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "emulated", "emulated:h200"])
def test_a_background_that_trains_or_rests_can_be_closed(device: str, start_background: Starter) -> None:
    resting, foreground = start_background(make_job(), PACED, Foreground(), device), Foreground()
    training = start_background(make_job(), PACED, foreground, device)
    resting.begin()
    resting.rest()
    training.begin()
    # In virtual time the host acts on the device, or the thread does not.
    for _ in range(100):
        find_device(device).clock.sleep(1e-3)
    foreground.wait_for(1) if device != "emulated:h200" else None
    for background in (resting, training, training):
        background.close()
        assert not background._thread.is_alive()
        assert background.error is None


def test_a_background_holds_no_more_of_the_device_after_many_updates(start_background: Starter) -> None:
    training = start_background(make_job(), PACED, Foreground(), "emulated").training
    training.trainer.watcher = None

    def events(updates: int) -> int:
        for _ in range(updates):
            training.step()
        find_device("emulated").synchronize()
        gc.collect()
        return sum(isinstance(each, Event) for each in gc.get_objects())

    held = events(3)
    assert events(20) <= held


def test_work_is_counted_in_steps_and_their_pieces(start_background: Starter) -> None:
    foreground = Foreground()
    background = start_background(make_job(), PACED, foreground)
    total = 0.0
    for _ in range(3):
        background.begin()
        foreground.wait_for(20)
        total += background.rest()["parts"][0][0]
    # Pieces in flight at the end of a phase are not counted.
    assert 0 < total <= background.finished / background.training.pieces


def test_pieces_after_the_end_of_a_phase_that_is_noticed_late_do_not_count(start_background: Starter) -> None:
    foreground = Foreground()
    background = start_background(make_job(), PACED, foreground)
    background.begin()
    foreground.wait_for(20)
    foreground.limits = CLOSED
    foreground.wait_for(2)
    finished, ended = background.finished, background._clock.now()
    foreground.limits = FREE
    foreground.wait_for(20)
    (steps, _), *_ = background.rest(clock_offset=100.0, until=ended + 100.0)["parts"]
    assert steps * background.training.pieces == pytest.approx(finished)
    assert finished < background.finished


def test_the_foregrounds_limits_apply(start_background: Starter) -> None:
    foreground = Foreground(BackgroundLimits(open=False, share=1.0, banned=frozenset()))
    background = start_background(make_job(), PACED, foreground)
    background.begin()
    foreground.wait_for(20)
    assert background.rest()["parts"] == [(0, [])]
    assert background.finished == 0


class Broken(Fixed):
    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise OSError("the disk is gone")


def test_a_job_that_fails_reports_its_error_and_stays_ended(start_background: Starter) -> None:
    foreground = Foreground()
    background = start_background(make_job(), THREADED, foreground)
    background.training.task.samples.__self__.dataset.__class__ = Broken
    for _ in range(2):
        background.begin()
        background._thread.join(TIMEOUT)
        assert background.rest() == {"why": "failed: OSError: the disk is gone"}


def test_a_background_in_a_thread_clips_accumulates_and_follows_a_schedule(start_background: Starter) -> None:
    """As in a process of its own, whose training the same job gives."""
    choices = {"accumulation": 2, "clip_norm": 0.1, "schedule": halve}
    foreground = Foreground()
    background = start_background(make_job(**choices), PACED, foreground)
    alone = start_background(make_job(**choices), THREADED, Foreground())
    background.begin()
    foreground.wait_for(100)
    background.rest()
    alone.training.trainer.watcher = None
    losses = [alone.training.last_loss] + [alone.training.step() for _ in range(background.training.updates - 1)]
    assert len(losses) > 2
    assert background.training.last_loss == pytest.approx(losses[-1], rel=1e-5)


def halve(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    ("sharing", "device", "daemon", "home"),
    [
        (Sharing(), "cpu", True, PROCESS),
        (THREADED, "cpu", False, THREAD),
        (Sharing(), "cuda", True, THREAD),
        (Sharing(home="process"), "cuda", False, PROCESS),
        (Sharing(home="process"), "cuda", True, PROCESS_UNDER_MPS),
        (Sharing(), "emulated", False, THREAD),
    ],
)
def test_a_background_runs_where_requested_or_by_default_in_a_thread_on_a_gpu(
    sharing: Sharing, device: str, daemon: bool, home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if daemon:
        (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert place_background(sharing, device) == home


def test_a_priority_that_a_thread_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at the rank's own priority on a CPU, got priority lowest"):
        place_background(Sharing(home="thread"), "cpu")


def test_a_process_of_its_own_is_refused_where_each_process_has_its_own_device() -> None:
    with pytest.raises(InvalidValueError, match=r"device emulated belongs to one process: .* got home 'process'"):
        place_background(Sharing(home="process"), "emulated")
