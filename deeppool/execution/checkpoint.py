"""A training's state on disk: written by its ranks together, read by any other number of ranks and any plan.

    step-000120/
        rank-0.pt          parameters, buffers and optimizer state that rank 0 is the first owner of, by name
        rank-1.pt
        checkpoint.json    the training, its progress, and a checksum of each of those files

The ranks write into a folder of another name, which is renamed when all of it is on disk: a folder called
``step-…`` is whole, whatever happened while it was written. Files are read without unpickling code, and only if they
are those that were written.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import numpy as np
import torch

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.private_files import private
from deeppool.errors import DeeppoolError, DocumentError, InvalidValueError, RunError
from deeppool.execution.trainer import Trainer

RECORD = "checkpoint.json"
_INSTEAD = "use an earlier checkpoint: without this one, a training resumes from the one before"
PARTIAL = ".partial"
IMPLEMENTATION = ("foreach", "fused")
"""Options of torch's optimizers that say how they compute, which is not part of a training's state."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Record of a checkpoint: the training that it belongs to, and its progress."""

    KIND: ClassVar[str] = "checkpoint"

    model: str
    graph_fingerprint: str
    updates: int
    iterations: int
    """Global batches that were trained on; more than ``updates`` where gradients accumulate."""
    global_batch: int
    ranks: int
    loss_scale: float | None
    """None: the loss was not scaled. Earlier versions wrote 1."""
    updates_since_scaled: int
    checksums: tuple[str, ...] = ()
    """SHA-256 of the file of each rank; empty: written by a version that made none."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or len(self.checksums) not in (0, self.ranks):
            raise InvalidValueError(
                f"a checkpoint is of at least one rank, with a checksum for each, got {self.ranks} ranks and "
                f"{len(self.checksums)} checksums (edited? use an earlier checkpoint)"
            )

    def __str__(self) -> str:
        return f"{self.model} after {self.updates} updates of global batch {self.global_batch}, by {self.ranks} ranks"


def begin(folder: Path, updates: int) -> Path:
    """Makes the folder that the ranks write into, and removes what interrupted attempts left there.

    Raises:
        DocumentError: it cannot be made.
    """
    partial = folder / f"step-{updates:06}{PARTIAL}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        discard_partial(folder)
        # Weights may be confidential: whatever the umask, only this user reads them.
        partial.mkdir(mode=0o700)
    except OSError as error:
        raise DocumentError(f"cannot write {partial}: {error.strerror} (choose another folder)") from error
    return partial


def discard_partial(folder: Path) -> None:
    """Removes incomplete checkpoints; no rank may be writing."""
    for partial in folder.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)


def save_shard(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Writes this rank's part of a checkpoint; returns its checksum and the rank's progress, for the record.

    Raises:
        RunError: a parameter is NaN or infinite, so that training could not resume from it.
        DocumentError: it cannot be written.
    """
    sync_state = trainer.driver.state()
    for name in trainer.first_owned:
        value = trainer.state[name]
        if value.requires_grad and not bool(value.isfinite().all()):
            raise RunError(
                f"'{name}' holds values that are no number, no checkpoint of it was written "
                "(lower the learning rate, clip gradients, or look at the data)"
            )
    path = folder / f"rank-{trainer.rank}.pt"
    try:
        with open(path, "w+b", opener=private) as stream:
            torch.save(_shard(trainer) | {"gradient_sync": sync_state}, stream)
            stream.flush()
            os.fsync(stream.fileno())
            checksum = _checksum(stream)
        torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except UnpicklingError as error:
        held = re.search(r"GLOBAL (\S+)", str(error))
        raise RunError(
            f"the state of the optimizer or of its schedule holds {held[1] if held else 'an object'}, which no "
            "checkpoint can hold (use numbers and tensors)"
        ) from error
    # Where a write fails, torch raises a RuntimeError of its own while it handles the system's error.
    except (OSError, RuntimeError) as error:
        failed = error.__context__ if isinstance(error.__context__, OSError) else error
        reason = getattr(failed, "strerror", None) or str(failed).splitlines()[0]
        raise DocumentError(
            f"cannot write {path}: {reason} (is the disk full? earlier checkpoints are whole)"
        ) from error
    scale = trainer.update.scale
    return {
        "checksum": checksum,
        "iterations": trainer.step.iterations,
        "loss_scale": scale.factor if scale.enabled else None,
        "updates_since_scaled": scale.good,
    }


def seal(partial: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Completes a checkpoint that every rank has written, and deletes all but the newest ``keep``."""
    serialization.write(checkpoint, partial / RECORD)
    whole = partial.with_name(partial.name.removesuffix(PARTIAL))
    if whole.exists():
        # The same training came here before: from an earlier checkpoint it does so again.
        _retire(whole)
    os.replace(partial, whole)
    for old in _checkpoints(partial.parent)[:-keep]:
        _retire(old)
    discard_partial(partial.parent)
    return whole


def _retire(whole: Path) -> None:
    """Renames a checkpoint that is to be removed: under its own name it would look whole while it goes."""
    os.replace(whole, whole.with_name(f"{whole.name}-old{PARTIAL}"))


def latest(folder: Path) -> Path | None:
    """Returns the checkpoint of a folder with the most updates."""
    return next(reversed(_checkpoints(folder)), None)


def read(folder: Path) -> Checkpoint:
    """Reads the record of a checkpoint.

    Raises:
        DocumentError: the folder is none.
    """
    return serialization.read(folder / RECORD, Checkpoint)


def load(trainer: Trainer, folder: Path) -> None:
    """Restores a rank to the state of a checkpoint, whatever plan and number of ranks wrote it.

    Raises:
        DocumentError: a file is damaged, or holds another model's state.
        InvalidValueError: it is of another optimizer, or of another schedule of the learning rate.
    """
    record = read(folder)
    with _report_damage(folder):
        _restore(trainer, record, _read_shards(folder, record), folder)


def _restore(trainer: Trainer, record: Checkpoint, shards: list[dict[str, Any]], folder: Path) -> None:
    model = {name: value for shard in shards for name, value in shard["model"].items()}
    with torch.no_grad():
        for name, value in trainer.state.items():
            if name not in model or model[name].shape != value.shape:
                raise DocumentError(f"{folder} has no '{name}' of shape {tuple(value.shape)} (is it another model's?)")
            value.copy_(model[name])
    update = trainer.update
    if update.optimizer is not None:
        _check_class("optimizer", update.optimizer, shards, folder)
        _check_class("schedule", update.schedule, shards, folder)
        _load_optimizer(trainer, shards)
        schedule = next((shard["schedule"] for shard in shards if shard["schedule"] is not None), None)
        if update.schedule is not None and schedule is not None:
            update.schedule.load_state_dict(schedule)
    # Earlier versions, and trainings that sum in each iteration, have nothing left over.
    trainer.driver.restore([shard.get("gradient_sync", {}) for shard in shards])
    # A plan of another precision starts with the scale that it would start with.
    if update.scale.enabled and record.loss_scale is not None:
        update.scale.factor, update.scale.good = record.loss_scale, record.updates_since_scaled
    trainer.step.iterations = record.iterations
    if record.ranks == trainer.ranks:
        torch.set_rng_state(shards[trainer.rank]["random"])
        # Earlier versions wrote none.
        if (state := shards[trainer.rank].get("device_random")) is not None:
            trainer.device.set_random_state(state)


def _check_class(what: str, own: object, shards: list[dict[str, Any]], folder: Path) -> None:
    # Earlier versions wrote none, nor does a rank without parameters.
    other = {shard.get(f"{what}_class") for shard in shards} - {None, type(own).__name__}
    if own is not None and other:
        raise InvalidValueError(
            f"{folder} is a checkpoint of the {what} {other.pop()}, that of the training is {type(own).__name__} "
            "(resume with the same one, or choose another folder for checkpoints)"
        )


@typed
def load_weights(checkpoint: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Returns the model's state of a checkpoint, for ``model.load_state_dict``; tied weights are one tensor.

    Args:
        checkpoint: its folder, as a training's record names it: ``record.checkpoint``.

    Raises:
        DocumentError: the folder is no checkpoint, or a file is damaged.
    """
    folder = Path(checkpoint)
    with _report_damage(folder):
        if not (folder / RECORD).exists() and (newest := latest(folder)) is not None:
            raise DocumentError(f"{folder} is a folder of checkpoints, not one of them (its latest is {newest})")
        shards = _read_shards(folder, read(folder))
        model = {name: value for shard in shards for name, value in shard["model"].items()}
        names = shards[0].get("state_dict")
        # Earlier versions wrote no names: their checkpoints have a tied weight under one of its names only.
        return model if names is None else {key: model[name] for key, name in names.items()}


def _checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a folder, oldest first."""
    whole = (path for path in folder.glob("step-*") if (path / RECORD).is_file() and path.suffix != PARTIAL)
    # The millionth update has one digit more than the one before.
    return sorted(whole, key=lambda path: (len(path.name), path.name))


def _shard(trainer: Trainer) -> dict[str, Any]:
    optimizer, schedule = trainer.update.optimizer, trainer.update.schedule
    mine = trainer.first_owned
    states, groups = {}, []
    if optimizer is not None:
        names = {id(trainer.state[name]): name for name in trainer.state}
        # A parameter's own object leads to its name; state_dict has positions only.
        states = {names[id(x)]: state for x, state in optimizer.state.items() if names[id(x)] in mine}
        for group in optimizer.param_groups:
            choices = _on_host({key: value for key, value in group.items() if key not in ("params", "param_names")})
            groups.append({"choices": choices, "names": [names[id(x)] for x in group["params"]]})
    return {
        "model": {name: trainer.state[name].detach().cpu() for name in mine},
        "state_dict": trainer.state_dict_names,
        "optimizer": _on_host(states),
        "optimizer_class": None if optimizer is None else type(optimizer).__name__,
        "groups": groups,
        "schedule_class": None if schedule is None else type(schedule).__name__,
        "schedule": None if schedule is None else _on_host(schedule.state_dict()),
        "random": torch.get_rng_state(),
        "device_random": trainer.device.random_state(),
    }


def _on_host(state: Any) -> Any:
    """Copies the tensors of a state to the host, as a checkpoint is of no device; NumPy's numbers become Python's."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu()
    if isinstance(state, np.generic):
        # torch.load takes them for code.
        return state.item()
    if isinstance(state, dict):
        return {_on_host(name): _on_host(value) for name, value in state.items()}
    return type(state)(map(_on_host, state)) if type(state) in (list, tuple) else state


def _load_optimizer(trainer: Trainer, shards: list[dict[str, Any]]) -> None:
    """Restores the optimizer's state of each parameter, and the group options that the user or a schedule set.

    How it computes (:data:`IMPLEMENTATION`) may differ on another device, and stays as this process made it.
    """
    optimizer = trainer.update.optimizer
    assert optimizer is not None
    states = {name: state for shard in shards for name, state in shard["optimizer"].items()}
    choices = {name: group["choices"] for shard in shards for group in shard["groups"] for name in group["names"]}
    names = {id(trainer.state[name]): name for name in trainer.state}
    packed = optimizer.state_dict()
    # Of groups of which this rank has no parameter.
    written = (shard["groups"] for shard in shards)
    alike: list[dict[str, Any]] = next((each for each in written if len(each) == len(packed["param_groups"])), [])
    for group, kept in zip(packed["param_groups"], alike, strict=False):
        group.update({key: value for key, value in kept["choices"].items() if key not in IMPLEMENTATION})
    for group, own in zip(packed["param_groups"], optimizer.param_groups, strict=True):
        for position, parameter in zip(group["params"], own["params"], strict=True):
            name = names[id(parameter)]
            chosen = choices.get(name, {})
            group.update({key: value for key, value in chosen.items() if key not in IMPLEMENTATION})
            if name in states:
                packed["state"][position] = states[name]
    optimizer.load_state_dict(packed)


def _read_shards(folder: Path, record: Checkpoint) -> list[dict[str, Any]]:
    return [
        _read_shard(folder / f"rank-{rank}.pt", record.checksums[rank] if record.checksums else None)
        for rank in range(record.ranks)
    ]


def _read_shard(path: Path, checksum: str | None) -> dict[str, Any]:
    with _report_damage(path):
        with serialization.open_regular(path) as stream:
            if checksum is not None and _checksum(stream) != checksum:
                raise DocumentError(
                    f"cannot read {path}: its checksum is not that of the file that was written ({_INSTEAD})"
                )
        shard: dict[str, Any] = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
        return shard


def _checksum(stream: BufferedReader | BufferedRandom) -> str:
    stream.seek(0)
    return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Converts what a damaged file makes torch and an optimizer raise, which may be anything, to a DocumentError."""
    try:
        yield
    except DeeppoolError:
        raise
    except Exception as error:
        reason = (
            getattr(error, "strerror", None) or f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        )
        raise DocumentError(f"cannot read {path}: {reason} ({_INSTEAD})") from error
