"""Eager-SGD under a plan: the iterations of one rank, whose gradients are summed by partial all-reduces.

    iterate ─► (rounds went on without this rank: nothing) ─► compute ─► one partial all-reduce for each set of ranks
            ─► the updates of all rounds that are complete, in their order

Each set of ranks that holds the same parameters sums one vector. Where all stages lie on the same ranks, a late rank
skips the samples of the rounds that went on without it; else others need its activations, so it computes every batch,
and a call for a round that is complete does not wait.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from deeppool.errors import InvalidValueError
from deeppool.execution.eager_replica import Join
from deeppool.execution.gradient_vector import GradientVector
from deeppool.execution.partial_all_reduce import OneRankSum, PartialAllReduce, PartialSum
from deeppool.execution.trainer import SyncDriver, Trainer
from deeppool.training.group_state import StepsOfSome
from deeppool.training.step import Batch


class SharedVector:
    """Gradients that a set of ranks sums."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        named: dict[str, torch.nn.Parameter],
        sums: PartialAllReduce | OneRankSum,
        group: dist.ProcessGroup | None,
    ) -> None:
        """Takes the ranks, their parameters by name, and what sums them."""
        self.ranks, self.named, self.sums, self.group = ranks, named, sums, group
        self.vector = GradientVector(list(named.values()))

    def average(self, others: Sequence[torch.Tensor] = ()) -> None:
        """Replaces the parameters, and other tensors, by their means over the ranks."""
        for tensor in () if len(self.ranks) == 1 else (*self.vector.parameters, *others):
            dist.all_reduce(tensor.detach(), group=self.group)
            tensor.detach().div_(len(self.ranks))

    def state(self) -> dict[str, Any]:
        """Returns the gradients that no round has taken, and their counts, by parameter, and those of this rank."""
        total, gradients = self.sums.pending()
        *parts, counts = total.split(self.vector.sizes)
        return {
            "pending": dict(zip(self.named, parts, strict=True)),
            "counts": dict(zip(self.named, counts.tolist(), strict=True)),
            "gradients": gradients,
        }

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Adds the gradients of all ranks' states to the contribution of the first rank."""
        found = [state for state in states if state["gradients"] and not self.named.keys().isdisjoint(state["pending"])]
        for state in found:
            pending = state["pending"]
            # Earlier versions wrote no counts.
            counts = state.get("counts") or {name: float(part.any()) for name, part in pending.items()}
            parts = [
                pending.get(name, torch.zeros(each.numel(), dtype=each.dtype)) for name, each in self.named.items()
            ]
            last = torch.tensor([counts.get(name, 0.0) for name in self.named], dtype=self.vector.dtype)
            self.sums.restore(torch.cat([*parts, last]), state["gradients"])


class EagerDriver(SyncDriver):
    """Iterations of one rank; gradients that no round has taken go into one of the next iterations."""

    def __init__(self, trainer: Trainer, join: Join, *, average_every: int | None = None, latest: bool = False) -> None:
        """Joins the ranks of each set; all ranks call it.

        Args:
            trainer: of this rank.
            join: makes the partial all-reduce of a set.
            average_every: updates between two averages of the replicas.
            latest: whether a late rank receives only the newest round.

        Raises:
            InvalidValueError: the training needs all gradients of an update, or all ranks, at once.
        """
        _check(trainer)
        super().__init__(trainer)
        self._make_sum = join
        self._average_every, self._latest = average_every, latest
        self._everywhere = len({stage.layout.gpus for stage in trainer.stages}) == 1
        self._vectors = list(self._join())
        if (optimizer := trainer.update.optimizer) is not None:
            self._steps = StepsOfSome(optimizer)
        self._calls = 0
        """Iterations so far: the number of the round that the next one is for."""
        self._updates = 0
        """Rounds whose updates this rank has made, or begun where sets of ranks differ."""

    def iterate(self, batches: Sequence[Batch]) -> float:
        """Runs one update on some global batches; see :meth:`SyncDriver.iterate`."""
        step, number = self._trainer.step, self._calls
        self._calls += 1
        self._trainer.computed = self._updates <= number or not self._everywhere
        if not self._trainer.computed:
            step.iterations += len(batches)
            return 0.0
        step.compute(batches)
        loss = step.loss()
        step.discard()
        received = [(each.number, shared, each) for shared in self._vectors for each in self._sums(shared, number)]
        for position, shared, each in sorted(received, key=lambda entry: entry[0]):
            self._update(position, shared, each)
        self._finish(number + 1)
        return loss

    def state(self) -> dict[str, Any]:
        """Returns the gradients that no round has taken; with ``latest`` delivery, makes the replicas equal first."""
        if self._latest:
            self._average(self._vectors)
        return {"vectors": [shared.state() for shared in self._vectors]}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores the states of all ranks of an earlier run: the first rank of each set contributes what is left."""
        vectors = [vector for state in states for vector in state.get("vectors", ())]
        for shared in self._vectors:
            if shared.ranks[0] == self._trainer.rank:
                shared.restore(vectors)

    def close(self) -> None:
        """Ends this rank's part; all ranks call it after the same iteration."""
        for shared in self._vectors:
            shared.sums.close(agreed=True)

    def _join(self) -> Iterator[SharedVector]:
        trainer = self._trainer
        found: dict[tuple[tuple[int, ...], torch.dtype], dict[str, torch.nn.Parameter]] = {}
        names = {parameter: name for name, parameter in trainer.parameters.items()}
        for part in trainer.shared:
            for ranks, parameters in part.items():
                for parameter in parameters:
                    found.setdefault((ranks, parameter.dtype), {})[names[parameter]] = parameter
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for (ranks, dtype), named in found.items():
            if len(ranks) > 1 and ranks not in groups:
                # Ranks outside take part in making a group.
                groups[ranks] = None if len(ranks) == trainer.ranks else dist.new_group(list(ranks))
            if trainer.rank in ranks:
                elements = GradientVector(list(named.values())).elements
                group = groups.get(ranks)
                alone = len(ranks) == 1
                sums = OneRankSum(elements, dtype) if alone else self._make_sum(group, elements, dtype)
                yield SharedVector(ranks, named, sums, group)

    def _sums(self, shared: SharedVector, number: int) -> tuple[PartialSum, ...]:
        stage = len(self._trainer.parts) - 1
        waits = nullcontext() if len(shared.ranks) == 1 else self._trainer.span("sync", stage, "partial all-reduce")
        gradient = shared.vector.take()
        with waits:
            return shared.sums.all_reduce(gradient, number).sums

    def _update(self, number: int, shared: SharedVector, each: PartialSum) -> None:
        rule = self._trainer.update
        # The learning rate is that of the round, also where another set of ranks is not as far.
        self._finish(number)
        shared.vector.put(each.total)
        with self._trainer.span("update", len(self._trainer.parts) - 1, "update"):
            assert rule.optimizer is not None, "a rank with parameters has an optimizer"
            self._step(rule.optimizer, shared.vector.parameters)
            rule.optimizer.zero_grad(set_to_none=True)
        if self._everywhere:
            self._finish(number + 1)
        if self._average_every and (number + 1) % self._average_every == 0:
            self._average([shared])

    def _step(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        if self._everywhere and len(self._vectors) == 1:
            optimizer.step()
            return
        self._steps.begin()
        if (found := self._steps.step(parameters)) and len(self._vectors) > 1:
            raise InvalidValueError(
                f"each step of {type(optimizer).__name__} changes '{min(found)}' of its groups, and eager-SGD makes a "
                "step for each type of parameters and each set of GPUs (choose another optimizer, or parameters of one "
                "type and a plan whose layers all have all GPUs)"
            )

    def _finish(self, updates: int) -> None:
        """Moves the learning rate on to what follows a number of updates."""
        while self._updates < updates:
            self._updates += 1
            self._trainer.update.end()

    def _average(self, vectors: Sequence[SharedVector]) -> None:
        for shared in vectors:
            # Buffers belong to no set of ranks: only where there is one set do all ranks hold the same.
            first = self._everywhere and shared is self._vectors[0]
            shared.average(self._trainer.buffers if first else ())


def _check(trainer: Trainer) -> None:
    if trainer.update.needs_norm:
        raise InvalidValueError(
            "eager-SGD updates by the gradients of those ranks that are there, but clip_norm and fp16's loss scale "
            "need those of all (train without clip_norm, in fp32 or bf16)"
        )
    if trainer.synchronises_batch_norm:
        raise InvalidValueError(
            "synchronised BatchNorm makes every rank wait for all others in each forward, which eager-SGD is to avoid "
            "(synchronise_batch_norm=False)"
        )
