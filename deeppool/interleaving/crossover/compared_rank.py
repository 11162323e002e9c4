"""A rank that trains the same jobs in several orders by turns, and the entry point of its process."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from deeppool.collectives.layout import Layout
from deeppool.execution.comparison.ways import Way, Ways
from deeppool.execution.data_parallel.compared_methods import Trainee, data_parallel_on, ranks_of_jobs
from deeppool.execution.training_task import TrainingTask, user_task
from deeppool.execution.worker import serve
from deeppool.interleaving.crossover.comparison_record import APART, CROSSOVER, DATA_PARALLEL, SEQUENTIAL
from deeppool.interleaving.crossover.job_on_rank import JobOnRank, RandomNumbers
from deeppool.interleaving.crossover.orders import cross_over, data_parallel, one_after_the_other, shifted
from deeppool.interleaving.crossover.rank import CrossoverRank
from deeppool.interleaving.crossover.transfer_queue import TransferQueue
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.training.training_job import TrainingJob, load_job


@dataclass(frozen=True, slots=True)
class Order(Way):
    """One order, as a way of training; its jobs live as long as the rank."""

    run: Callable[[Message], dict[str, Any]]
    trainees: Sequence[Trainee] = ()

    def train(self, message: Message, commands: CommandChannel) -> dict[str, Any]:
        """Trains some rounds."""
        return self.run(message)

    def close(self) -> None:
        """Ends the process groups of data parallelism."""
        for trainee in self.trainees:
            trainee.close()


class OrdersOfRank:
    """Makes the orders of one rank, all but the first two with jobs of their own."""

    def __init__(self, rank: CrossoverRank) -> None:
        """Takes the rank, whose jobs are made."""
        self._rank = rank

    def make(self, message: Message) -> tuple[Order, dict[str, Any]]:
        """Makes the order of a command."""
        order, jobs = message["way"], self._rank.jobs
        if order == CROSSOVER:
            return Order(lambda sent: cross_over(jobs, sent["rounds"])), {}
        if order == SEQUENTIAL:
            return Order(lambda sent: one_after_the_other(jobs, sent["rounds"])), {}
        loaded = self._load(message["jobs"])
        if order in (DATA_PARALLEL, APART):
            places = ranks_of_jobs(len(message["jobs"]), message["count"])
            made = [self._trainee(*each, message["bucket"], place) for each, place in zip(loaded, places, strict=True)]
            steps = [step for (_, step), place in zip(made, places, strict=True) if self._rank.rank in place]
            return Order(lambda sent: data_parallel(steps, sent["rounds"]), [trainee for trainee, _ in made]), {}
        trainers = [self._in_thread(name, *each) for name, each in zip(message["jobs"], loaded, strict=True)]
        return Order(lambda sent: shifted(trainers, sent["rounds"], sent["shifts"])), {}

    def _load(self, jobs: dict[str, int]) -> Iterator[tuple[TrainingJob, TrainingTask, int]]:
        for name, batch in jobs.items():
            job = load_job(self._rank.folder / name)
            with RandomNumbers(job.seed).current():
                yield job, user_task(job, batch, self._rank.place), batch

    def _in_thread(self, name: str, job: TrainingJob, task: TrainingTask, batch: int) -> JobOnRank:
        # Each thread needs groups of its own.
        return self._rank.make_trainer(name, task, batch, TransferQueue(self._rank.device), RandomNumbers(job.seed))

    def _trainee(
        self, job: TrainingJob, task: TrainingTask, batch: int, bucket: float, place: range
    ) -> tuple[Trainee, Callable[[], None]]:
        shard = Layout(tuple(place), batch).shard(self._rank.rank)
        steps = count()
        with self._rank.device.unbound():
            replica = data_parallel_on(job, task.captured.source, bucket, place)

        def step() -> None:
            samples = task.samples(next(steps), shard)
            replica.step(*(tensor.to(self._rank.place) for tensor in samples))

        return replica, step


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(CrossoverRank, lambda rank: Ways(OrdersOfRank(rank).make).commands)


if __name__ == "__main__":
    main()
