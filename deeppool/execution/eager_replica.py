"""A model and an optimizer of the user's own loop whose gradients are summed by partial all-reduces."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist

from deeppool.execution.gradient_vector import GradientVector
from deeppool.execution.partial_all_reduce import PartialAllReduce, PartialSum

Join = Callable[[dist.ProcessGroup | None, int, torch.dtype], PartialAllReduce]
"""Makes the partial all-reduce of a vector of some elements and type."""


class EagerReplica:
    """One rank's replica; made by :meth:`deeppool.EagerSGD.wrap`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        join: Join,
        group: dist.ProcessGroup | None = None,
        *,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
        average_every: int | None = None,
        latest: bool = False,
    ) -> None:
        """Gives all replicas the parameters and buffers of rank 0, and joins the ranks.

        Args:
            model: this rank's replica.
            optimizer: its optimizer.
            join: makes the partial all-reduce.
            group: the ranks. Default: all of torch.distributed.
            schedule: learning-rate schedule of the optimizer.
            average_every: updates between two averages of the replicas.
            latest: whether a late rank receives only the newest round.
        """
        self._model, self._optimizer, self._schedule, self._group = model, optimizer, schedule, group
        self._vector = GradientVector(
            [each for part in optimizer.param_groups for each in part["params"] if each.requires_grad]
        )
        self._average_every, self._latest = average_every, latest
        for tensor in self._state():
            dist.broadcast(tensor.detach(), group=group, group_src=0)
        self._sums = join(group, self._vector.elements, self._vector.dtype)
        self._earlier = 0
        """Updates before this object was made."""
        self.updates = 0
        """Rounds so far, as this rank knows: a late one skips the samples of those that went on without it."""
        self.gradients = 0
        """Gradients that this rank has contributed."""

    def step(self) -> bool:
        """Contributes the gradients of the parameters, and updates these by the rounds that are complete.

        Returns:
            Whether a round has taken this rank's gradients already.
        """
        received = self._sums.all_reduce(self._vector.take())
        self.gradients += 1
        self._apply(received.sums)
        return received.accepted

    def drain(self) -> None:
        """Delivers the gradients that no round has taken yet, once all ranks have called it, and ends the training."""
        self._apply(self._sums.drain())
        if self._latest:
            self._average()

    def state_dict(self) -> dict[str, Any]:
        """Returns the updates, and the gradients that no round has taken yet."""
        total, count = self._sums.pending()
        return {"updates": self.updates, "pending": total, "pending_gradients": count}

    def load_state_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores what :meth:`state_dict` returned on each rank; of another number of ranks, rank 0 takes all."""
        if len(states) == self._sums.ranks:
            mine = [states[self._sums.rank]]
        else:
            mine = [*states] if self._sums.rank == 0 else []
        for state in mine:
            self._sums.restore(state["pending"], state["pending_gradients"])
        self._earlier = self.updates = max(state["updates"] for state in states)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.drain()
        self._sums.close()

    def _apply(self, sums: Iterable[PartialSum]) -> None:
        for each in sums:
            missed = self._earlier + each.number - self.updates
            self.updates += missed + 1
            # Rounds at the end of a training may hold nothing: momentum would make an update of them.
            if any(each.counts):
                self._update(each.total / len(each.counts), missed)
            if self._average_every and (each.number + 1) % self._average_every == 0:
                self._average()
        self._optimizer.zero_grad()

    def _update(self, mean: torch.Tensor, missed: int) -> None:
        """Updates by the mean of a round, at the learning rate that it has on ranks that missed no round."""
        if self._schedule is not None and missed:
            # torch expects a step of the optimizer before one of its schedule.
            self._optimizer._opt_called = True  # type: ignore[attr-defined]
            for _ in range(missed):
                self._schedule.step()
        self._vector.put(mean)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()

    def _average(self) -> None:
        """Replaces parameters and buffers by their averages over ranks, but those of integers."""
        for tensor in self._state():
            if tensor.is_floating_point() or tensor.is_complex():
                dist.all_reduce(tensor.detach(), group=self._group)
                tensor.detach().div_(dist.get_world_size(self._group))

    def _state(self) -> list[torch.Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]
