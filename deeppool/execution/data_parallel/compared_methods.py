"""Methods of sending gradients, each as a training of one rank: torch's DDP, planned ones, and none at all."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deeppool.base.number_checks import positive_number
from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.buckets import BUCKET_BYTES, ddp_buckets
from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, FEWER, SERVERS, SHARDED, TUNED_DDP
from deeppool.device.find import device_of
from deeppool.device.kinds import find_kind
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel.baselines import DeAR, ParameterServer
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining, TransferMethod
from deeppool.execution.transfer_scheduler import TransferScheduler
from deeppool.graph.capture.losses import classification_loss
from deeppool.records.transfer_plan import TransferPlan
from deeppool.training.training_job import TrainingJob

COMPUTING = "computing"
"""Name of the training whose gradients nobody sums: what remains where all transfers are hidden."""
PLANNED: dict[str, Callable[[float], TransferMethod]] = {
    DEAR: DeAR,
    SERVERS: lambda bucket: ParameterServer(),
    SHARDED: lambda bucket: ParameterServer(sharded=True),
    CARAMEL: lambda bucket: TransferScheduler(),
}
"""Methods that are performed as plans, by the size of a bucket."""


class Trainee:
    """Training of a replica by one method; this one sends nothing."""

    def __init__(self, job: TrainingJob, model: nn.Module) -> None:
        """Makes the optimizer of all parameters that train."""
        self.model: nn.Module = model.train()
        self._loss = job.loss or classification_loss
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.optimizer = job.optimizer(named)

    def backward(self, batch: tuple[torch.Tensor, ...]) -> None:
        """Computes the gradients of this rank's samples."""
        *inputs, target = batch
        self._loss(self.model(*inputs), target).backward()

    def step(self, *batch: torch.Tensor) -> None:
        """Makes one update, whose end may be left for the next one."""
        self.backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def transfer(self) -> None:
        """Performs the transfers of an iteration while nothing computes."""

    @property
    def transfers(self) -> TransferPlan | None:
        """Plan of the transfers, where there is one."""
        return None

    @property
    def timeline(self) -> Timeline | None:
        """Measured last complete iteration, where transfers are planned."""
        return None

    @property
    def trying(self) -> bool:
        """Whether it still measures which transfers to perform; the same on all ranks."""
        return False

    def drain(self) -> None:
        """Completes the update that is under way."""

    def close(self) -> None:
        """Ends it; every rank calls it."""


class Idle(Trainee):
    """A rank that waits while others train."""

    def __init__(self) -> None:
        """Needs nothing."""

    def step(self, *batch: torch.Tensor) -> None:
        """Does nothing."""


class DataParallel(Trainee):
    """A replica of torch's DistributedDataParallel."""

    def __init__(
        self, job: TrainingJob, model: nn.Module, bucket: float, group: dist.ProcessGroup | None, *, tuned: bool
    ) -> None:
        """Wraps the model.

        Args:
            job: its loss and optimizer.
            model: this rank's replica.
            bucket: bytes of a bucket.
            group: ranks that train it, of this way only; None: all.
            tuned: leaves gradients in the memory of their buckets, which saves a copy of each; not torch's default.
        """
        super().__init__(job, model)
        self._group = group
        cap = None if bucket == BUCKET_BYTES else bucket / 2**20
        self.model = DistributedDataParallel(
            model, bucket_cap_mb=cap, process_group=group, gradient_as_bucket_view=tuned
        )
        backward = self.parameters[::-1]
        sizes, types = [each.nbytes for each in backward], [each.dtype for each in backward]
        self._buckets = [
            backward[members[0]].new_zeros(sum(backward[position].numel() for position in members))
            for members in ddp_buckets(int(bucket)).group(sizes, types)
        ]

    def transfer(self) -> None:
        """Sums buffers as large as the buckets."""
        for work in [dist.all_reduce(bucket, group=self._group, async_op=True) for bucket in self._buckets]:
            work.wait()

    def close(self) -> None:
        """Ends the group."""
        if self._group is not None:
            dist.destroy_process_group(self._group)


class Planned(Trainee):
    """A replica whose gradients travel by a plan."""

    def __init__(self, job: TrainingJob, model: nn.Module, method: TransferMethod, cluster: Cluster) -> None:
        """Wraps the model; every rank calls it."""
        super().__init__(job, model)
        group = ScheduleGroup(device_of(self.parameters[0].device), range(dist.get_world_size()))
        self._training = ScheduledTraining(model, self.optimizer, method, cluster, group)

    @property
    def transfers(self) -> TransferPlan | None:
        """Plan, once it is made."""
        return self._training.transfers

    @property
    def timeline(self) -> Timeline | None:
        """Measured last complete iteration."""
        return self._training.timeline

    @property
    def trying(self) -> bool:
        """Whether its plan is not chosen yet."""
        return self._training.trying

    def step(self, *batch: torch.Tensor) -> None:
        """Computes an update, and leaves its end to the next one."""
        self.backward(batch)
        self._training.step()

    def transfer(self) -> None:
        """Performs the plan's transfers, one after the other."""
        self._training.transfer_alone()

    def drain(self) -> None:
        """Completes the update that is under way."""
        self._training.drain()

    def close(self) -> None:
        """Ends the thread and the process group."""
        self._training.close()


def fewer_counts(ranks: int) -> list[int]:
    """Returns the numbers of ranks on which DDP is tried beside all of them: powers of two."""
    return [2**power for power in range(ranks.bit_length()) if 2**power < ranks]


def bucket_sizes(buckets: Sequence[float]) -> list[float]:
    """Returns torch's own size of a bucket and the given ones, in bytes.

    Raises:
        InvalidValueError: one is not positive.
    """
    return [float(BUCKET_BYTES), *(positive_number("buckets", each, "bytes of each") for each in buckets)]


def data_parallel_settings(counts: Sequence[int], buckets: Sequence[float]) -> list[dict[str, float]]:
    """Returns numbers of ranks with sizes of buckets, of which one rank has none, to try."""
    return [{"count": count, "bucket": bucket} for count in counts for bucket in buckets[: None if count > 1 else 1]]


def check_ddp(what: str, device: str, next_step: str) -> None:
    """Raises an InvalidValueError where PyTorch's DDP, which ``what`` trains by, does not run on a kind of device."""
    if find_kind(device).emulated:
        raise InvalidValueError(
            f"{what} by PyTorch's DistributedDataParallel, which does not run on device '{device}' ({next_step})"
        )


def ranks_of_jobs(jobs: int, count: int) -> list[range]:
    """Returns the ranks of each job, so many next to each other; jobs share some where there are not enough."""
    groups = dist.get_world_size() // count
    return [range(job % groups * count, (job % groups + 1) * count) for job in range(jobs)]


def data_parallel_on(
    job: TrainingJob, model: nn.Module, bucket: float, place: Sequence[int], *, tuned: bool = True
) -> Trainee:
    """Makes a training by DDP on some ranks, as a user would: on one rank without DDP; every rank calls it."""
    all_of_them = len(place) in (1, dist.get_world_size())
    group = None if all_of_them else dist.new_group(place)
    if dist.get_rank() not in place:
        return Idle()
    return Trainee(job, model) if len(place) == 1 else DataParallel(job, model, bucket, group, tuned=tuned)


def make_trainee(
    name: str, job: TrainingJob, model: nn.Module, cluster: Cluster, bucket: float, place: Sequence[int]
) -> Trainee:
    """Makes a training by a method; every rank calls it.

    Args:
        name: ``computing``, or a method.
        job: its loss and optimizer.
        model: this rank's replica.
        cluster: the network between the ranks.
        bucket: bytes of a bucket, for methods that have some.
        place: ranks that train by DDP; all of them by other methods.
    """
    if name == COMPUTING:
        return Trainee(job, model)
    if name in (DDP, TUNED_DDP, FEWER):
        return data_parallel_on(job, model, bucket, place, tuned=name != DDP)
    return Planned(job, model, PLANNED[name](bucket), cluster)
