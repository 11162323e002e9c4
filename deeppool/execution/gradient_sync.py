"""Sums each parameter's gradient over the ranks that computed a part of it.

Gradients are all-reduced in buckets in a fixed order: from the last layer to the first, as backward computes them
(Li et al., "PyTorch Distributed", VLDB 2020, section 3.2). A stage's all-reduces either follow its backward and block;
or, overlapped, each starts as soon as its bucket's last gradient is ready, and blocks only when all backwards are done.
"""

from collections.abc import Sequence

import torch

from deeppool.collectives.buckets import group_into_buckets
from deeppool.execution.communicator import Communicator, Group, PendingWork

SharedParameters = tuple[Sequence[torch.nn.Parameter], tuple[int, ...]]
"""Parameters in the order of their layers, and the ranks that compute with them."""


class Bucket:
    """Gradients of one dtype that are all-reduced together."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: Group) -> None:
        """Takes the parameters, and the ranks that sum their gradients."""
        self.parameters, self._group = parameters, group
        self.missing = len(parameters)
        """Gradients that the stage's backward has not computed yet."""
        self._in_flight: tuple[PendingWork, torch.Tensor] | None = None

    @property
    def started(self) -> bool:
        """Whether the all-reduce is in progress."""
        return self._in_flight is not None

    def start(self) -> None:
        """Starts the all-reduce; a rank without a gradient contributes zeros.

        Gradients need no further weight, because each rank's loss was scaled by its share of the batch.
        """
        flat = (
            self._gradients()[0] if len(self.parameters) == 1 else torch.cat([g.flatten() for g in self._gradients()])
        )
        self._in_flight = self._group.all_reduce(flat), flat

    def finish(self) -> None:
        """Waits for the all-reduce, and replaces the gradients by the sums."""
        assert self._in_flight is not None
        work, flat = self._in_flight
        work.wait()
        if len(self.parameters) > 1:
            gradients = self._gradients()
            parts = flat.split([gradient.numel() for gradient in gradients])
            torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])
        self._in_flight, self.missing = None, len(self.parameters)

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class GradientSync:
    """One rank's side of all all-reduces of an update."""

    def __init__(
        self,
        communicator: Communicator,
        rank_sets: Sequence[tuple[int, ...]],
        shared: Sequence[Sequence[SharedParameters]],
        *,
        overlap: bool,
    ) -> None:
        """Creates a group for each set of two or more ranks; every rank creates the same ones in the same order.

        Args:
            communicator: all ranks.
            rank_sets: sets of ranks to create groups of.
            shared: per stage the parameters whose gradients are complete once its backward is done.
            overlap: whether all-reduces start while the stage's backward runs.
        """
        self._groups: dict[tuple[int, ...], Group] = {
            ranks: communicator.group(ranks) for ranks in dict.fromkeys(rank_sets) if len(ranks) > 1
        }
        self._buckets = [
            [
                bucket
                for parameters, ranks in sets
                if communicator.rank in ranks and len(ranks) > 1
                for bucket in buckets(parameters, self._groups[ranks])
            ]
            for sets in shared
        ]
        self.overlap = overlap
        self._open: list[Bucket] = []
        """Buckets of the stage whose backward runs that have not started."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)
            for stage in self._buckets
            for bucket in stage
            for parameter in bucket.parameters
            if overlap
        ]

    def group(self, ranks: tuple[int, ...]) -> Group:
        """Returns the group of two or more ranks."""
        return self._groups[ranks]

    def involves(self, stage: int) -> bool:
        """Whether this rank takes part in an all-reduce of a stage."""
        return bool(self._buckets[stage])

    def expect(self, stage: int) -> None:
        """Prepares for the gradients of a stage's last backward in this update."""
        self._open = list(self._buckets[stage])

    def start(self, stage: int) -> None:
        """Starts the remaining all-reduces of a stage whose backward is done."""
        self._open = []
        for bucket in self._buckets[stage]:
            if not bucket.started:
                bucket.start()

    def finish(self, stage: int) -> None:
        """Waits for the stage's all-reduces."""
        for bucket in self._buckets[stage]:
            bucket.finish()

    def close(self) -> None:
        """Closes the groups."""
        for hook in self._hooks:
            hook.remove()
        for ranks in list(self._groups):
            self._groups.pop(ranks).close()

    def _gradient_ready(self, parameter: torch.nn.Parameter) -> None:
        """Counts a ready gradient, and starts complete buckets in their order, which is the same on all ranks."""
        for bucket in self._open:
            bucket.missing -= any(parameter is member for member in bucket.parameters)
        while self._open and not self._open[0].missing:
            self._open.pop(0).start()


def buckets(parameters: Sequence[torch.nn.Parameter], group: Group) -> list[Bucket]:
    """Groups parameters, in the order of their layers, into buckets of one dtype; the last layer's comes first."""
    backward = list(reversed(parameters))
    found: list[list[int]] = []
    for dtype in dict.fromkeys(parameter.dtype for parameter in backward):
        places = [place for place, parameter in enumerate(backward) if parameter.dtype == dtype]
        sizes = [backward[place].numel() * dtype.itemsize for place in places]
        found += [[places[position] for position in bucket] for bucket in group_into_buckets(sizes)]
    # In the order in which they are complete.
    return [Bucket([backward[place] for place in bucket], group) for bucket in sorted(found, key=max)]
