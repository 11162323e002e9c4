"""The process of a rank: builds the model, then trains as many iterations as it is told.

Commands: ``setup`` (once), ``train`` with a number of steps, ``find`` with a file, ``save`` and ``load`` with a
checkpoint's folder, ``switch`` with another plan, ``exit``, and those of who lives in the same process. Answers:
``ready``, ``step`` after each update of rank 0 (or of every rank, if told so), ``done`` with what was measured.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch

# Every rank captures its model; what that needs, a nursery loads once for all of them.
import torch._dynamo
import torch._functorch.aot_autograd
import torch.distributed as dist

from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.device.control_group import join_foreground
from deeppool.device.cpu import pin_to_core
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.errors import RunError
from deeppool.execution.checkpoint import load, save_shard
from deeppool.execution.communicator import Communicator, ProcessGroup
from deeppool.execution.emulated_rank import EmulatedCommunicator
from deeppool.execution.failure_report import RENDEZVOUS, report_failure
from deeppool.execution.foreground_control import ForegroundControl
from deeppool.execution.ranks import PLAN
from deeppool.execution.replay_schedule import replay_schedule
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer, Watcher
from deeppool.execution.training_task import TrainingTask, place_sockets_in, synthetic_task, user_task
from deeppool.job import job_from
from deeppool.planning.plan import Plan
from deeppool.processes.heartbeat import Activity, Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.training.training_job import load_job

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""A rank that waits longer for the others gives up. The launcher notices much sooner which of them hangs."""
SPAN_DESCRIPTIONS = {
    "data": "reading the samples of stage",
    "forward": "forward of stage",
    "backward": "backward of stage",
    "reshard": "reshard at stage",
    "sync": "gradient synchronisation of stage",
    "update": "the update after stage",
}
"""What a trainer does, for people."""
WAITING = "waiting for a command"


class Command(NamedTuple):
    """What a rank can be told to do."""

    doing: str
    """What it does then, for people."""
    obey: Callable[[Message, CommandChannel], dict[str, Any]]
    """Returns what it answers."""


class Rank:
    """One rank of a live run."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Pins the process, captures the model and checks it against the plan, and meets the other ranks."""
        self.rank: int = setup["rank"]
        self.setup = setup
        self.communicator: Communicator
        self.updates = 0
        heartbeat.enter("making the model and the data")
        folder = Path(setup["folder"])
        plan = serialization.read(folder / PLAN, Plan)
        with all_hardware_queues():
            device = self.device = find_device(plan.device)
            device.select(setup["index"])
            self.stream = device.stream("high")
        if setup["core"] is not None:
            pin_to_core(setup["core"])
        self.place = device.torch_device(setup["index"])
        device.arithmetic(plan.precision)  # refused before the model is captured
        work = self._task = _task(setup, folder, plan, self.place)
        if setup["emulated"]:
            self.communicator = _make_emulated(self.rank, plan, self.place)
        else:
            heartbeat.enter(RENDEZVOUS, waits=True)
            self.communicator = _join_process_group(setup, device)
        self.training = work.training
        self.trainer = self._trainer(plan)
        self.foreground_control = _make_foreground_control(setup, device, self.communicator, self.place)
        self.watcher: Watcher | None = None
        """Of the trainer, where nobody governs a background."""
        self.device_seconds: Callable[[], float] = time.process_time
        """Seconds for which this rank has had its core or GPU."""
        heartbeat.probe = self.doing

    def doing(self) -> Activity | None:
        """What the trainer does; None outside of an update's parts."""
        now = self.trainer.doing
        if now is None:
            return None
        kind, stage, since = now
        what = f"{SPAN_DESCRIPTIONS[kind]} {self.trainer.stages[stage].name} (update {self.updates + 1})"
        return Activity(what, since, waits=kind in ("reshard", "sync"))

    def _trainer(self, plan: Plan) -> Trainer:
        # A graph repeats the arithmetic that it was captured with.
        with self.device.unbound(), self.device.arithmetic(plan.precision), self.stream.current():
            return Trainer(
                self._task.captured,
                stages_of(plan),
                self.communicator,
                self._task.training,
                plan.precision,
                overlap_sync=plan.overlap_sync,
            )

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains some updates and measures; all ranks start together."""
        times, losses, stage_times, bounds = [], [], [], []
        # Another machine's clock: all answers are on the launcher's.
        ahead = message.get("clock", 0.0)
        foreground_control = self.foreground_control if message["beside"] else None
        self.trainer.watcher = self.watcher
        self.communicator.barrier()
        device_seconds, started = self.device_seconds(), time.perf_counter()
        ended = started
        for _ in range(message["steps"]):
            before = ended
            if foreground_control is not None:
                note = commands.control_message()
                if note is not None:
                    foreground_control.change_bound(note["bound"], note["number"])
                foreground_control.begin(self.trainer)
                bounds.append(foreground_control.number)
            scale = self.trainer.update.scale.factor
            # No wider: this process may capture a background, too.
            with self.device.arithmetic(self.trainer.precision):
                losses.append(self.trainer.iterate([self._batch] * self.training.accumulation))
            self.updates += 1
            ended = time.perf_counter()
            times.append(ended - before)
            if foreground_control is not None:
                foreground_control.end(times[-1], self.trainer.spans)
            stage_times.append([(*what, start + ahead, end + ahead) for *what, start, end in self.trainer.spans])
            if self.rank == 0 or message["told"]:
                # Below 1 it is no overflow that a smaller scale could cure.
                skipped = 1 <= self.trainer.update.scale.factor < scale
                told = self._update_fields() | ({} if foreground_control is None else foreground_control.told())
                commands.answer(
                    "step",
                    rank=self.rank,
                    step=self.updates,
                    loss=losses[-1],
                    seconds=times[-1],
                    skipped=skipped,
                    **told,
                )
        if foreground_control is not None:
            foreground_control.rest(self.trainer)
        elif self.foreground_control is not None and message["awake"]:
            self.foreground_control.alone(times)
        return {
            "times": times,
            "losses": losses,
            "started": started + ahead,
            "wall": ended - started,
            "cpu": self.device_seconds() - device_seconds,
            "spans": stage_times,
            "bounds": bounds,
            "governor": None if foreground_control is None else foreground_control.found(self.trainer.stages),
        }

    def save(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Writes this rank's part of a checkpoint."""
        save_shard(self.trainer, Path(message["folder"]))
        scale = self.trainer.update.scale
        return {
            "iterations": self.trainer.iterations,
            "loss_scale": scale.factor,
            "updates_since_scaled": scale.good,
        }

    def find(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Looks for a file that the launcher has written."""
        path = Path(message["path"])
        if not path.is_file():
            raise RunError(
                f"{platform.node()} does not see {path}, which the launcher wrote on {message['host']} "
                "(checkpoints must lie in a folder that all nodes share)"
            )
        return {}

    def load(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Goes on from a checkpoint."""
        load(self.trainer, Path(message["folder"]))
        self.updates = message["updates"]
        return {}

    def switch(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Goes on by another plan."""
        self.trainer.close()
        self.trainer = self._trainer(serialization.from_json(message["plan"], Plan, "the plan to change to"))
        if self.foreground_control is not None:
            self.foreground_control.reset()
        load(self.trainer, Path(message["folder"]))
        return {}

    @property
    def commands(self) -> dict[str, Command]:
        """By name."""
        return {
            "train": Command("training, between stages", self.train),
            "find": Command("looking for the folder of checkpoints", self.find),
            "save": Command("writing its part of a checkpoint", self.save),
            "load": Command("reading a checkpoint", self.load),
            "switch": Command("changing its plan", self.switch),
        }

    def _batch(self, samples: range) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self.place) for tensor in self._task.samples(self.trainer.iterations, samples))

    def _update_fields(self) -> dict[str, Any]:
        """What an update was made with, where this rank has an optimizer."""
        optimizer = self.trainer.update.optimizer
        return {} if optimizer is None else {"learning_rate": float(optimizer.param_groups[0]["lr"])}


def _task(setup: Message, folder: Path, plan: Plan, place: torch.device) -> TrainingTask:
    if "job" in setup:
        return synthetic_task(job_from(setup["job"]), place, folder, plan)
    place_sockets_in(folder)
    return user_task(load_job(folder), plan.global_batch, place, plan)


def _join_process_group(setup: Message, device: Device) -> Communicator:
    """Joins the process group of all ranks."""
    if setup["interface"] is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", setup["interface"])
    with device.unbound():
        dist.init_process_group(
            device.backend,
            init_method=setup["rendezvous"],
            rank=setup["rank"],
            world_size=setup["ranks"],
            timeout=COLLECTIVE_TIMEOUT,
        )
    return ProcessGroup()


def _make_emulated(rank: int, plan: Plan, place: torch.device) -> Communicator:
    """All other ranks of a plan."""

    def synchronize() -> None:
        # Of this stream alone: a background's goes on.
        if place.type == "cuda":
            torch.cuda.current_stream(place).synchronize()

    return EmulatedCommunicator(rank, plan.gpus, replay_schedule(plan, stages_of(plan), rank), synchronize=synchronize)


def _make_foreground_control(
    setup: Message, device: Device, communicator: Communicator, place: torch.device
) -> ForegroundControl | None:
    """Where a background runs beside this rank."""
    if setup["sharing"] is None:
        return None
    sharing, folder = Sharing(**setup["sharing"]), Path(setup["boards"] or setup["folder"])
    if sharing.share is not None and device.kind == "cpu":
        join_foreground(folder.name, setup["position"])
    return ForegroundControl(sharing, folder, setup["position"], communicator, place)


def main(more: Callable[[Rank], Mapping[str, Command]] = lambda rank: {}) -> None:
    """Obeys the launcher until it is told to exit.

    Args:
        more: commands of who lives in this process too.
    """
    commands = CommandChannel()
    heartbeat = Heartbeat(commands)
    try:
        rank = Rank(commands.next(), heartbeat)
        commands.answer("ready")
        known = {**rank.commands, **more(rank)}
        with rank.stream.current():
            heartbeat.enter(WAITING, waits=True)
            while (message := commands.next())["command"] != "exit":
                command = known[message["command"]]
                heartbeat.enter(command.doing)
                commands.answer("done", **command.obey(message, commands))
                heartbeat.enter(WAITING, waits=True)
        rank.communicator.close()
    except Exception as error:
        report_failure(commands, error, heartbeat.doing.what)
        sys.exit(1)


if __name__ == "__main__":
    main()
