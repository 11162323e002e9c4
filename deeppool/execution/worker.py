"""The process of a rank: builds the model, then trains as many iterations as it is told.

Commands: ``setup`` (once), ``train`` with a number of steps, ``exit``. Answers: ``ready``, ``step`` after
each iteration of rank 0, ``done`` with what was measured.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from deeppool import documents
from deeppool.child import Commands, Message
from deeppool.device.common import find_device
from deeppool.device.cpu import pin_to_core
from deeppool.errors import DeeppoolError, RunError
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture import CapturedModel, capture
from deeppool.graph.inputs import torch_dtype
from deeppool.graph.synthetic import SyntheticTask
from deeppool.graph.workloads import load_model
from deeppool.job import Job
from deeppool.planning.plan import Plan

COLLECTIVE_TIMEOUT = timedelta(seconds=120)
"""A rank that waits longer for the others gives up; the launcher notices a death much sooner."""


class Rank:
    """One rank of a live run."""

    def __init__(self, setup: Message) -> None:
        """Pins the process, joins the process group, captures the model and checks it against the plan."""
        self.rank: int = setup["rank"]
        self.job = Job(**{**setup["job"], "input_shape": tuple(setup["job"]["input_shape"])})
        plan = documents.read(setup["plan"], Plan)
        device = find_device(plan.device)
        if device.kind == "cpu":
            torch.set_num_threads(1)
            if setup["core"] is not None:
                pin_to_core(setup["core"])
        captured = _capture(self.job, plan, device.torch_device(self.rank))
        # gloo would listen on the machine's public address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            device.backend,
            init_method=Path(setup["rendezvous"]).as_uri(),
            rank=self.rank,
            world_size=setup["ranks"],
            timeout=COLLECTIVE_TIMEOUT,
        )
        stages = stages_of(plan)
        self.trainer = Trainer(captured, stages, self.rank, make_optimizer=self._optimizer)
        self.task = SyntheticTask(captured, plan.global_batch, self.job.seed)
        self.place = device.torch_device(self.rank)
        self.step = 0

    def _optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.job.learning_rate, momentum=self.job.momentum)

    def train(self, steps: int, commands: Commands) -> dict[str, Any]:
        """Trains and measures; all ranks start together."""
        times, losses, stage_times = [], [], []
        dist.barrier()
        cpu, started = time.process_time(), time.perf_counter()
        ended = started
        for _ in range(steps):
            before = ended
            losses.append(self.trainer.iterate(self._batch))
            self.step += 1
            ended = time.perf_counter()
            times.append(ended - before)
            stage_times.append(self.trainer.spans)
            if self.rank == 0:
                commands.answer("step", step=self.step)
        return {
            "times": times,
            "losses": losses,
            "started": started,
            "wall": ended - started,
            "cpu": time.process_time() - cpu,
            "spans": stage_times,
        }

    def _batch(self, samples: range) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self.place) for tensor in self.task.shard(self.step, samples.start, samples.stop))


def _capture(job: Job, plan: Plan, place: torch.device) -> CapturedModel:
    captured = capture(
        load_model(job.model, job.seed).to(place),
        {given.name: given.shape for given in plan.inputs},
        input_dtype={given.name: torch_dtype(given) for given in plan.inputs},
        granularity=plan.granularity,
    )
    if captured.graph.fingerprint != plan.graph_fingerprint:
        raise RunError(
            f"model {job.model} has changed since the plan was made: its graph is {captured.graph.fingerprint}, "
            f"the plan's {plan.graph_fingerprint} (profile and plan it again)"
        )
    return captured


def main() -> None:
    """Obeys the launcher until it is told to exit."""
    commands = Commands()
    try:
        rank = Rank(commands.next())
        commands.answer("ready")
        while (message := commands.next())["command"] == "train":
            commands.answer("done", **rank.train(message["steps"], commands))
        dist.destroy_process_group()
    except DeeppoolError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
