"""Checkpoints on disk: a damaged one is refused in one line, and a whole one is the model's ``state_dict``."""

import contextlib
import dataclasses
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.file_lock import file_lock
from deeppool.collectives.layout import Layout
from deeppool.device.protocol import Precision
from deeppool.errors import DocumentError, InvalidValueError, RunError
from deeppool.execution.checkpoint import RECORD, Checkpoint, load, load_weights, save_shard
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.communicator import SingleRank
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.training.training_job import Training
from deeppool.training.update import LossScale
from tests.sampling import STRESS

BATCH = 4


class Tied(nn.Module):
    """Model with a tied weight, BatchNorm, a frozen parameter and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.f1 = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.f3 = nn.Linear(6, 6)
        self.f3.weight = self.f1.weight
        self.f3.bias.requires_grad_(False)
        self.register_buffer("scale", torch.ones(6), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f3(torch.tanh(self.norm(self.f1(x)) * self.scale))


Optimizer = Callable[[list], torch.optim.Optimizer]


def adam(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


def make_trainer(
    seed: int = 0, optimizer: Optimizer = adam, precision: Precision = "fp32", schedule: Any = None
) -> tuple[Tied, Trainer]:
    torch.manual_seed(seed)
    model = Tied()
    captured = dp.capture(model, (6,))
    stage = Stage("all", tuple(range(len(captured.graph.layers))), Layout((0,), BATCH))
    rule = Training(optimizer=optimizer, schedule=schedule)
    return model, Trainer(captured, [stage], SingleRank(), rule, precision)


def batch(samples: range) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(samples), 6, generator=generator), torch.arange(len(samples))


def write(trainer: Trainer, folder: Path, updates: int = 1) -> Path:
    kept = CheckpointFolder(path=folder, every=1, keep=2, model="m", graph_fingerprint="f", global_batch=BATCH)
    return kept.save(lambda partial: [save_shard(trainer, partial)], updates)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tied, Path]:
    model, trainer = make_trainer()
    for _ in range(3):
        trainer.iterate([batch])
    return model, write(trainer, tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """Another trainer of the same model, for what is refused."""
    return make_trainer()[1]


def copy_of(checkpoint: Path, folder: Path, *, checksums: bool) -> Path:
    """Copies a checkpoint; without checksums it is one that an earlier version wrote."""
    target = folder / checkpoint.name
    target.mkdir()
    for path in checkpoint.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    if not checksums:
        record = dataclasses.replace(serialization.read(target / RECORD, Checkpoint), checksums=())
        serialization.write(record, target / RECORD)
    return target


# -- the model's state_dict ---------------------------------------------------------------------------


def test_the_weights_are_the_state_dict_of_a_model_with_tied_weights(trained: tuple[Tied, Path]) -> None:
    model, checkpoint = trained
    torch.manual_seed(1)
    fresh = Tied()
    assert str(fresh.load_state_dict(dp.load_weights(checkpoint))) == "<All keys matched successfully>"
    for key, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value), key
    assert fresh.f3.weight is fresh.f1.weight


def test_the_folder_of_all_checkpoints_is_refused_with_its_latest(trainer: Trainer, tmp_path: Path) -> None:
    latest = [write(trainer, tmp_path, updates=updates) for updates in (3, 1_000_000, 20)][1]
    with pytest.raises(DocumentError, match=rf"{tmp_path} is a folder of checkpoints, .* latest is {latest}\)$"):
        load_weights(tmp_path)


def test_a_checkpoint_of_an_earlier_version_still_loads(trained: tuple[Tied, Path], tmp_path: Path) -> None:
    """Neither checksums, nor the names of the model's ``state_dict``."""
    model, checkpoint = trained
    old = copy_of(checkpoint, tmp_path, checksums=False)
    shard = torch.load(old / "rank-0.pt", weights_only=True)
    del shard["state_dict"]
    torch.save(shard, old / "rank-0.pt")
    found = load_weights(old)
    expected = dict(model.named_parameters()) | dict(model.named_buffers())
    assert found.keys() == expected.keys()
    _, other = make_trainer(seed=1)
    load(other, old)
    assert all(torch.equal(other.state[name], value) for name, value in expected.items())


@pytest.mark.parametrize("fused", [True, None])
def test_how_an_optimizer_computes_is_not_taken_from_a_checkpoint(fused: bool | None, tmp_path: Path) -> None:
    """A GPU may fuse its kernels where a CPU does not; the learning rate is the checkpoint's."""
    _, first = make_trainer(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.2, fused=not fused))
    first.iterate([batch])
    _, other = make_trainer(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=fused))
    load(other, write(first, tmp_path))
    (group,) = other.update.optimizer.param_groups
    assert (group["fused"], group["lr"]) == (fused, 0.2)
    other.iterate([batch])


def test_a_plan_of_another_precision_scales_the_loss_as_it_would_without_a_checkpoint(tmp_path: Path) -> None:
    _, scaled = make_trainer(precision="fp16")
    for _ in range(3):
        scaled.iterate([batch])
    _, unscaled = make_trainer()
    checkpoint = write(scaled, tmp_path / "scaled")
    load(unscaled, checkpoint)
    assert unscaled.update.scale.factor == 1
    load(scaled, checkpoint)
    assert scaled.update.scale.good == 3
    _, fresh = make_trainer(precision="fp16")
    load(fresh, write(unscaled, tmp_path / "unscaled"))
    assert (fresh.update.scale.factor, fresh.update.scale.good) == (LossScale.INITIAL, 0)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 10)),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, np.arange(1, 3)),
    ],
    ids=["values", "keys"],
)
def test_numbers_of_numpy_in_options_and_schedules_are_saved(schedule: Any, tmp_path: Path) -> None:
    rates = np.logspace(-2, -1, 2)
    choices: dict[str, Any] = {
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=rates[0], betas=(np.float64(0.8), 0.9)),
        "schedule": schedule,
    }
    _, first = make_trainer(**choices)
    first.iterate([batch])
    checkpoint = write(first, tmp_path)
    assert dp.load_weights(checkpoint).keys() == Tied().state_dict().keys()
    _, other = make_trainer(**choices)
    load(other, checkpoint)
    for trainer in (first, other):
        trainer.iterate([batch])
    assert all(torch.equal(first.state[name], value) for name, value in other.state.items())


class Odd:
    """What a file without code cannot hold."""


def test_what_no_checkpoint_can_hold_is_told_of_when_it_is_written(tmp_path: Path) -> None:
    _, trainer = make_trainer(optimizer=lambda parameters: torch.optim.Adam([{"params": parameters, "odd": Odd()}]))
    with pytest.raises(RunError, match=r"holds tests\.execution\.test_checkpoint\.Odd, which no checkpoint can hold"):
        write(trainer, tmp_path)


def test_a_disk_that_takes_no_more_is_told_in_the_words_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch writes the end of its file after a write has failed, and then fails in words of its own."""
    _, trainer = make_trainer()
    monkeypatch.setattr(trainer.driver, "state", lambda: {"large": torch.zeros(1_000_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(DocumentError, match=r"cannot write .*rank-0\.pt: File too large \(is the disk full\?"):
            save_shard(trainer, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_of_another_optimizer_is_refused_as_such(trained: tuple[Tied, Path]) -> None:
    _, other = make_trainer(optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.1))
    with pytest.raises(InvalidValueError, match=r"step-000001 is .* optimizer Adam, .* is RMSprop \(resume with"):
        load(other, trained[1])


def test_a_checkpoint_of_another_schedule_is_refused_as_such(trained: tuple[Tied, Path], tmp_path: Path) -> None:
    schedules = torch.optim.lr_scheduler
    _, first = make_trainer(schedule=lambda optimizer: schedules.StepLR(optimizer, 2, gamma=0.1))
    _, other = make_trainer(schedule=lambda optimizer: schedules.ExponentialLR(optimizer, 0.9))
    with pytest.raises(InvalidValueError, match=r"step-000001 is .* schedule StepLR, .* is ExponentialLR \(resume"):
        load(other, write(first, tmp_path))
    # A training without one may go on with one.
    load(other, trained[1])
    assert other.update.schedule is not None
    assert other.update.schedule.gamma == 0.9


# -- damage -------------------------------------------------------------------------------------------


def one_line(error: pytest.ExceptionInfo[DocumentError], path: Path) -> None:
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"cannot read {path}")
    assert "use an earlier checkpoint" in str(error.value)


def test_every_flipped_byte_of_a_shard_is_refused(trained: tuple[Tied, Path], trainer: Trainer, tmp_path: Path) -> None:
    shard = copy_of(trained[1], tmp_path, checksums=True) / "rank-0.pt"
    content = shard.read_bytes()
    draw = random.Random(0)
    for position in draw.sample(range(len(content)), 400 if STRESS else 40):
        damaged = bytearray(content)
        damaged[position] ^= 1 << draw.randrange(8)
        shard.write_bytes(damaged)
        for read in (load_weights, lambda folder: load(trainer, folder)):
            with pytest.raises(DocumentError, match="checksum") as error:
                read(shard.parent)
            one_line(error, shard)
    shard.write_bytes(content)
    load_weights(shard.parent)


def test_damage_without_checksums_is_at_worst_one_clear_error(
    trained: tuple[Tied, Path], trainer: Trainer, tmp_path: Path
) -> None:
    folder = copy_of(trained[1], tmp_path, checksums=False)
    shard = folder / "rank-0.pt"
    content = shard.read_bytes()
    draw = random.Random(0)
    refused = 0
    for number in range(600 if STRESS else 60):
        damaged = bytearray(content)
        if number % 3 == 0:
            del damaged[draw.randrange(len(content)) :]
        else:
            for position in draw.sample(range(len(content)), 3):
                damaged[position] = draw.randrange(256)
        shard.write_bytes(damaged)
        for read in (load_weights, lambda folder: load(trainer, folder)):
            try:
                read(folder)
            except DocumentError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused


@pytest.mark.parametrize(
    "spoil",
    [
        lambda shard: shard.pop("model"),
        lambda shard: shard.pop("optimizer"),
        lambda shard: shard.pop("random"),
        lambda shard: shard["groups"][0].pop("choices"),
        lambda shard: shard.update(random=torch.zeros(3)),
        lambda shard: shard["model"].update({"f1.bias": "?"}),
        lambda shard: shard["state_dict"].update({"f1.bias": "f9.bias"}),
    ],
)
def test_a_shard_of_a_wrong_structure_is_one_clear_error(
    spoil: Callable[[dict], object], trained: tuple[Tied, Path], trainer: Trainer, tmp_path: Path
) -> None:
    folder = copy_of(trained[1], tmp_path, checksums=False)
    shard = torch.load(folder / "rank-0.pt", weights_only=True)
    spoil(shard)
    torch.save(shard, folder / "rank-0.pt")
    with pytest.raises(DocumentError) as error:
        load_weights(folder)
        load(trainer, folder)
    one_line(error, folder)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_fifo_a_device_or_nothing_in_place_of_a_shard_is_refused(
    checksums: bool, trained: tuple[Tied, Path], tmp_path: Path
) -> None:
    shard = copy_of(trained[1], tmp_path, checksums=checksums) / "rank-0.pt"
    shard.unlink()
    with pytest.raises(DocumentError, match="No such file") as error:
        load_weights(shard.parent)
    one_line(error, shard)
    os.mkfifo(shard)
    with pytest.raises(DocumentError, match="not a regular file"):
        load_weights(shard.parent)
    shard.unlink()
    shard.symlink_to("/dev/zero")
    with pytest.raises(DocumentError, match="not a regular file"):
        load_weights(shard.parent)


def test_shards_of_two_checkpoints_do_not_mix(trained: tuple[Tied, Path], tmp_path: Path) -> None:
    checkpoint = copy_of(trained[1], tmp_path, checksums=True)
    other = write(make_trainer(seed=5)[1], tmp_path / "other", updates=3)
    (checkpoint / "rank-0.pt").write_bytes((other / "rank-0.pt").read_bytes())
    with pytest.raises(DocumentError, match="checksum"):
        load_weights(checkpoint)


def test_a_record_of_no_ranks_is_no_empty_model(trained: tuple[Tied, Path], tmp_path: Path) -> None:
    folder = copy_of(trained[1], tmp_path, checksums=False)
    record = (folder / RECORD).read_text()
    for damaged in (
        record.replace('"ranks": 1', '"ranks": 0'),
        record.replace('"checksums": []', '"checksums": ["", ""]'),
    ):
        assert damaged != record
        (folder / RECORD).write_text(damaged)
        with pytest.raises(DocumentError, match="a checkpoint is of at least one rank"):
            load_weights(folder)


def test_the_millionth_update_is_the_latest(trainer: Trainer, tmp_path: Path) -> None:
    for updates in (999_998, 999_999, 1_000_000):
        whole = write(trainer, tmp_path, updates)
    folder = CheckpointFolder(path=tmp_path, every=1, keep=2, model="m", graph_fingerprint="f", global_batch=BATCH)
    assert folder.latest() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1000000", "step-999999"]


def test_a_checkpoint_that_is_written_again_is_whole_or_gone_wherever_its_training_is_killed(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(trainer, tmp_path, 1)
    again = write(trainer, tmp_path, 2)
    remove = shutil.rmtree

    def killed(folder: Path, **_: object) -> None:
        if (folder / RECORD).exists():
            (folder / "rank-0.pt").unlink()
            raise KeyboardInterrupt
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        write(trainer, tmp_path, 2)
    folder = CheckpointFolder(path=tmp_path, every=1, keep=2, model="m", graph_fingerprint="f", global_batch=BATCH)
    assert folder.latest() == again
    load(trainer, again)
    monkeypatch.undo()
    write(trainer, tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]


def test_a_checkpoint_is_private_whatever_the_umask(trainer: Trainer, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = CheckpointFolder(
            path=tmp_path / "new", every=1, keep=2, model="m", graph_fingerprint="f", global_batch=BATCH
        )
        with folder.locked():
            whole = write(trainer, tmp_path / "new")
            paths = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
            modes = {path.relative_to(tmp_path).as_posix(): oct(path.stat().st_mode & 0o777) for path in paths}
    finally:
        os.umask(before)
    files = {f"new/{whole.name}/{name}": "0o600" for name in ("rank-0.pt", RECORD)}
    assert modes == {"new": "0o700", f"new/{whole.name}": "0o700", "new/.lock": "0o600", **files}


# -- the lock -----------------------------------------------------------------------------------------

HOLDER = """
import subprocess, sys, pathlib
from deeppool.base.file_lock import file_lock
from deeppool.collectives.layout import Layout
with file_lock(pathlib.Path(sys.argv[1]), "held"):
    # As the processes of a training, it outlives a kill of the one that holds the lock.
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_killed_process_leaves_the_folder_free_although_its_children_live(tmp_path: Path) -> None:
    kept = CheckpointFolder(path=tmp_path, every=1, keep=2, model="m", graph_fingerprint="f", global_batch=BATCH)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        child = int(holder.stdout.readline())
        try:
            with (
                pytest.raises(RunError, match=f"another training writes its checkpoints to {tmp_path} "),
                kept.locked(),
            ):
                pass
            holder.kill()
            holder.wait()
            with kept.locked():
                assert os.path.exists(f"/proc/{child}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    kept = CheckpointFolder(path=tmp_path / "new", every=1, keep=2, model="m", graph_fingerprint="f", global_batch=1)
    with kept.locked():
        with pytest.raises(RunError, match="another training"), kept.locked():
            pass
        with pytest.raises(RunError, match="mine"), file_lock(tmp_path / "new" / ".lock", "mine"):
            pass
    with kept.locked():
        pass
    assert list((tmp_path / "new").iterdir()) == []
