"""Training whose transfers are sent in the order of need, in batches that fit the network, up to the next forward.

    record = dp.train(plan, job, steps=1000, gradient_sync=dp.TransferScheduler())
    print(record.transfers)                              # a line: transfers, patterns, predicted iteration
    print(record.transfers.table())                      # this batch, by this pattern, ready, sent and needed when
    dp.figures.timeline(record.transfers.timeline())     # as predicted
    dp.figures.timeline(record.timeline)                 # as measured

Or around any model and optimizer, in processes that torchrun started:

    with dp.TransferScheduler().wrap(model, optimizer, cluster) as training:
        for inputs, targets in batches:          # this rank's shares
            loss(model(inputs), targets).backward()
            training.step()                      # in place of optimizer.step() and zero_grad()

(Hashemi, Gropp, Campbell, "Model-Aware Network Scheduling", Caramel)

The first updates are those of synchronous training, and are measured part by part. From the times, which ranks average,
all ranks make the same few plans of transfers (:mod:`deeppool.collectives.candidate_plans`), try them by turns in the
next updates, and keep the one whose iterations were the fastest (:mod:`deeppool.execution.plan_trial`). By a plan an
update may still be under way when the next forward starts, and is completed part by part, each just before its forward.
Training is synchronous SGD by each of them: no forward uses parameters before their update.

Clipping and the loss scale of fp16 need the norm of all gradients before any update: with them every iteration ends
with its update, and only order, batches and patterns differ from the default.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from deeppool.base.arguments import check_fields
from deeppool.base.number_checks import real_number, whole_number
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.batching import Gradient
from deeppool.collectives.candidate_plans import candidate_plans
from deeppool.collectives.given_plan import check_given
from deeppool.collectives.ordering import FixedOrder
from deeppool.collectives.patterns import LIBRARY, schedule_named
from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.collectives.plan_transfers import MEASURED_ERROR
from deeppool.collectives.schedule import Schedule
from deeppool.costs.communication import Network
from deeppool.costs.schedules import fastest_all_reduce, fastest_in_halves, fastest_schedule, pattern_prices
from deeppool.device.find import device_of
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining
from deeppool.execution.gradient_sync import ScheduleChoice
from deeppool.execution.plan_trial import PlanTrial
from deeppool.execution.trainer import SyncDriver, Trainer
from deeppool.records.transfer_plan import PartTimes, TransferPlan
from deeppool.training.bucket import Bucket
from deeppool.training.step import Batch


@dataclass(frozen=True, slots=True)
class TransferScheduler:
    """Sums gradients by a plan of transfers, made from measured updates; for ``dp.train(gradient_sync=…)``.

    Prices are those of the plan's cluster: with a measured one (``dp.measure_network``) the fastest of all patterns is
    performed, elsewhere the plan's own.
    """

    measured_updates: int = 3
    """Updates to measure before the plan, after a first one that is not."""
    batch_bytes: float | None = None
    """Bytes that gradients together do not exceed. Default: bounds on bytes and on waiting, from the network."""
    tried_updates: int = 2
    """Updates to measure by each plan in a turn of the trial; 0: the plan of the least prediction is kept."""
    transfers: TransferPlan | None = None
    """Plan to perform, such as that in the record of another training. Default: plans are made and tried."""
    divides_stages = True
    replays_graphs = True
    ranks_wait = True

    def __post_init__(self) -> None:
        check_fields(self)
        measured, tried = whole_number("measured_updates", self.measured_updates), self.tried_updates
        object.__setattr__(self, "measured_updates", measured)
        object.__setattr__(self, "tried_updates", whole_number("tried_updates", tried, 0, note="0: no trial"))
        if self.batch_bytes is not None and not real_number("batch_bytes", self.batch_bytes) > 0:
            raise InvalidValueError(f"batch_bytes must be positive, got {self.batch_bytes:g} (None: by the network)")

    def plans(
        self, parts: Sequence[PartTimes], gradients: Sequence[Gradient], network: Network, *, split: bool = True
    ) -> list[TransferPlan]:
        """Plans the transfers of an iteration; see :func:`deeppool.collectives.candidate_plans.candidate_plans`.

        Args:
            parts: all parts of the model, in the order of their forwards.
            gradients: those that are summed, in the order in which the backward pass completes them.
            network: prices the patterns.
            split: whether transfers may be sent in halves.

        Raises:
            InvalidValueError: the given plan is one of another training.
        """
        if self.transfers is not None:
            check_given(self.transfers, gradients)
            return [self.transfers]
        return candidate_plans(
            parts,
            gradients,
            lambda ranks, size: fastest_all_reduce(network, ranks, size),
            self.batch_bytes,
            library=pattern_prices(network, LIBRARY),
            halves=(lambda ranks, size: fastest_in_halves(network.cluster, ranks, size)) if split else None,
            error=MEASURED_ERROR if network.model == "measured" else 0.0,
        )

    def wrap(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, cluster: Cluster) -> ScheduledTraining:
        """Trains any model with any optimizer by a plan of transfers, in processes that torchrun started.

        All replicas get the parameters and buffers of rank 0. After a step an update may be under way: code that reads
        ``model.parameters()``, and not ``module.weight``, calls :meth:`ScheduledTraining.drain` first.

        Args:
            model: this rank's replica; all ranks use the same modules.
            optimizer: of all its parameters that require gradients; every rank makes the same one.
            cluster: the network between the ranks: with a measured one (``deeppool network`` under torchrun) the
                fastest of all patterns is performed, elsewhere the library's own all-reduce.

        Raises:
            InvalidValueError: the optimizer has other parameters than the model, or the cluster has fewer GPUs than
                there are ranks.
        """
        device = device_of(next(model.parameters()).device)
        group = ScheduleGroup(device, range(dist.get_world_size()))
        return ScheduledTraining(model, optimizer, self, cluster, group)

    def choose_schedule(self, network: Network) -> ScheduleChoice | None:
        """Returns the choice of the schedule of each all-reduce, None where all are the library's own."""
        if network.model != "measured" and self.transfers is None:
            return network.all_reduce_schedule if network.performs_schedules else None
        return lambda ranks, size: fastest_schedule(network, ranks, size)

    def driver(self, trainer: Trainer, network: Network) -> "TransferDriver":
        """Makes the driver of a rank's trainer."""
        return TransferDriver(trainer, self, network)


class TransferDriver(SyncDriver):
    """Iterations of one rank: first measured ones, then by plans of transfers, of which the fastest is kept."""

    def __init__(self, trainer: Trainer, method: TransferScheduler, network: Network) -> None:
        """Starts without a plan.

        Args:
            trainer: its stages are divided.
            method: makes the plans.
            network: prices transfers; the same on all ranks.
        """
        super().__init__(trainer)
        self._step = trainer.step
        self._method, self._network = method, network
        self._updates = 0
        self._compute = torch.zeros(2, len(trainer.parts), dtype=torch.float64)
        """Seconds of each part's forwards and backwards on this rank."""
        self._trial: PlanTrial | None = None
        self._order: list[Bucket] = []
        self._second: list[Bucket] = []
        """Buckets whose second halves are sent after the backward pass, in their order."""

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs one update, whose end may be left for the next iteration; see :meth:`SyncDriver.iterate`."""
        if self._trial is None:
            return self._measure(batches)
        order = FixedOrder(self._order, self._start_sync)
        self._step.compute(batches, order.ready, self._update)
        order.finish()
        for bucket in self._second:
            self._trainer.gradient_sync.start_second_half(bucket)
        # The norm is that of all ranks, and those without parameters leave nothing for the next iteration.
        if self._step.rule.needs_norm or not self._step.buckets:
            self._step.finish_sync()
            self._step.update()
        self._trial.count_update(self._trainer.device, self.drain, self._perform)
        return self._step.loss()

    def _start_sync(self, bucket: Bucket) -> None:
        """Starts to sum the gradients of a bucket, out of reach of the forwards before their update.

        Graphs share memory, so the next forward may write where a gradient is. Several gradients are copied into one.
        """
        waits = self._step.replays and not self._step.rule.needs_norm
        if waits and (len(bucket.parameters) == 1 or len(bucket.ranks) == 1):
            for parameter in bucket.parameters:
                parameter.grad = None if parameter.grad is None else parameter.grad.clone()
        self._step.start_sync(bucket)

    def drain(self) -> None:
        """Completes the update."""
        if self._step.pending():
            self._step.finish_sync()
            self._step.update()

    def _update(self, part: int) -> None:
        """Completes the update of the parameters that no earlier part uses."""
        if pending := self._step.pending(part):
            self._step.finish_sync(*pending)
            self._step.update(*pending)

    def _measure(self, batches: Sequence[Batch]) -> float:
        self._step.compute(batches)
        if self._updates:
            self._compute += _part_times(self._trainer) / len(batches) / self._method.measured_updates
        self._step.finish_sync()
        self._step.update()
        self._updates += 1
        if self._updates > self._method.measured_updates:
            self._plan()
        return self._step.loss()

    def _plan(self) -> None:
        trainer = self._trainer
        compute = iter(self._sum(self._compute.flatten().tolist()))
        forwards, backwards = ([next(compute) for _ in trainer.parts] for _ in range(2))
        parts = [
            PartTimes(part.name, forward / len(gpus), backward / len(gpus), gpus)
            for part, forward, backward in zip(trainer.parts, forwards, backwards, strict=True)
            for gpus in [part.layout.gpus]
        ]
        shared = [each for each in self._gradients() if len(each.ranks) > 1]
        split = self._network.model == "measured"
        plans = self._method.plans(parts, shared, self._network, split=split)
        self._trial = PlanTrial(plans, self._method.tried_updates, self._mean)
        self._perform(self._trial.plan)

    def _sum(self, numbers: list[float]) -> list[float]:
        """Returns the sums over all ranks: an all-reduce gives all of them the same bits."""
        place = next(iter(self._trainer.parameters.values())).device
        tensor = torch.tensor(numbers, dtype=torch.float64, device=place)
        self._trainer.communicator.all_reduce(tensor).wait()
        found: list[float] = tensor.tolist()
        return found

    def _mean(self, numbers: list[float]) -> list[float]:
        return [each / self._trainer.ranks for each in self._sum(numbers)]

    def _gradients(self) -> list[Gradient]:
        """Returns all gradients in the order in which the backward pass completes them."""
        trainer = self._trainer
        names = {parameter: name for name, parameter in trainer.parameters.items()}
        return [
            Gradient(names[parameter], parameter.nbytes, part, ranks, str(parameter.dtype))
            for part in reversed(range(len(trainer.parts)))
            for ranks, parameters in trainer.shared[part].items()
            for parameter in reversed(parameters)
        ]

    def _perform(self, plan: TransferPlan) -> None:
        """Makes the plan's batches the step's buckets; parameters of this rank alone need no transfer."""
        self.transfers, self._second = plan, []
        rank, parameters = self._trainer.rank, self._trainer.parameters
        # A given plan may name the parts of a training whose layers are of another size.
        part_of = {each.name: each.part for each in self._gradients()}
        buckets: dict[tuple[str, ...], Bucket] = {}
        schedules: dict[Bucket, list[Schedule | None]] = {}
        for transfer in plan.transfers:
            if rank not in transfer.ranks:
                continue
            if (bucket := buckets.get(transfer.gradients)) is None:
                members = tuple(parameters[name] for name in transfer.gradients)
                part = min(part_of[name] for name in transfer.gradients)
                bucket = buckets[transfer.gradients] = Bucket(members, part, transfer.ranks)
                schedules[bucket] = []
            else:
                self._second.append(bucket)
            per_node = self._network.cluster.gpus_per_node
            schedules[bucket].append(schedule_named(transfer.pattern, len(transfer.ranks), per_node))
        alone = [
            Bucket((parameters[each.name],), each.part, each.ranks)
            for each in self._gradients()
            if each.ranks == (rank,)
        ]
        self._order = [*schedules, *alone]
        self._trainer.gradient_sync.follow(schedules)
        self._step.regroup(sorted(self._order, key=lambda bucket: -bucket.part))


def _part_times(trainer: Trainer) -> torch.Tensor:
    """Returns the seconds of the forwards and of the backwards of each part in the trainer's current iteration."""
    position = {part.name: index for index, part in enumerate(trainer.parts)}
    kinds = {"forward": 0, "backward": 1}
    seconds = torch.zeros(2, len(position), dtype=torch.float64)
    for kind, _, name, start, end in trainer.spans:
        if kind in kinds:
            seconds[kinds[kind], position[name]] += end - start
    return seconds
