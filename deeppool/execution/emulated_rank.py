"""Emulation of all ranks but one: the one that exists waits as long as it would for the others.

Its own stages run as in any training. Data from other ranks is available at once, with finite but meaningless values;
what would take time is a wait until the time in the plan's schedule (:mod:`deeppool.execution.replay_schedule`), in
which neither the device nor the core is used. Not modelled: the memory bandwidth and multiprocessors that transfers
use, the others' update, their jitter, and collectives inside a stage (synchronised BatchNorm).
"""

from collections.abc import Callable, Sequence

import torch

from deeppool.base.timeline import SpanKind
from deeppool.collectives.schedule import Schedule
from deeppool.device.event_times import EventTimes, HostEventTimes
from deeppool.device.find import device_of
from deeppool.device.transfer import PendingWork
from deeppool.errors import RunError
from deeppool.execution.communicator import CompletedWork, Group, P2PBuffer
from deeppool.execution.replay_schedule import START, Event, EventTime, ReplaySchedule, replay_schedule
from deeppool.execution.stages import stages_of
from deeppool.planning.plan import Plan

SMALL = 1e-3
"""Standard deviation of data from emulated ranks: as gradients, unit-normal values might overflow 16 bits."""


def emulate_other_ranks(rank: int, plan: Plan, device: torch.device) -> "EmulatedCommunicator":
    """Creates the communicator of one rank of a plan whose other ranks are emulated."""
    schedule = replay_schedule(plan, stages_of(plan), rank)
    return EmulatedCommunicator(rank, plan.gpus, schedule, device_of(device).event_times())


class EmulatedCommunicator:
    """The communicator of one rank whose peers are emulated."""

    def __init__(self, rank: int, ranks: int, schedule: ReplaySchedule, event_times: EventTimes | None = None) -> None:
        """Starts before the first iteration.

        Args:
            rank: the one that exists.
            ranks: number of ranks of the plan.
            schedule: times at which the rank may start its work.
            event_times: times what the rank computes, and waits. Default: by the host's clock.
        """
        self.rank, self.ranks = rank, ranks
        self._schedule, self._times = schedule, event_times or HostEventTimes()
        self._together = True
        """Whether the other ranks start the next iteration with this one; otherwise they did not wait for it."""
        self._remaining: list[Event] = []
        """Computations left in it, the next one last."""
        self._transfer_start = 0.0
        """When the other ranks had started the transfers of the current span."""
        self._stage = 0
        """Stage of the current span."""
        self._noise: dict[torch.dtype, torch.Tensor] = {}

    def group(self, ranks: Sequence[int], *, schedules: bool = False) -> Group:
        """Creates an emulated group; see :meth:`Communicator.group`."""
        return _EmulatedGroup(self, len(ranks))

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """Fills ``receiving``, which the next stage needs; sends are discarded."""
        for tensor, _ in receiving:
            self._fill(tensor)
        return [_PendingWait(self.await_transfers)] * len(receiving) + [_PendingWait(lambda: None)] * len(sending)

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Returns completed work: other ranks contribute zeros, and the plan prices none in an update."""
        return CompletedWork()

    def barrier(self) -> None:
        """Lets all ranks start the next iteration together."""
        self._together = True

    def begin(self) -> None:
        """Starts an iteration; the other ranks started theirs without waiting for this one."""
        if self._together:
            self._times.mark(START)
        self._remaining = list(self._schedule.computations)[::-1]

    def enter(self, kind: SpanKind, stage: int) -> None:
        """Marks the start of a span; one that computes waits until this rank may.

        It does even if all inputs are available: the plan may order the stage after a layer on another rank.
        """
        if kind in ("forward", "backward"):
            self._times.wait(self._schedule.computations[kind, stage].end)
        self._transfer_start, self._stage = 0.0, stage

    def leave(self, kind: SpanKind, stage: int) -> float:
        """Marks the end of a span; returns when its last rank had started it (``time.perf_counter``), 0 if unknown."""
        if kind in ("forward", "backward"):
            self._times.mark((kind, stage))
            expected = self._remaining.pop()
            if expected != (kind, stage):
                raise RunError(
                    f"the emulated rank computed the {kind} pass of stage {stage} where the plan's schedule has the "
                    f"{expected[0]} pass of stage {expected[1]} (an error of deeppool: please report it with the plan)"
                )
        return self._transfer_start

    def end(self) -> None:
        """Waits for the end of the iteration on the other ranks."""
        self._times.wait(self._schedule.end, reached=START)
        self._together = False

    def close(self) -> None:
        """Does nothing."""

    def await_transfers(self) -> None:
        """Waits until the inputs of the next stage have arrived."""
        turn = self._schedule.computations[self._remaining[-1]]
        self._await(turn.start, turn.end)

    def await_all_reduce(self) -> None:
        """Waits until the gradients of the current stage are summed."""
        turn = self._schedule.all_reduces.get(self._stage)
        if turn is not None:
            self._await(turn.start, turn.end)

    def _await(self, met: EventTime, go: EventTime) -> None:
        self._transfer_start = max(self._transfer_start, self._times.when(met))
        self._times.wait(go)

    def _fill(self, tensor: torch.Tensor) -> None:
        """Fills a tensor with plausible values at the cost of a copy."""
        if not tensor.is_floating_point():
            tensor.zero_()
            return
        noise = self._noise.get(tensor.dtype)
        if noise is None or len(noise) < tensor.numel():
            generator = torch.Generator().manual_seed(0)
            noise = torch.empty(tensor.numel(), dtype=tensor.dtype).normal_(std=SMALL, generator=generator)
            self._noise[tensor.dtype] = noise = noise.to(tensor.device)
        tensor.copy_(noise[: tensor.numel()].view_as(tensor))


class _PendingWait:
    """Emulated communication that ends when a wait does."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class _EmulatedGroup:
    """A group of which one rank exists."""

    def __init__(self, communicator: EmulatedCommunicator, ranks: int) -> None:
        self._communicator, self._ranks = communicator, ranks

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> PendingWork:
        return _PendingWait(self._communicator.await_all_reduce)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor] * self._ranks

    def close(self) -> None:
        """Does nothing."""
