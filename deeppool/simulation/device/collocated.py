"""Simulation of a foreground and a background that share one device: slowdown and harvest on a virtual clock.

The gate and the governor are those of a live run (``deeppool.scheduling``). The device model:

- Pieces of the background run one after another, in the order of their launches.
- While an operator of the foreground runs, it and the running piece each progress at the rate that :data:`Rates`
  gives for the pair.
- A CPU preempts the background at once. On a GPU (``preempts=False``) launched work is not recalled, so an operator
  after idle time first waits for the running piece, and for every piece in the queue that both jobs
  share: all of them where the priorities are equal, else those beyond ``private_queue``.
- Idle time of the foreground is a wait for another device: it takes as long as alone.
- In idle time the background runs as fast as alone, or at an operator's ``idle_rate``: in short waits its caches are
  cold.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from deeppool.base.sharing import Sharing
from deeppool.errors import InvalidValueError
from deeppool.scheduling.background_limits import BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate
from deeppool.scheduling.governor import Governor


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """Operator of the foreground and the idle time before it."""

    kind: str
    stage: int
    seconds: float
    """Seconds alone."""
    idle: float = 0.0
    """Idle seconds before it."""
    idle_rate: float = 1.0
    """Speed of the background in that idle time; 1 is as fast as alone."""
    intensity: float | None = None
    """FLOP per byte of its kernels; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPiece:
    """Unit of background work that is launched at once."""

    seconds: float
    """Seconds alone."""
    intensity: float | None = None
    """FLOP per byte of its kernels; None: unknown."""


Rates = Callable[[SimulatedStep, SimulatedPiece], tuple[float, float]]
"""Speeds of an operator and a piece that run concurrently; 1 is as fast as alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """Properties of a device that two jobs share."""

    rates: Rates
    preempts: bool = False
    """Whether a foreground of higher priority preempts the background, as on a CPU."""
    queue: int = 64
    """Largest number of launches that the background may have queued."""
    private_queue: int = 2
    """Launches of lower priority that stay out of the queue shared by both jobs."""


@dataclass(frozen=True, slots=True)
class CollocatedSimulation:
    """Foreground iteration times with and without a background, and the background's harvest."""

    KIND: ClassVar[str] = "collocated-simulation"

    sharing: Sharing
    iterations: int
    alone_time: float
    """Mean seconds of an iteration alone."""
    iteration_time: float
    """Mean seconds of an iteration, including iterations without background."""
    slowdown: float
    """Relative increase of the mean iteration time."""
    p99_inflation: float
    """Relative increase of the 99th percentile of iteration times."""
    idle_share: float
    """Idle fraction of the foreground alone."""
    harvest: float
    """Background work done, relative to running alone."""
    shares: tuple[float, ...]
    """Background share ordered in each iteration; 0 where the foreground ran alone."""
    bans: tuple[tuple[Operator, int], ...]
    """Banned operators and the number of iterations of each ban."""
    elapsed: float
    """Total seconds of all iterations."""
    work: float
    """Seconds of background work done."""
    gap_work: float = 0.0
    """Seconds of background work done while the foreground computed nothing on this device."""
    gap_time: float = 0.0
    """Seconds in which the foreground computed nothing on this device, waiting for others or for the device."""

    @property
    def harvest_of_idle(self) -> float:
        """Harvest relative to the idle time; above 1 where the background also overlapped operators."""
        return self.harvest / self.idle_share if self.idle_share else math.inf

    def __str__(self) -> str:
        text = (
            f"{self.sharing}: slowdown {100 * self.slowdown:.1f} % (p99 {100 * self.p99_inflation:.1f} %), "
            f"harvest {100 * self.harvest:.0f} % with {100 * self.idle_share:.0f} % idle"
        )
        banned = ", ".join(f"{kind} of stage {stage}" for (kind, stage), _ in self.bans)
        return f"{text}; banned at times: {banned}" if banned else text


def simulate_collocated(
    steps: Sequence[SimulatedStep],
    pieces: Sequence[SimulatedPiece],
    sharing: Sharing,
    device: DeviceModel,
    *,
    iterations: int = 300,
    noise: float = 0.0,
    seed: int = 0,
    poll: float = 2e-4,
) -> CollocatedSimulation:
    """Simulates iterations of a foreground with a background.

    Args:
        steps: operators of one iteration of the foreground, in order.
        pieces: pieces of one step of the background, in order, repeated.
        sharing: the sharing mechanisms.
        device: the shared device.
        iterations: number of foreground iterations.
        noise: standard deviation of the logarithm of an operator's time, drawn equally for the foreground alone.
        seed: random seed of the noise.
        poll: seconds between attempts of a background that may not launch.

    Raises:
        InvalidValueError: no steps, pieces or iterations, or a time that is not positive.
    """
    if not steps or not pieces or iterations < 1:
        raise InvalidValueError("a simulation needs at least one step, one piece and one iteration")
    times = [step.seconds for step in steps] + [piece.seconds for piece in pieces]
    if min(times) <= 0 or min(step.idle for step in steps) < 0:
        raise InvalidValueError(f"steps and pieces must take longer than 0 s, got {min(times):g}")
    draw = random.Random(seed)
    run = _DeviceSimulation(pieces, sharing, device, poll)
    governor = Governor(sharing)
    together, alone, ordered = [], [], []
    bans: dict[Operator, int] = {}
    for iteration in range(iterations):
        drawn = [step.seconds * math.exp(draw.gauss(0, noise)) if noise else step.seconds for step in steps]
        alone.append(sum(drawn) + sum(step.idle for step in steps))
        orders = governor.begin(iteration)
        seconds, operators = run.iterate(steps, drawn, orders)
        governor.end(seconds, operators)
        together.append(seconds)
        ordered.append(orders.share if orders.open else 0.0)
        for operator in orders.banned:
            bans[operator] = bans.get(operator, 0) + 1
    return CollocatedSimulation(
        sharing=sharing,
        iterations=iterations,
        alone_time=float(np.mean(alone)),
        iteration_time=float(np.mean(together)),
        slowdown=float(np.mean(together) / np.mean(alone)) - 1,
        p99_inflation=float(np.percentile(together, 99) / np.percentile(alone, 99)) - 1,
        idle_share=sum(step.idle for step in steps) / float(np.mean(alone)),
        harvest=run.work / run.now,
        shares=tuple(ordered),
        bans=tuple(sorted(bans.items())),
        elapsed=run.now,
        work=run.work,
        gap_work=run.gap_work,
        gap_time=run.gap_time,
    )


class _DeviceSimulation:
    """State of the device; time advances by events: the end of an operator or a piece, or a poll of the gate."""

    def __init__(self, pieces: Sequence[SimulatedPiece], sharing: Sharing, device: DeviceModel, poll: float) -> None:
        self.now = 0.0
        self.work = 0.0
        """Seconds of background work done."""
        self.gap_work = self.gap_time = 0.0
        self._pieces = pieces
        self._next = 0
        self._queue: deque[SimulatedPiece] = deque()
        self._left = 0.0
        """Remaining seconds of the first piece in the queue."""
        self._gate = Gate(sharing)
        self._device = device
        self._poll = poll
        self._orders = BackgroundLimits(open=False, share=1.0, banned=frozenset())
        self._waits = not device.preempts or sharing.priority == "normal"
        self._private = 0 if sharing.priority == "normal" else device.private_queue

    def iterate(
        self, steps: Sequence[SimulatedStep], drawn: Sequence[float], orders: BackgroundLimits
    ) -> tuple[float, dict[Operator, float]]:
        """Runs one foreground iteration; returns its seconds and those of each operator."""
        self._orders = orders
        began = self.now
        operators: dict[Operator, float] = {}
        for step, seconds in zip(steps, drawn, strict=True):
            rested, done = self.now, self.work
            self._idle(step.idle, step.idle_rate)
            operator = (step.kind, step.stage)
            started = self.now
            if step.idle and not self._device.preempts:
                self._wait_for_device(operator)
            self.gap_time += self.now - rested
            self.gap_work += self.work - done
            self._run_operator(step, operator, seconds)
            operators[operator] = operators.get(operator, 0.0) + self.now - started
        return self.now - began, operators

    def _idle(self, seconds: float, rate: float) -> None:
        """Advances through idle time of the foreground."""
        end = self.now + seconds
        while self.now < end:
            self._launch(None)
            self._advance(min(end - self.now, self._piece_time(rate), self._until_poll()), rate)

    def _wait_for_device(self, operator: Operator) -> None:
        """Waits for pieces that were launched before the operator and cannot be recalled."""
        ahead = max(min(1, len(self._queue)), len(self._queue) - self._private)
        while ahead > 0:
            self._launch(operator)
            ended = self._advance(min(self._piece_time(1.0), self._until_poll()), 1.0)
            ahead -= ended

    def _run_operator(self, step: SimulatedStep, operator: Operator, seconds: float) -> None:
        """Runs an operator, concurrently with the background's pieces."""
        while seconds > 0:
            self._launch(operator)
            foreground, background = self._device.rates(step, self._queue[0]) if self._queue else (1.0, 1.0)
            passed = min(seconds / foreground, self._piece_time(background), self._until_poll())
            done = passed == seconds / foreground
            self._advance(passed, background)
            seconds = 0.0 if done else seconds - passed * foreground

    def _launch(self, operator: Operator | None) -> None:
        """Launches as many pieces as the gate admits and the queue holds."""
        while len(self._queue) < self._device.queue:
            piece = self._pieces[self._next]
            if not self._gate.admits(self.now, self._orders, operator, piece.seconds):
                return
            self._gate.launched(piece.seconds)
            if not self._queue:
                self._left = piece.seconds
            self._queue.append(piece)
            self._next = (self._next + 1) % len(self._pieces)

    def _piece_time(self, rate: float) -> float:
        """Returns the seconds until the first piece in the queue ends, at a given speed."""
        return self._left / rate if self._queue and rate > 0 else math.inf

    def _until_poll(self) -> float:
        """Returns the seconds until the gate is polled again; only a share below 1 is earned with time alone."""
        return self._poll if self._orders.open and self._orders.share < 1 else math.inf

    def _advance(self, seconds: float, rate: float) -> bool:
        """Advances time; returns whether a piece ended."""
        ends = seconds >= self._piece_time(rate)
        self.now += seconds
        if not self._queue:
            return False
        done = self._left if ends else seconds * rate
        self.work += done
        self._left -= done
        if ends:
            self._gate.finished(self._queue.popleft().seconds)
            self._left = self._queue[0].seconds if self._queue else 0.0
        return ends
