"""Performs one rank's steps of a schedule.

A rank posts the sends of a round as one batch with receives, receives first: gloo queues the message that a receiver is
ready behind payload to the same peer. Before a step reads or writes chunks, the steps are awaited that it waits for. A
reduce receives into other memory and adds afterwards, in the order of the schedule, so its bits do not depend on which
message is first.

Over gloo, receives are posted as soon as their memory is free, which may be rounds before: a message that arrives
before its receive is posted costs many wake-ups, and a ring of four ranks on two cores then takes twice as long
(benchmarks/network). NCCL runs a batch as one kernel, and batches in order, so there both sides of a transfer have it
in the batch of its round, which is free of deadlocks (:func:`deeppool.collectives.simulate.check_rounds`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.distributed as dist

from deeppool.collectives.schedule import Schedule
from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's steps of a round, by their positions in the schedule."""

    posts: tuple[int, ...]
    """Receives, of this round and of later ones, to post before the sends."""
    sends: tuple[int, ...]
    receives: tuple[int, ...]
    """Receives of this round."""


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does for a schedule."""

    batches: tuple[Batch, ...]
    staged: tuple[int, ...]
    """Receives into other memory: reduces, and those of chunks that a send of the same round still reads."""


@lru_cache(maxsize=1024)
def program_of(schedule: Schedule, rank: int, *, early: bool) -> Program:
    """Returns a rank's steps, round by round.

    Args:
        schedule: steps of all ranks.
        rank: the rank.
        early: whether receives are posted as soon as their memory is free, in the order of each sender.
    """
    steps = schedule.steps
    own = [index for index, step in enumerate(steps) if step.rank == rank]
    receives = [index for index in own if steps[index].kind != "send"]
    staged = tuple(
        index
        for index in receives
        if steps[index].kind == "reduce"
        or any(steps[other].round == steps[index].round for other in steps[index].after)
    )
    posted: dict[int, int] = {}
    last: dict[int, int] = defaultdict(int)
    for index in receives:
        step = steps[index]
        free = 0 if index in staged else max((steps[other].round + 1 for other in step.after), default=0)
        last[step.peer] = posted[index] = max(last[step.peer], free) if early else step.round
    rounds = sorted({steps[index].round for index in own})
    batches = tuple(
        Batch(
            # A rank may have no step in the round in which memory becomes free.
            tuple(index for index in receives if before < posted[index] <= number),
            tuple(index for index in own if steps[index].round == number and steps[index].kind == "send"),
            tuple(index for index in receives if steps[index].round == number),
        )
        for before, number in pairwise([-1, *rounds])
    )
    return Program(batches, staged)


class Performer:
    """One rank's side of schedules, in a process group that no other thread uses meanwhile."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Takes the process group whose ranks are the schedules', in their order; None: the default one."""
        self._group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._early = dist.get_backend(group) != "nccl"
        self._memory = torch.empty(0)

    def perform(self, schedule: Schedule, tensor: torch.Tensor) -> None:
        """Performs this rank's steps on a tensor, in place; every rank calls it, with tensors of one size.

        Returns when the tensor is complete; on CUDA, when its completion is ordered before later work on the current
        stream.

        Raises:
            InvalidValueError: the schedule is of another number of ranks, or the tensor's memory has gaps.
        """
        if schedule.ranks != self.ranks:
            raise InvalidValueError(f"{schedule} cannot run on {self.ranks} ranks (make a schedule of as many)")
        program = program_of(schedule, self.rank, early=self._early)
        run = _Run(schedule, _flat(tensor), self._group)
        memory = self._split_memory([run.length(index) for index in program.staged], run.flat)
        staged = dict(zip(program.staged, memory, strict=True))
        for batch in program.batches:
            for index in (*batch.sends, *(index for index in batch.posts if index not in staged)):
                run.await_steps(run.steps[index].after)
            run.post([(index, staged.get(index, run.part(index))) for index in batch.posts], batch.sends)
            for index in batch.receives:
                run.await_steps((index,))
                if index in staged:
                    run.await_steps(run.steps[index].after)
                    run.apply(index, staged[index])
        run.finish()

    def _split_memory(self, lengths: Sequence[int], like: torch.Tensor) -> Sequence[torch.Tensor]:
        """Returns memory to receive into. It is kept, because a CPU's new memory costs page faults."""
        kept, needed = self._memory, sum(lengths)
        if kept.numel() < needed or kept.dtype != like.dtype or kept.device != like.device:
            self._memory = torch.empty(needed, dtype=like.dtype, device=like.device)
        return self._memory[:needed].split(list(lengths)) if lengths else ()


class _Run:
    """Progress of one rank through a schedule."""

    def __init__(self, schedule: Schedule, flat: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        self.steps, self.flat, self._group = schedule.steps, flat, group
        self._edges = [chunk * flat.numel() // schedule.chunks for chunk in range(schedule.chunks + 1)]
        self._pending: dict[int, dist.Work] = {}

    def length(self, index: int) -> int:
        """Returns the elements of a step."""
        step = self.steps[index]
        return self._edges[step.stop] - self._edges[step.start]

    def part(self, index: int) -> torch.Tensor:
        """Returns the part of the buffer that a step reads or writes."""
        step = self.steps[index]
        return self.flat[self._edges[step.start] : self._edges[step.stop]]

    def post(self, receives: Sequence[tuple[int, torch.Tensor]], sends: Sequence[int]) -> None:
        """Starts the steps that have elements."""
        posted: list[tuple[int, Callable[..., dist.Work | None], torch.Tensor]] = []
        posted += [(index, dist.irecv, memory) for index, memory in receives if memory.numel()]
        posted += [(index, dist.isend, self.part(index)) for index in sends if self.length(index)]
        if not posted:
            return
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(call, memory, group=self._group, group_peer=self.steps[index].peer)
                for index, call, memory in posted
            ]
        )
        # NCCL returns one work for the whole batch.
        each = works if len(works) == len(posted) else works * len(posted)
        self._pending |= {index: work for (index, _, _), work in zip(posted, each, strict=True)}

    def apply(self, index: int, arrived: torch.Tensor) -> None:
        """Adds what a reduce received, or copies what another step did."""
        if self.steps[index].kind == "reduce":
            self.part(index).add_(arrived)
        else:
            self.part(index).copy_(arrived)

    def await_steps(self, indices: Iterable[int]) -> None:
        """Waits for steps that were posted."""
        for index in indices:
            work = self._pending.pop(index, None)
            if work is not None:
                work.wait()

    def finish(self) -> None:
        """Waits for all steps."""
        self.await_steps(list(self._pending))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's memory as a vector; a dense one of any order of dimensions has one."""
    ordered = tensor.detach().permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if not ordered.is_contiguous():
        raise InvalidValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has gaps in its memory "
            "(make it contiguous)"
        )
    return ordered.view(-1)
