"""One rank of the comparison: trains the same global batches by DDP and by a plan, interleaved, in one process.

Commands: ``setup`` (once), ``compare`` with rounds and iterations, ``exit``.
"""

import contextlib
import os
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deeppool.base import serialization
from deeppool.collectives.layout import Layout
from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.graph.models.workloads import load_model
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import CommandChannel
from deeppool.training.synthetic_task import SyntheticTask
from deeppool.training.training_job import Training

LEARNING_RATE, MOMENTUM = 0.001, 0.9


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


class Comparison:
    """Ways of training: by DDP; by a plan; by the same plan, whose spans nobody notes (``unmonitored``).

    DDP is on all ranks, or on the first ones, as in ``ddp on 1``. A way may add where its rank runs: ``pinned`` to its
    core, as by default, or on ``any core``.
    """

    def __init__(self, setup):
        self.rank = setup["rank"]
        plan = serialization.read(Path(setup["folder"]) / "plan.json", Plan)
        device = find_device("cpu")
        device.select(setup["index"])
        torch.manual_seed(0)
        captured = capture(load_model(plan.model, 0), plan.input_shape)
        self.task = SyntheticTask(captured, plan.global_batch, 0)
        if setup["interface"] is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = setup["interface"]
        with device.unbound():
            dist.init_process_group("gloo", init_method=setup["rendezvous"], rank=self.rank, world_size=setup["ranks"])
            self.trainer = Trainer(
                captured,
                stages_of(plan),
                ProcessGroup(CpuDevice()),
                Training(optimizer=sgd, synchronise_batch_norm=False),
                overlap_sync=plan.overlap_sync,
            )
            self.ddp = {count: self.data_parallel(plan, count) for count in (*setup["fewer"], setup["ranks"])}
        self.noted = self.trainer.span
        self.cores = {"pinned": os.sched_getaffinity(0), "any core": range(os.cpu_count())}
        self.done = defaultdict(int)

    def data_parallel(self, plan, count):
        """The model, its optimizer and this rank's samples; all ranks have to make the group."""
        group = dist.new_group(range(count))
        if self.rank >= count:
            return None
        model = load_model(plan.model, 0).train()
        if count > 1:
            # As in Trainer, each rank's BatchNorm keeps statistics of its own.
            model = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
        return model, sgd(model.parameters()), Layout(tuple(range(count)), plan.global_batch).shard(self.rank)

    def unnoted(self, *_):
        return contextlib.nullcontext()

    def by_plan(self, iteration):
        return self.trainer.iterate([lambda samples: self.task.shard(iteration, samples.start, samples.stop)])

    def by_ddp(self, iteration, count):
        if self.ddp[count] is None:
            return 0.0
        model, optimizer, shard = self.ddp[count]
        inputs, targets = self.task.shard(iteration, shard.start, shard.stop)
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach()) * len(shard) / self.task.batch

    def compare(self, rounds, iterations, ways):
        """Per way: seconds of every iteration, of every update, losses, and idle time."""
        found = {way: {"seconds": [], "losses": [], "spans": []} for way in ways}
        for _ in range(rounds):
            for way in ways:
                training, _, where = way.partition(", ")
                training, _, count = training.partition(" on ")
                train = partial(self.by_ddp, count=int(count or max(self.ddp))) if training == "ddp" else self.by_plan
                os.sched_setaffinity(0, self.cores[where or "pinned"])
                dist.barrier()
                self.trainer.span = self.unnoted if way == "unmonitored" else self.noted
                for _ in range(iterations):
                    started = time.perf_counter()
                    loss = train(self.done[way])
                    found[way]["seconds"].append(time.perf_counter() - started)
                    found[way]["losses"].append(loss)
                    found[way]["spans"].append(self.trainer.spans if way == "plan" else [])
                    self.done[way] += 1
        return found


def main():
    commands = CommandChannel()
    comparison = Comparison(commands.next())
    commands.answer("ready")
    while (message := commands.next())["command"] != "exit":
        commands.answer("done", **comparison.compare(message["rounds"], message["iterations"], message["ways"]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
