"""Eager-SGD: data-parallel training that does not wait for late ranks.

    eager = dp.EagerSGD(mode="majority")
    record = dp.train(plan, job, steps=1000, gradient_sync=eager)

or, in a loop of your own:

    dist.init_process_group("gloo")
    with eager.wrap(model, optimizer) as replica:
        while replica.updates < 1000:
            inputs, targets = samples_of(replica.updates)   # this rank's share of that global batch
            loss(model(inputs), targets).backward()
            replica.step()

(Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective Operations", PPoPP 2020)

All gradients of a step are one vector, so they have the same contributors. An update is the optimizer's, on 1 / P of a
round's sum, whoever contributed to it. A late rank's gradient is not lost: it is in the sum of a later round.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from deeppool.base.arguments import check_fields
from deeppool.base.number_checks import positive_number
from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.state import Delivery, RoundSpec
from deeppool.costs.communication import Network
from deeppool.execution.eager_driver import EagerDriver
from deeppool.execution.eager_replica import EagerReplica
from deeppool.execution.gradient_sync import ScheduleChoice
from deeppool.execution.partial_all_reduce import PartialAllReduce
from deeppool.execution.trainer import Trainer
from deeppool.execution.transports.received import TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerSGD:
    """Settings of eager-SGD, for ``dp.train(gradient_sync=…)`` or to wrap a model and an optimizer."""

    mode: Mode = "solo"
    """Which arrival fires a round: ``solo`` the first, ``majority`` that of a rank drawn for each round, ``full`` the
    last, ``quorum`` the one with the number ``quorum``."""
    quorum: int | None = None
    """Arrivals that mode ``quorum`` waits for."""
    grace: float = 0.0
    """Seconds for which a round that could fire waits for more ranks."""
    delivery: Delivery = "log"
    """What a late rank receives: ``log`` all rounds, so that replicas stay equal; ``latest`` only the newest, as
    published."""
    staleness_limit: int | None = 32
    """Consecutive rounds that may go without a gradient of a rank; the next waits for all."""
    average_every: int | None = None
    """Updates between two averages of the replicas, each after a round that waits for all. Only ``latest`` needs them,
    and buffers such as the statistics of BatchNorm. None: no averages."""
    seed: int = 0
    """Seed of the draws of ``majority``."""
    timeout: float = TIMEOUT
    """Seconds to wait for other ranks."""
    address: str | Callable[[], str] | None = None
    """Name or address of a rank's host, for TCP, or a function that returns it, which each rank calls, such as
    ``socket.gethostname``. None: the ranks share the memory of one host."""

    divides_stages = False
    replays_graphs = True
    ranks_wait = False

    def __post_init__(self) -> None:
        check_fields(self)
        # The number of ranks is not known yet: a quorum is compared with it when they join.
        RoundSpec(self._rule(max(1, self.quorum or 1)), 1, delivery=self.delivery)
        object.__setattr__(self, "timeout", positive_number("timeout", self.timeout, "seconds"))

    def wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None = None,
        *,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> EagerReplica:
        """Gives all replicas the parameters and buffers of rank 0, and joins the ranks; all of them call it.

        Args:
            model: this rank's replica.
            optimizer: its optimizer; every rank makes the same one.
            group: the ranks. Default: all of torch.distributed.
            schedule: learning-rate schedule of the optimizer; it moves on with each update.
        """
        return EagerReplica(
            model, optimizer, self.join, group, schedule=schedule, average_every=self.average_every,
            latest=self.delivery == "latest",
        )  # fmt: skip

    def join(self, group: dist.ProcessGroup | None, elements: int, dtype: torch.dtype) -> PartialAllReduce:
        """Makes the partial all-reduce of a vector; all ranks of the group call it."""
        return PartialAllReduce(
            group,
            elements=elements,
            dtype=dtype,
            mode=self.mode,
            quorum=self.quorum,
            grace=self.grace,
            delivery=self.delivery,
            staleness_limit=self.staleness_limit,
            synchronous_every=self.average_every,
            seed=self.seed,
            timeout=self.timeout,
            address=self.address() if callable(self.address) else self.address,
        )

    def choose_schedule(self, network: Network) -> ScheduleChoice | None:
        """Returns None: sums are partial all-reduces."""
        return None

    def driver(self, trainer: Trainer, network: Network) -> EagerDriver:
        """Makes the driver of a rank's trainer."""
        return EagerDriver(trainer, self.join, average_every=self.average_every, latest=self.delivery == "latest")

    def _rule(self, ranks: int) -> FiringRule:
        return FiringRule(
            ranks, self.mode, self.quorum, self.grace, self.seed, self.staleness_limit, self.average_every
        )
