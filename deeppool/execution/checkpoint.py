"""A training's state on disk: written by its ranks together, read by any other number of ranks and any plan.

    step-000120/
        rank-0.pt          parameters, buffers and optimizer state that rank 0 is the first owner of, by name
        rank-1.pt
        checkpoint.json    the training, and its progress

The ranks write into a folder of another name, which is renamed when all of it is on disk: a folder called
``step-…`` is whole, whatever happened while it was written. Files are read without unpickling code.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from deeppool.base import serialization
from deeppool.errors import DocumentError, RunError
from deeppool.execution.trainer import Trainer

RECORD = "checkpoint.json"
PARTIAL = ".partial"


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
    loss_scale: float
    updates_since_scaled: int

    def __str__(self) -> str:
        return f"{self.model} after {self.updates} updates of global batch {self.global_batch}, by {self.ranks} ranks"


def begin(folder: Path, updates: int) -> Path:
    """Makes the folder that the ranks write into, and removes what interrupted attempts left there.

    Raises:
        DocumentError: it cannot be made.
    """
    partial = folder / f"step-{updates:06}{PARTIAL}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        discard_partial(folder)
        partial.mkdir()
    except OSError as error:
        raise DocumentError(f"cannot write {partial}: {error.strerror} (choose another folder)") from error
    return partial


def discard_partial(folder: Path) -> None:
    """Removes incomplete checkpoints; no rank may be writing."""
    for partial in folder.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)


def save_shard(trainer: Trainer, folder: Path) -> None:
    """Writes this rank's part of a checkpoint.

    Raises:
        RunError: a parameter is NaN or infinite, so that training could not resume from it.
        DocumentError: it cannot be written.
    """
    for name in trainer.first_owned:
        value = trainer.state[name]
        if value.requires_grad and not bool(value.isfinite().all()):
            raise RunError(
                f"'{name}' holds values that are no number, no checkpoint of it was written "
                "(lower the learning rate, clip gradients, or look at the data)"
            )
    path = folder / f"rank-{trainer.rank}.pt"
    try:
        with path.open("wb") as stream:
            torch.save(_shard(trainer), stream)
            stream.flush()
            os.fsync(stream.fileno())
    # torch reports a full disk as a RuntimeError.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DocumentError(
            f"cannot write {path}: {reason} (is the disk full? earlier checkpoints are whole)"
        ) from error


def seal(partial: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Completes a checkpoint that every rank has written, and deletes all but the newest ``keep``."""
    serialization.write(checkpoint, partial / RECORD)
    whole = partial.with_name(partial.name.removesuffix(PARTIAL))
    if whole.exists():
        # The same training came here before: from an earlier checkpoint it does so again.
        shutil.rmtree(whole)
    os.replace(partial, whole)
    for old in _checkpoints(partial.parent)[:-keep]:
        # Under its own name it would look whole while it goes.
        os.replace(old, old.with_name(old.name + PARTIAL))
    discard_partial(partial.parent)
    return whole


def latest(folder: Path) -> Path | None:
    """Returns the checkpoint of a folder with the most updates."""
    return max(_checkpoints(folder), default=None)


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
    """
    record = read(folder)
    shards = [_read_shard(folder / f"rank-{rank}.pt") for rank in range(record.ranks)]
    model = {name: value for shard in shards for name, value in shard["model"].items()}
    with torch.no_grad():
        for name, value in trainer.state.items():
            if name not in model or model[name].shape != value.shape:
                raise DocumentError(f"{folder} has no '{name}' of shape {tuple(value.shape)} (is it another model's?)")
            value.copy_(model[name])
    update = trainer.update
    if update.optimizer is not None:
        _load_optimizer(trainer, shards)
        schedule = next((shard["schedule"] for shard in shards if shard["schedule"] is not None), None)
        if update.schedule is not None and schedule is not None:
            update.schedule.load_state_dict(schedule)
    update.scale.factor, update.scale.good = record.loss_scale, record.updates_since_scaled
    trainer.iterations = record.iterations
    if record.ranks == trainer.ranks:
        torch.set_rng_state(shards[trainer.rank]["random"])


def load_weights(checkpoint: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Returns all parameters and buffers of a checkpoint, for ``model.load_state_dict``.

    Args:
        checkpoint: its folder, as a training's record names it: ``record.checkpoint``.

    Raises:
        DocumentError: the folder is no checkpoint, or a file is damaged.
    """
    folder = Path(checkpoint)
    ranks = range(read(folder).ranks)
    return {name: value for rank in ranks for name, value in _read_shard(folder / f"rank-{rank}.pt")["model"].items()}


def _checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / RECORD).is_file() and path.suffix != PARTIAL)


def _shard(trainer: Trainer) -> dict[str, Any]:
    optimizer, schedule = trainer.update.optimizer, trainer.update.schedule
    mine = trainer.first_owned
    states, groups = {}, []
    if optimizer is not None:
        names = {id(trainer.state[name]): name for name in trainer.state}
        # A parameter's own object leads to its name; state_dict has positions only.
        states = {names[id(x)]: state for x, state in optimizer.state.items() if names[id(x)] in mine}
        for group in optimizer.param_groups:
            choices = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            groups.append({"choices": choices, "names": [names[id(x)] for x in group["params"]]})
    return {
        "model": {name: trainer.state[name].detach() for name in mine},
        "optimizer": states,
        "groups": groups,
        "schedule": None if schedule is None else schedule.state_dict(),
        "random": torch.get_rng_state(),
    }


def _load_optimizer(trainer: Trainer, shards: list[dict[str, Any]]) -> None:
    """Restores the optimizer's state of each parameter, and the group options that the user or a schedule set."""
    optimizer = trainer.update.optimizer
    assert optimizer is not None
    states = {name: state for shard in shards for name, state in shard["optimizer"].items()}
    choices = {name: group["choices"] for shard in shards for group in shard["groups"] for name in group["names"]}
    names = {id(trainer.state[name]): name for name in trainer.state}
    packed = optimizer.state_dict()
    for group, own in zip(packed["param_groups"], optimizer.param_groups, strict=True):
        for position, parameter in zip(group["params"], own["params"], strict=True):
            name = names[id(parameter)]
            group.update(choices.get(name, {}))
            if name in states:
                packed["state"][position] = states[name]
    optimizer.load_state_dict(packed)


def _read_shard(path: Path) -> dict[str, Any]:
    try:
        shard: dict[str, Any] = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # torch's reader raises many kinds
        raise DocumentError(f"cannot read {path}: {str(error).splitlines()[0]} (use an earlier checkpoint)") from error
    return shard
