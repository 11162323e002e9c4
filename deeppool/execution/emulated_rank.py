"""Emulation of all ranks but one: the one that exists waits as long as it would for the others.

Its own stages run as in any training. Data from other ranks is available at once, with finite but meaningless values;
what would take time is a wait until the time in the plan's schedule (:mod:`deeppool.execution.replay_schedule`), in
which neither the device nor the core is used. Not modelled: the memory bandwidth and multiprocessors that transfers
use, the others' update, their jitter, and collectives inside a stage (synchronised BatchNorm).
"""

import time
from collections.abc import Callable, Sequence

import torch

from deeppool.base.timeline import SpanKind
from deeppool.collectives.schedule import Schedule
from deeppool.device.find import device_of
from deeppool.device.transfer import PendingWork
from deeppool.errors import RunError
from deeppool.execution.communicator import CompletedWork, Group, P2PBuffer
from deeppool.execution.replay_schedule import START, Event, EventTime, ReplaySchedule, replay_schedule
from deeppool.execution.stages import stages_of
from deeppool.planning.plan import Plan

SPIN = 100e-6
"""Seconds of busy waiting at the end of a wait: a sleeping core wakes up that late."""
SMALL = 1e-3
"""Standard deviation of data from emulated ranks: as gradients, unit-normal values might overflow 16 bits."""


def wait_until(moment: float) -> None:
    """Returns at a time of ``time.perf_counter``, or at once if it has passed."""
    left = moment - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < moment:
        pass


def emulate_other_ranks(rank: int, plan: Plan, device: torch.device) -> "EmulatedCommunicator":
    """Creates the communicator of one rank of a plan whose other ranks are emulated."""
    schedule = replay_schedule(plan, stages_of(plan), rank)
    return EmulatedCommunicator(rank, plan.gpus, schedule, synchronize=device_of(device).synchronize_stream)


class EmulatedCommunicator:
    """The communicator of one rank whose peers are emulated."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        schedule: ReplaySchedule,
        *,
        synchronize: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], None] = wait_until,
    ) -> None:
        """Starts before the first iteration.

        Args:
            rank: the one that exists.
            ranks: number of ranks of the plan.
            schedule: times at which the rank may start its work.
            synchronize: waits for the device: a stage ends when its work has run, not at its launch.
            clock: seconds.
            wait: returns at a time of the clock.
        """
        self.rank, self.ranks = rank, ranks
        self._schedule, self._synchronize, self._clock, self._wait = schedule, synchronize, clock, wait
        self._others_started: float | None = None
        """Start of the next iteration on the other ranks; None: the same as on this rank."""
        self._end_times: dict[Event, float] = {}
        """End of each computation in this iteration."""
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
        self._others_started = None

    def begin(self) -> None:
        """Starts an iteration; the other ranks started theirs without waiting for this one."""
        self._end_times = {START: self._clock() if self._others_started is None else self._others_started}
        self._remaining = list(self._schedule.computations)[::-1]

    def await_scheduled_start(self, kind: SpanKind, stage: int) -> None:
        """Waits even if all inputs are available: the plan may order the stage after a layer on another rank."""
        self._wait(self._when(self._schedule.computations[kind, stage].end))

    def enter(self, kind: SpanKind, stage: int) -> None:
        """Marks the start of a span."""
        self._transfer_start, self._stage = 0.0, stage

    def leave(self, kind: SpanKind, stage: int) -> float:
        """Records the end of a computation."""
        if kind in ("forward", "backward"):
            self._synchronize()
            self._end_times[kind, stage] = self._clock()
            expected = self._remaining.pop()
            if expected != (kind, stage):
                raise RunError(
                    f"the emulated rank computed the {kind} pass of stage {stage} where the plan's schedule has the "
                    f"{expected[0]} pass of stage {expected[1]} (an error of deeppool: please report it with the plan)"
                )
        return self._transfer_start

    def end(self) -> None:
        """Waits for the end of the iteration on the other ranks."""
        self._others_started = self._when(self._schedule.end)
        self._wait(self._others_started)

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
        self._transfer_start = max(self._transfer_start, self._when(met))
        self._wait(self._when(go))

    def _when(self, moment: EventTime) -> float:
        return max(self._end_times[event] + delay for event, delay in moment.items())

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
