"""One rank of a run: its model, its communicator and its trainer, and the commands that it executes."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.device.control_group import join_foreground
from deeppool.device.cpu import pin_to_core
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.errors import RunError
from deeppool.execution.checkpoint import load, save_shard
from deeppool.execution.communicator import Communicator, join_process_group
from deeppool.execution.emulated_rank import emulate_other_ranks
from deeppool.execution.failure_report import RENDEZVOUS
from deeppool.execution.foreground_control import ForegroundControl
from deeppool.execution.ranks import PLAN
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer, Watcher
from deeppool.execution.training_task import TrainingTask, place_sockets_in, synthetic_task, user_task
from deeppool.job import job_from
from deeppool.planning.plan import Plan
from deeppool.processes.heartbeat import Activity, Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.training.training_job import load_job

SPAN_DESCRIPTIONS = {
    "data": "reading the samples of stage",
    "forward": "forward of stage",
    "backward": "backward of stage",
    "reshard": "reshard at stage",
    "sync": "gradient synchronisation of stage",
    "update": "the update after stage",
}
"""Human-readable activity of a trainer, by span kind."""


class Command(NamedTuple):
    """A command that a rank executes."""

    activity: str
    """Human-readable activity of the rank while it runs."""
    run: Callable[[Message, CommandChannel], dict[str, Any]]
    """Executes the command and returns the fields of its answer."""


class Rank:
    """One rank of a live run."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Pins the process, captures the model, checks it against the plan and joins the other ranks."""
        self.rank: int = setup["rank"]
        self.setup = setup
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
        self.torch_device = device.torch_device(setup["index"])
        device.arithmetic(plan.precision)  # refused before the model is captured
        self._task = _load_task(setup, folder, plan, self.torch_device)
        self.communicator: Communicator
        if setup["emulated"]:
            self.communicator = emulate_other_ranks(self.rank, plan, self.torch_device)
        else:
            heartbeat.enter(RENDEZVOUS, waits=True)
            self.communicator = join_process_group(
                device, setup["rank"], setup["ranks"], setup["rendezvous"], setup["interface"]
            )
        self.trainer = self._make_trainer(plan)
        self.foreground_control = self._make_foreground_control()
        self.watcher: Watcher | None = None
        """Watcher of the trainer in iterations without foreground control."""
        self.device_seconds: Callable[[], float] = time.process_time
        """Returns the seconds for which this rank has used its core or GPU."""
        heartbeat.probe = self.activity

    @property
    def order(self) -> str | None:
        """Hash of the order of the samples; None where the data is synthetic."""
        return self._task.order

    def activity(self) -> Activity | None:
        """Returns the span that the trainer is in; None outside an update."""
        current = self.trainer.doing
        if current is None:
            return None
        kind, stage, since = current
        what = f"{SPAN_DESCRIPTIONS[kind]} {self.trainer.stages[stage].name} (update {self.updates + 1})"
        return Activity(what, since, waits=kind in ("reshard", "sync"))

    def _make_trainer(self, plan: Plan) -> Trainer:
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

    def _make_foreground_control(self) -> ForegroundControl | None:
        """Returns None where no background shares this rank's device."""
        setup = self.setup
        if setup["sharing"] is None:
            return None
        sharing, folder = Sharing(**setup["sharing"]), Path(setup["shared_pages"] or setup["folder"])
        if sharing.share is not None and self.device.kind == "cpu":
            join_foreground(folder.name, setup["position"])
        return ForegroundControl(sharing, folder, setup["position"], self.communicator, self.torch_device)

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains and measures a number of updates; all ranks start together."""
        times, losses, spans, bounds = [], [], [], []
        # Added to times of this node's clock, so that all answers are on the launcher's.
        offset = message.get("clock", 0.0)
        control = self.foreground_control if message["collocated"] else None
        self.trainer.watcher = self.watcher
        self.communicator.barrier()
        used, started = self.device_seconds(), time.perf_counter()
        ended = started
        for _ in range(message["steps"]):
            before = ended
            if control is not None:
                self._begin_controlled(control, commands)
                bounds.append(control.number)
            scale = self.trainer.update.scale.factor
            # No wider: this process may capture a background, too.
            with self.device.arithmetic(self.trainer.precision):
                losses.append(self.trainer.iterate([self._batch] * self._task.training.accumulation))
            self.updates += 1
            ended = time.perf_counter()
            times.append(ended - before)
            if control is not None:
                control.end(times[-1], self.trainer.spans)
            spans.append([(*what, start + offset, end + offset) for *what, start, end in self.trainer.spans])
            if self.rank == 0 or message["report_all"]:
                self._report_update(commands, control, losses[-1], times[-1], scale)
        if control is not None:
            control.pause(self.trainer)
        elif self.foreground_control is not None and message["awake"]:
            self.foreground_control.record_alone(times)
        return {
            "times": times,
            "losses": losses,
            "started": started + offset,
            "wall": ended - started,
            "cpu": self.device_seconds() - used,
            "spans": spans,
            "bounds": bounds,
            "governor": None if control is None else control.results(self.trainer.stages),
        }

    def _begin_controlled(self, control: ForegroundControl, commands: CommandChannel) -> None:
        message = commands.control_message()
        if message is not None:
            control.change_bound(message["bound"], message["number"])
        control.begin(self.trainer)

    def _report_update(
        self, commands: CommandChannel, control: ForegroundControl | None, loss: float, seconds: float, scale: float
    ) -> None:
        optimizer = self.trainer.update.optimizer
        fields = {} if optimizer is None else {"learning_rate": float(optimizer.param_groups[0]["lr"])}
        if control is not None:
            fields |= control.step_fields()
        # Below 1 it is no overflow that a smaller scale could cure.
        skipped = 1 <= self.trainer.update.scale.factor < scale
        commands.answer(
            "step", rank=self.rank, step=self.updates, loss=loss, seconds=seconds, skipped=skipped, **fields
        )

    def save(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Writes this rank's part of a checkpoint."""
        return save_shard(self.trainer, Path(message["folder"]))

    def find(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Checks that this node sees a file that the launcher has written."""
        path = Path(message["path"])
        if not path.is_file():
            raise RunError(
                f"{platform.node()} does not see {path}, which the launcher wrote on {message['host']} "
                "(checkpoints must lie in a folder that all nodes share)"
            )
        return {}

    def load(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Restores the state of a checkpoint."""
        load(self.trainer, Path(message["folder"]))
        self.updates = message["updates"]
        return {}

    def switch(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Replaces the plan, and restores the state from a checkpoint."""
        self.trainer.close()
        self.trainer = self._make_trainer(serialization.from_json(message["plan"], Plan, "the plan to change to"))
        if self.foreground_control is not None:
            self.foreground_control.reset()
        load(self.trainer, Path(message["folder"]))
        return {}

    @property
    def commands(self) -> dict[str, Command]:
        """All commands by name."""
        return {
            "train": Command("training, between stages", self.train),
            "find": Command("looking for the folder of checkpoints", self.find),
            "save": Command("writing its part of a checkpoint", self.save),
            "load": Command("reading a checkpoint", self.load),
            "switch": Command("changing its plan", self.switch),
        }

    def _batch(self, samples: range) -> tuple[torch.Tensor, ...]:
        tensors = self._task.samples(self.trainer.iterations, samples)
        return tuple(tensor.to(self.torch_device) for tensor in tensors)


def _load_task(setup: Message, folder: Path, plan: Plan, device: torch.device) -> TrainingTask:
    if "job" in setup:
        return synthetic_task(job_from(setup["job"]), device, folder, plan)
    place_sockets_in(folder)
    return user_task(load_job(folder), plan.global_batch, device, plan)
