"""Sums the gradients of buckets over the ranks that computed a part of them.

Buckets are all-reduced in a fixed order: from the last layer to the first, as backward computes them (Li et al.,
"PyTorch Distributed", VLDB 2020, section 3.2). A bucket is summed by the schedule that the plan names for its ranks and
bytes, or by the library's own all-reduce; or by a plan of transfers, in two halves where that says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from deeppool.collectives.buckets import Buckets
from deeppool.collectives.schedule import Schedule
from deeppool.device.transfer import PendingWork
from deeppool.errors import InvalidValueError
from deeppool.execution.communicator import Communicator, Group
from deeppool.training.bucket import SPARSE, Bucket
from deeppool.training.gradient_sum import GradientSum

ScheduleChoice = Callable[[int, int], Schedule | None]
"""Returns the schedule of an all-reduce of some ranks and bytes; None: the library's own all-reduce."""


class GradientSync(GradientSum):
    """One rank's side of all all-reduces of an update."""

    def __init__(
        self,
        communicator: Communicator,
        rank_sets: Sequence[tuple[int, ...]],
        choose: ScheduleChoice | None = None,
    ) -> None:
        """Creates a group for each set of two or more ranks; every rank creates the same ones in the same order.

        Args:
            communicator: all ranks.
            rank_sets: sets of ranks to create groups of.
            choose: chooses the schedule of each bucket. Default: the library's own all-reduce for all.
        """
        self._communicator, self._choose = communicator, choose
        self._groups: dict[tuple[int, ...], Group] = {
            ranks: communicator.group(ranks, schedules=choose is not None)
            for ranks in dict.fromkeys(rank_sets)
            if len(ranks) > 1
        }
        self._followed: Mapping[Bucket, Sequence[Schedule | None]] = {}
        self._in_flight: dict[Bucket, tuple[list[PendingWork], torch.Tensor]] = {}
        """All-reduces that have started, or halves of them."""

    def group(self, ranks: tuple[int, ...]) -> Group:
        """Returns the group of two or more ranks."""
        return self._groups[ranks]

    def follow(self, schedules: Mapping[Bucket, Sequence[Schedule | None]]) -> None:
        """Sums buckets by these schedules, one or two halves of one; None: the library's own all-reduce."""
        self._followed = schedules

    def start(self, bucket: Bucket) -> None:
        """Starts the all-reduce, or its first half; a rank without a gradient contributes zeros.

        Gradients need no further weight, because each rank's loss was scaled by its share of the batch.
        """
        if len(bucket.ranks) > 1:
            gradients = _gradients(bucket)
            flat = gradients[0] if len(gradients) == 1 else torch.cat([gradient.flatten() for gradient in gradients])
            self._in_flight[bucket] = [], flat
            self._start_next(bucket)

    def start_second_half(self, bucket: Bucket) -> None:
        """Starts the second half once the first one is complete; all ranks call it in the same order."""
        work, _ = self._in_flight[bucket]
        work[-1].wait()
        self._start_next(bucket)

    def _start_next(self, bucket: Bucket) -> None:
        work, flat = self._in_flight[bucket]
        work.append(self._groups[bucket.ranks].all_reduce(flat, self._schedules(bucket)[len(work)]))

    def finish(self, bucket: Bucket) -> None:
        """Waits for the all-reduce, and replaces the gradients by the sums, left where they were summed."""
        if bucket in self._in_flight:
            if len(self._in_flight[bucket][0]) < len(self._schedules(bucket)):
                self.start_second_half(bucket)
            work, flat = self._in_flight.pop(bucket)
            work[-1].wait()
            if len(bucket.parameters) > 1:
                parts = flat.split([parameter.numel() for parameter in bucket.parameters])
                for parameter, gradient, part in zip(bucket.parameters, _gradients(bucket), parts, strict=True):
                    if parameter.is_contiguous():
                        parameter.grad = part.view_as(parameter)
                    else:
                        # A gradient keeps its parameter's layout, such as channels_last.
                        gradient.copy_(part.view_as(gradient))

    def patterns(self, buckets: Sequence[Bucket]) -> tuple[str, ...]:
        """Returns the patterns of the schedules that sum some buckets; none where the library does."""
        schedules = (each for bucket in buckets if len(bucket.ranks) > 1 for each in self._schedules(bucket))
        return tuple(dict.fromkeys(schedule.pattern for schedule in schedules if schedule is not None))

    def _schedules(self, bucket: Bucket) -> Sequence[Schedule | None]:
        if bucket in self._followed:
            return self._followed[bucket]
        size = sum(parameter.nbytes for parameter in bucket.parameters)
        return [None if self._choose is None else self._choose(len(bucket.ranks), size)]

    def total(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by its sum over all ranks."""
        self._communicator.all_reduce(tensor).wait()

    def close(self) -> None:
        """Closes the groups."""
        for ranks in list(self._groups):
            self._groups.pop(ranks).close()


def _gradients(bucket: Bucket) -> list[torch.Tensor]:
    for parameter in bucket.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            raise InvalidValueError(f"several ranks can sum dense gradients only, and {SPARSE}")
    return [parameter.grad for parameter in bucket.parameters if parameter.grad is not None]


def make_buckets(
    shared: Sequence[Mapping[tuple[int, ...], Sequence[torch.nn.Parameter]]], rank: int, rule: Buckets
) -> list[Bucket]:
    """Groups the parameters of a rank into buckets, in the order in which backward completes them.

    Args:
        shared: per part, by the ranks that compute with them, the parameters whose gradients are complete once its
            backward is done, in the order of their layers.
        rank: the rank; it gets the buckets of the sets of ranks to which it belongs.
        rule: groups the gradients of a part, a set of ranks and a type.
    """
    return [
        bucket
        for part in reversed(range(len(shared)))
        for ranks, parameters in shared[part].items()
        if rank in ranks
        for bucket in _buckets(parameters, part, ranks, rule)
    ]


def buckets_of_parts(
    buckets: Sequence[Bucket], shared: Sequence[Mapping[tuple[int, ...], Sequence[torch.nn.Parameter]]]
) -> list[Bucket]:
    """Returns buckets of stages as buckets of their parts, in the order in which backward completes them.

    Args:
        buckets: buckets of stages.
        shared: as for :func:`make_buckets`, of the parts into which the stages are divided.
    """
    part_of = {
        parameter: part
        for part, groups in enumerate(shared)
        for parameters in groups.values()
        for parameter in parameters
    }
    found = [replace(bucket, part=min(part_of[each] for each in bucket.parameters)) for bucket in buckets]
    return sorted(found, key=lambda bucket: -bucket.part)


def _buckets(
    parameters: Sequence[torch.nn.Parameter], part: int, ranks: tuple[int, ...], rule: Buckets
) -> list[Bucket]:
    """Groups parameters of the same ranks into buckets of one dtype; the last layer's comes first."""
    backward = list(reversed(parameters))
    sizes = [parameter.numel() * parameter.dtype.itemsize for parameter in backward]
    found = rule.group(sizes, [parameter.dtype for parameter in backward])
    return [Bucket(tuple(backward[place] for place in bucket), part, ranks) for bucket in found]
