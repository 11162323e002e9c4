"""Other ranks that are not there: one rank of a plan runs as if they were, and waits as long as it would.

Its own stages run as in any training. What would come from others is there at once, with values that are finite and
mean nothing; what would take time is a wait until the plan's schedule says so (see :mod:`deeppool.execution.replay_schedule`),
in which neither the device nor the core is used. Not modelled: the memory bandwidth and multiprocessors that
transfers use, the others' update, their jitter, and collectives inside a stage (synchronised BatchNorm).
"""

import time
from collections.abc import Callable, Sequence

import torch

from deeppool.base.timeline import SpanKind
from deeppool.execution.communicator import CompletedWork, Group, P2PBuffer, PendingWork
from deeppool.execution.replay_schedule import START, Event, EventTime, ReplaySchedule

SPIN = 100e-6
"""Seconds before the end of a wait in which the core stays awake: a sleeping one wakes up that late."""
SMALL = 1e-3
"""Standard deviation of what comes from others: as gradients, unit-normal values might overflow 16 bits."""


def wait_until(moment: float) -> None:
    """Returns at a moment of ``time.perf_counter``; at once where it has passed."""
    left = moment - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < moment:
        pass


class EmulatedCommunicator:
    """The peers of one rank that runs by itself."""

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
        """Nothing has begun.

        Args:
            rank: the one that is there.
            ranks: of the plan.
            schedule: of the rank.
            synchronize: returns when the device has done what this rank gave it: a stage ends then, not at its launch.
            clock: seconds.
            wait: returns at a moment of the clock.
        """
        self.rank, self.ranks = rank, ranks
        self._schedule, self._synchronize, self._clock, self._wait = schedule, synchronize, clock, wait
        self._others_started: float | None = None
        """The next iteration; None: they begin it together with this rank."""
        self._end_times: dict[Event, float] = {}
        """In this iteration."""
        self._remaining: list[Event] = []
        """What this rank has still to compute in it, the next one last."""
        self._transfer_start = 0.0
        """In the span at hand, when the others had begun what was waited for."""
        self._stage = 0
        """Of that span."""
        self._noise: dict[torch.dtype, torch.Tensor] = {}

    def group(self, ranks: Sequence[int]) -> Group:
        """As :meth:`Communicator.group`."""
        return _EmulatedGroup(self, len(ranks))

    def exchange(self, receiving: Sequence[P2PBuffer], sending: Sequence[P2PBuffer]) -> Sequence[PendingWork]:
        """What comes is needed by the next stage; nobody waits for what leaves."""
        for tensor, _ in receiving:
            self._fill(tensor)
        return [_PendingWait(self.await_transfers)] * len(receiving) + [_PendingWait(lambda: None)] * len(sending)

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        """Others contribute nothing, in no time: the plan does not price updates."""
        return CompletedWork()

    def barrier(self) -> None:
        """All are there, and begin the next iteration together."""
        self._others_started = None

    def begin(self) -> None:
        """The others did not wait for what this rank did between two iterations; it may be late for its own turn."""
        self._end_times = {START: self._clock() if self._others_started is None else self._others_started}
        self._remaining = list(self._schedule.computations)[::-1]

    def await_scheduled_start(self, kind: SpanKind, stage: int) -> None:
        """Also where all of its inputs are at hand: the plan may let it wait for a layer elsewhere."""
        self._wait(self._when(self._schedule.computations[kind, stage].end))

    def enter(self, kind: SpanKind, stage: int) -> None:
        """Nothing was waited for yet."""
        self._transfer_start, self._stage = 0.0, stage

    def leave(self, kind: SpanKind, stage: int) -> float:
        """Notes the end of what this rank computes."""
        if kind in ("forward", "backward"):
            self._synchronize()
            self._end_times[kind, stage] = self._clock()
            assert self._remaining.pop() == (kind, stage), (
                "a rank computes its stages in the order of the plan's schedule"
            )
        return self._transfer_start

    def end(self) -> None:
        """Waits until the others' iteration has ended too."""
        self._others_started = self._when(self._schedule.end)
        self._wait(self._others_started)

    def close(self) -> None:
        """There is nobody to leave."""

    def await_transfers(self) -> None:
        """Returns when what the next stage needs has arrived."""
        turn = self._schedule.computations[self._remaining[-1]]
        self._await(turn.start, turn.end)

    def await_all_reduce(self) -> None:
        """Returns when the gradients of the span's stage are summed up."""
        turn = self._schedule.all_reduces.get(self._stage)
        if turn is not None:
            self._await(turn.start, turn.end)

    def _await(self, met: EventTime, go: EventTime) -> None:
        self._transfer_start = max(self._transfer_start, self._when(met))
        self._wait(self._when(go))

    def _when(self, moment: EventTime) -> float:
        return max(self._end_times[event] + delay for event, delay in moment.items())

    def _fill(self, tensor: torch.Tensor) -> None:
        """With values that a rank might send, at the price of a copy."""
        if not tensor.is_floating_point():
            tensor.zero_()
            return
        noise = self._noise.get(tensor.dtype)
        if noise is None or len(noise) < tensor.numel():
            generator = torch.Generator(tensor.device).manual_seed(0)
            noise = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
            self._noise[tensor.dtype] = noise.normal_(std=SMALL, generator=generator)
        tensor.copy_(noise[: tensor.numel()].view_as(tensor))


class _PendingWait:
    """Something under way that ends when a wait does."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class _EmulatedGroup:
    """A group of which one rank is there."""

    def __init__(self, communicator: EmulatedCommunicator, ranks: int) -> None:
        self._communicator, self._ranks = communicator, ranks

    def all_reduce(self, tensor: torch.Tensor) -> PendingWork:
        return _PendingWait(self._communicator.await_all_reduce)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor] * self._ranks

    def close(self) -> None:
        """There is nobody to leave."""
