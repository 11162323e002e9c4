"""A rank of several jobs that share its device, and the commands that it executes."""

from pathlib import Path
from typing import Any

import psutil

from deeppool.collectives.patterns import ALL_REDUCES, LIBRARY
from deeppool.collectives.schedule import Schedule
from deeppool.execution.joined_rank import JoinedRank
from deeppool.execution.rank import SPAN_DESCRIPTIONS, Command
from deeppool.execution.training_task import TrainingTask, user_task
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, RandomNumbers, take_turn
from deeppool.interleaving.crossover.memory import JobMemory, check_memory, job_memory
from deeppool.interleaving.crossover.order import turns
from deeppool.interleaving.crossover.transfer_queue import TransferQueue
from deeppool.processes.heartbeat import Activity, Heartbeat
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.processes.worker_sockets import place_sockets_in
from deeppool.training.training_job import load_job


class CrossoverRank(JoinedRank):
    """One rank of jobs that cross over."""

    def __init__(self, setup: Message, heartbeat: Heartbeat) -> None:
        """Joins the other ranks, and makes the first jobs."""
        place_sockets_in(Path(setup["folder"]))
        super().__init__(setup, heartbeat)
        # Before a job: ranks of one machine share what is free now.
        self._available = self.device.memory or psutil.virtual_memory().available / self.ranks
        self.precision = setup["precision"]
        self.communicator: TransferQueue = TransferQueue(self.device)
        self._pattern: str = setup["all_reduce"]
        self.jobs: dict[str, JobOnRank] = {}
        self._memory: dict[str, JobMemory] = {}
        self._active: JobOnRank | None = None
        heartbeat.probe = self.activity
        self._made = []
        for job in setup["jobs"]:
            heartbeat.enter(f"making the model and the data of {job['name']}")
            with self.stream.current():
                self._made.append(self._add(**job))

    @property
    def ready(self) -> dict[str, Any]:
        """What the launcher wants to know of each job."""
        return {**super().ready, "jobs": self._made}

    def activity(self) -> Activity | None:
        """Returns the span that a trainer is in; None outside a turn."""
        job = self._active
        current = None if job is None else job.trainer.doing
        if job is None or current is None:
            return None
        kind, _, since = current
        what = f"{SPAN_DESCRIPTIONS[kind]} {job.name} (update {job.updates + 1})"
        return Activity(what, since, waits=kind == "sync")

    def _add(self, name: str, batch: int) -> dict[str, Any]:
        """Captures a job, and makes its trainer if it fits beside the others."""
        job = load_job(self.folder / name)
        own = RandomNumbers(job.seed)
        with own.current(), self.device.arithmetic(self.precision):
            task = user_task(job, batch, self.place)
        samples = -(-batch // self.communicator.ranks)
        memory = job_memory(name, task.captured.graph, samples)
        asynchronous = self.device.asynchronous
        check_memory([*self._memory.values(), memory], self._available, keeps_activations=asynchronous)
        self._memory[name] = memory
        self.jobs[name] = self.make_trainer(name, task, batch, self.communicator, own)
        graph = task.captured.graph
        return {
            "name": name,
            "order": task.order,
            "graph_fingerprint": graph.fingerprint,
            "memory": memory.state + memory.activations,
        }

    def make_trainer(
        self, name: str, task: TrainingTask, batch: int, queue: TransferQueue, random_numbers: RandomNumbers
    ) -> JobOnRank:
        """Makes the trainer of a job whose gradients go through a queue; every rank calls it."""
        return JobOnRank(
            name,
            task,
            batch,
            queue,
            self.device,
            self.place,
            random_numbers,
            precision=self.precision,
            choose_schedule=None if self._pattern == LIBRARY else self._schedule,
        )

    def _schedule(self, ranks: int, size: int) -> Schedule:
        return ALL_REDUCES[self._pattern](ranks, 1)

    def add(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Makes a job that joins the others."""
        return self._add(message["name"], message["batch"])

    def remove(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Settles a job and forgets it."""
        self._memory.pop(message["name"])
        self.jobs.pop(message["name"]).close()
        return {}

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Takes turns: a number of steps of each job."""
        in_flight = [name for name, job in self.jobs.items() if job.in_flight]
        offset = message.get("clock", 0.0)
        taken = []
        for turn in turns(message["steps"], in_flight, drains=message["drains"]):
            self._active = self.jobs[turn.job]
            done = take_turn(self._active, settles=turn.settles, computes=turn.computes)
            times = {key: done[key] + offset for key in ("turn", "start", "end")}
            transfers = [(began + offset, ended + offset) for began, ended in done["transfers"]]
            taken.append(done | times | {"transfers": transfers, "round": turn.round})
        self._active = None
        return {"turns": taken, "in_flight": [name for name, job in self.jobs.items() if job.in_flight]}

    def save(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Settles a job, and writes this rank's part of its checkpoint."""
        return self.jobs[message["name"]].save(Path(message["folder"]))

    def load(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Restores a job's state from a checkpoint."""
        self.jobs[message["name"]].load(Path(message["folder"]), message["updates"])
        return {}

    @property
    def commands(self) -> dict[str, Command]:
        """All commands by name."""
        return {
            "add": Command("making the model and the data of another job", self.add),
            "remove": Command("ending a job", self.remove),
            "train": Command("training, between two turns", self.train),
            "save": Command("writing its part of a checkpoint", self.save),
            "load": Command("reading a checkpoint", self.load),
        }
