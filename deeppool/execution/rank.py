"""One rank of a run: its model, its communicator and its trainer, and the commands that it executes."""

import math
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deeppool.base import serialization
from deeppool.base.pickling import load_pickled
from deeppool.base.sharing import Sharing
from deeppool.base.timeline import COMPUTING
from deeppool.costs.communication import Network
from deeppool.device.control_group import join_foreground
from deeppool.device.cpu import pin_to_core
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.device.protocol import Device, Stream
from deeppool.errors import RunError
from deeppool.execution.checkpoint import load, save_shard
from deeppool.execution.communicator import Communicator, join_process_group
from deeppool.execution.emulated_rank import emulate_other_ranks
from deeppool.execution.failure_report import RENDEZVOUS
from deeppool.execution.foreground_control import ForegroundControl
from deeppool.execution.gradient_sync import ScheduleChoice
from deeppool.execution.iteration_record import IterationRecord
from deeppool.execution.load_imbalance import load_delay
from deeppool.execution.ranks import PLAN
from deeppool.execution.span_recorder import RawSpan
from deeppool.execution.stages import Division, stages_of
from deeppool.execution.sync_method import METHOD, GradientSyncMethod
from deeppool.execution.trainer import Trainer
from deeppool.execution.training_task import TrainingTask, synthetic_task, user_task
from deeppool.execution.update_reports import Report, UpdateReports
from deeppool.job import job_from
from deeppool.planning.plan import Plan
from deeppool.processes.heartbeat import Activity, Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.worker_sockets import place_sockets_in
from deeppool.telemetry.run_delay import RunDelayMeter
from deeppool.training.training_job import load_job
from deeppool.training.update import UpdateOutcome

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


def take_device(setup: Message, kind: str) -> tuple[Device, Stream, torch.device]:
    """Selects the device of a rank, and pins its process; returns the device, the rank's stream, and torch's device."""
    with all_hardware_queues():
        device = find_device(kind)
        device.select(setup["index"])
        stream = device.stream("high")
    pin_to_core(setup["core"])
    return device, stream, device.torch_device(setup["index"])


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
        self.device, self.stream, self.torch_device = take_device(setup, plan.device)
        self.device.arithmetic(plan.precision)  # refused before the model is captured
        self._gradient_sync: GradientSyncMethod | None = None
        if (folder / METHOD).exists():
            self._gradient_sync = load_pickled(folder / METHOD)
        self._delay = load_delay(folder, self.rank, lambda: self.updates)
        self._task = _load_task(setup, folder, plan, self.torch_device)
        self.communicator: Communicator
        if setup["emulated"]:
            self.communicator = emulate_other_ranks(self.rank, plan, self.torch_device)
        else:
            heartbeat.enter(RENDEZVOUS, waits=True)
            self.communicator = join_process_group(
                self.device, setup["rank"], setup["ranks"], setup["rendezvous"], setup["interface"]
            )
        heartbeat.enter("making the trainer")
        self.trainer = self._make_trainer(plan)
        self.foreground_control = self._make_foreground_control()
        # Now: the threads of the transfers have started, and those of a background in this process have not.
        self._run_delay = RunDelayMeter()
        self.core_seconds: Callable[[], float] = time.process_time
        """Returns the seconds for which this rank has used its core, where it computes on one."""
        heartbeat.probe = self.activity

    @property
    def ready(self) -> dict[str, Any]:
        """Name of the device, and hash of the order of the samples; None where the data is synthetic."""
        return {"device_name": self.device.name, "order": self._task.order}

    def activity(self) -> Activity | None:
        """Returns the span that the trainer is in; None outside an update.

        Where the device is behind its host, it is the span that the device has not passed: whatever the host does then,
        or waits in, a rank whose device waits for others does not hang by itself.
        """
        unfinished = self.trainer.unfinished()
        current = self.trainer.doing if unfinished is None else (unfinished.kind, unfinished.stage, unfinished.launched)
        if current is None:
            return None
        kind, stage, since = current
        what = f"{SPAN_DESCRIPTIONS[kind]} {self.trainer.stages[stage].name} (update {self.updates + 1})"
        return Activity(what, since, waits=kind in ("reshard", "sync"))

    def _make_trainer(self, plan: Plan) -> Trainer:
        network, method = Network(plan.cluster, plan.network_model), self._gradient_sync
        choose: ScheduleChoice | None = network.all_reduce_schedule if network.performs_schedules else None
        # A graph repeats the arithmetic that it was captured with.
        with self.device.unbound(), self.device.arithmetic(plan.precision), self.stream.current():
            trainer = Trainer(
                self._task.captured,
                stages_of(plan),
                self.communicator,
                self._task.training,
                plan.precision,
                overlap_sync=plan.overlap_sync,
                buckets=plan.buckets,
                choose_schedule=choose if method is None else method.choose_schedule(network),
                divide_stages=self._division(plan),
                replay_graphs=method is None or method.replays_graphs,
                make_driver=None if method is None else lambda trainer: method.driver(trainer, network),
            )
        trainer.step.before_compute = self._delay
        trainer.follow_device()
        return trainer

    def _division(self, plan: Plan) -> Division | None:
        """Returns how the stages are divided into parts."""
        if self._gradient_sync is not None:
            return "layers" if self._gradient_sync.divides_stages else None
        # A graph has no moments at which single gradients are ready. An emulated rank waits as its plan says.
        return "buckets" if plan.overlap_sync and self.device.asynchronous and not self.setup["emulated"] else None

    def _make_foreground_control(self) -> ForegroundControl | None:
        """Returns None where no background shares this rank's device."""
        setup = self.setup
        if setup["sharing"] is None:
            return None
        sharing, folder = Sharing(**setup["sharing"]), Path(setup["shared_pages"] or setup["folder"])
        if sharing.share is not None and not self.device.asynchronous:
            join_foreground(folder.name, setup["position"])
        return ForegroundControl(
            sharing,
            folder,
            setup["position"],
            self.communicator,
            self.torch_device,
            by_events=self.device.asynchronous,
        )

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains and measures a number of updates; all ranks start together."""
        losses, bounds, delays, followed = [], [], [], []
        # Added to times of this node's clock, so that all answers are on the launcher's.
        offset = message.get("clock", 0.0)
        if self.foreground_control is not None:
            # An emulated rank is the only one there.
            computes = any(self.rank in stage.layout.gpus for stage in self.trainer.stages)
            self.foreground_control.computes = computes or self.setup["emulated"]
        control = self.foreground_control if message["collocated"] else None
        reports = None
        if self.rank == 0 or message["report_all"]:
            reports = UpdateReports(self.trainer.update, partial(self._report, commands, control))
        self.communicator.barrier()
        self.trainer.clock.calibrate()
        used, started, record = self.core_seconds(), time.perf_counter(), IterationRecord(self.trainer)
        self._run_delay.lap()
        for _ in range(message["steps"]):
            if control is not None:
                self._begin_controlled(control, commands)
            bounds.append(0 if control is None else control.number)
            followed.append(self.trainer.driver.transfers)
            # No wider: this process may capture a background, too.
            with self.device.arithmetic(self.trainer.precision):
                losses.append(self.trainer.iterate([self._batch] * self._task.training.accumulation))
            self.updates += 1
            seconds = record.lap()
            delays.append(self._run_delay.lap())
            if control is not None:
                control.end(record)
            if reports is not None:
                reports.add(self._report_of(losses[-1], seconds))
        # Checkpoints, evaluations and other plans follow a command, and find all updates complete.
        self.trainer.driver.drain()
        if reports is not None:
            reports.close()
        self.device.synchronize_stream()
        ended, cores = time.perf_counter(), self.core_seconds() - used
        times, spans, transfers = record.seconds(), record.spans(), self.trainer.driver.transfers
        if control is not None:
            control.pause(self.trainer, record)
        elif self.foreground_control is not None and message["awake"]:
            self.foreground_control.record_alone(times)
        return {
            "times": times,
            "losses": losses,
            "started": started + offset,
            "wall": ended - started,
            # CPU time does not measure work on a GPU: the host sleeps or polls while it waits.
            "busy": sum(map(_computing, spans)) if self.device.asynchronous else cores,
            "spans": [
                [(*what, start + offset, end + offset) for *what, start, end in iteration] for iteration in spans
            ],
            "bounds": bounds,
            "run_delays": delays,
            "transfers": transfers and serialization.to_json(transfers),
            "by_transfers": [each is transfers for each in followed],
            "governor": None if control is None else control.results(self.trainer.stages),
        }

    def _begin_controlled(self, control: ForegroundControl, commands: CommandChannel) -> None:
        message = commands.control_message()
        if message is not None:
            control.change_bound(message["bound"], message["number"])
        control.begin(self.trainer)

    def _report_of(self, loss: float, seconds: float) -> Report:
        return {
            "rank": self.rank,
            "step": self.updates,
            "loss": loss,
            "computed_share": self.trainer.computed_share,
            "computed": self.trainer.computed,
            "seconds": seconds,
        }

    def _report(
        self, commands: CommandChannel, control: ForegroundControl | None, report: Report, outcome: UpdateOutcome
    ) -> None:
        if outcome.stuck and math.isfinite(report["loss"]):
            raise RunError(
                f"gradients are infinite or NaN in update {report['step']}, at any loss scale "
                "(lower the learning rate, clip gradients, or look at the data)"
            )
        fields = {} if outcome.learning_rate is None else {"learning_rate": outcome.learning_rate}
        if control is not None:
            fields |= control.step_fields()
        commands.answer("step", **report, skipped=outcome.skipped, **fields)

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
        self._task.forget()
        self.trainer = self._make_trainer(serialization.from_json(message["plan"], Plan, "the plan to change to"))
        self._run_delay.close()
        self._run_delay = RunDelayMeter()
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
        return self._task.samples(self.trainer.step.iterations, samples)


def _computing(spans: Sequence[RawSpan]) -> float:
    return sum(end - start for kind, *_, start, end in spans if kind in COMPUTING)


def _load_task(setup: Message, folder: Path, plan: Plan, device: torch.device) -> TrainingTask:
    if "job" in setup:
        return synthetic_task(job_from(setup["job"]), device, folder, plan)
    place_sockets_in(folder)
    return user_task(load_job(folder), plan.global_batch, device, plan)
