"""Limits of the background in each iteration of the foreground; one governor runs on every rank of the foreground.

Two independent loops: feedback bans operators that are slowed, a controller holds the bound on the mean slowdown. Both
compare with iterations alone; the controller also with those of phases without a background. Which iterations are alone
depends on the iteration's number and on the share, so they coincide on all ranks: ranks wait for each other, so an
iteration is alone only if it is on all of them.

Each rank has its own bans, but all ranks have one share: a rank that gives its background less time still waits for
ranks that give more, and would conclude that its own background costs nothing. So every rank's controller learns the
same measurements (see :class:`ForegroundIteration`), which may arrive while the next iteration runs.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from deeppool.base.sharing import Sharing
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.controller import Controller
from deeppool.scheduling.feedback import EVENT_FLOOR, FLOOR, Feedback
from deeppool.scheduling.slowdown import Baseline, Estimate, Slowdown

__all__ = ["BackgroundLimits", "Estimate", "ForegroundIteration", "Governor", "Operator", "combine", "is_alone"]

BLOCK = 4
"""Iterations alone in a row, of which the first one is not measured."""
DENSE = 24
"""Iterations at the start, of which every other block is alone: later baselines are rare."""
SPARSE = 288
"""Later iterations of which one block is alone: 1.4 %."""
CLOSE = 48
"""Iterations of which one block is alone while the controller needs baselines."""


def is_alone(iteration: int, *, closely: bool = False) -> bool:
    """Whether an iteration runs without background.

    ``closely`` asks for frequent baselines: a restricted share is only as good as its baseline, and a training becomes
    faster while it warms up, so a baseline of its first iterations would hold the bound too loosely. An unrestricted
    background need not pay for that.
    """
    return iteration % (2 * BLOCK if iteration < DENSE else CLOSE if closely else SPARSE) < BLOCK


class ForegroundIteration(NamedTuple):
    """Measurement of an iteration on one rank, as far as the share depends on it."""

    seconds: float
    trying: bool = False
    """Whether an operator is on trial, at the start or after a ban: its slowdown does not predict later ones."""
    unsettled: bool = False
    """Whether the banned operators differ from those when the controller last learned."""


def combine(ranks: Sequence[ForegroundIteration]) -> ForegroundIteration:
    """Combines the measurements of several ranks of one iteration.

    The controller compares means over iterations. These are equal on ranks that wait for each other, and the mean over
    ranks varies least from one iteration to the next; when the slowest rank ends is not known while they run.
    """
    return ForegroundIteration(
        fmean(one.seconds for one in ranks), any(one.trying for one in ranks), any(one.unsettled for one in ranks)
    )


class _Begun(NamedTuple):
    """An iteration that has begun and is not observed yet."""

    iteration: int
    limits: BackgroundLimits
    previous_alone: bool
    """Whether the iteration before was alone, so that no pieces are in flight and the caches are warm."""


class Governor:
    """Sets one rank's limits; learns from each iteration by :meth:`observe` and :meth:`learn`, or :meth:`end`."""

    def __init__(self, sharing: Sharing, *, by_events: bool = False) -> None:
        """Takes the mechanisms; without feedback and a bound nothing is limited or measured.

        Args:
            sharing: the mechanisms.
            by_events: whether events of the device time the operators, and not the host's clock.
        """
        floor = EVENT_FLOOR if by_events else FLOOR
        self._feedback = None if sharing.feedback is None else Feedback(sharing.feedback, floor=floor)
        self._cautious = sharing.priority == "normal" and sharing.share is None
        self._controller = self._make_controller(sharing.max_slowdown)
        self._baseline = Baseline()
        self._block: deque[float] = deque(maxlen=Baseline.KEPT)
        """Seconds of the latest iterations alone, until the next one beside a background."""
        self._slowdown = Slowdown()
        self._controller_bans = frozenset[Operator]()
        """Bans under which the controller's evidence was measured."""
        self._iteration = 0
        self._begun: deque[_Begun] = deque()
        """Iterations not observed yet; on a GPU the one before runs while the host launches the next."""
        self._limits = FREE
        self._ended: deque[tuple[BackgroundLimits, bool]] = deque()
        """Iterations not learned yet: limits, and whether the one before was alone."""

    def change_bound(self, bound: float) -> None:
        """Holds another bound from the next iteration on; :attr:`slowdown` then counts later iterations only.

        The baseline and the cost of a share of the time are kept.
        """
        if self._controller is None:
            self._controller = self._make_controller(bound)
        else:
            self._controller.change_bound(bound)
        self._slowdown = self._slowdown.without_collocated()

    def _make_controller(self, bound: float | None) -> Controller | None:
        return None if bound is None else Controller(bound, cautious=self._cautious)

    def begin(self, iteration: int) -> BackgroundLimits:
        """Returns the limits for an iteration, counted from the start of the run and the same on every rank."""
        self._iteration = iteration
        if self._feedback is None and self._controller is None:
            return FREE
        banned = frozenset[Operator]() if self._feedback is None else self._feedback.banned(iteration)
        share = 1.0 if self._controller is None else self._controller.share
        previous_alone = not self._limits.open
        closely = self._controller is not None and self._controller.needs_baseline
        self._limits = BackgroundLimits(not is_alone(iteration, closely=closely), share, banned)
        self._begun.append(_Begun(iteration, self._limits, previous_alone))
        return self._limits

    @property
    def is_settled(self) -> bool:
        """Whether the background is unrestricted and not suspected, so that learning may be delayed."""
        return self._iteration >= DENSE and (self._controller is None or self._controller.is_settled)

    def end(self, seconds: float, operators: Mapping[Operator, float]) -> None:
        """Records an iteration's time and that of its operators, on a single rank."""
        self.learn(self.observe(seconds, operators))

    def alone(self, seconds: Sequence[float]) -> None:
        """Records times of iterations without background on cores kept awake; equal on all ranks."""
        self._block += seconds

    def observe(self, seconds: float, operators: Mapping[Operator, float]) -> ForegroundIteration:
        """Records this rank's earliest iteration that is not; returns what all :func:`combine` and :meth:`learn`."""
        if not self._begun:
            return ForegroundIteration(seconds)
        iteration, limits, previous_alone = self._begun.popleft()
        self._ended.append((limits, previous_alone))
        if self._feedback is None:
            return ForegroundIteration(seconds)
        if limits.open:
            self._feedback.collocated(iteration, operators)
        elif previous_alone:
            self._feedback.alone(operators)
        return ForegroundIteration(seconds, self._feedback.trying(iteration), limits.banned != self._controller_bans)

    def learn(self, measured: ForegroundIteration) -> None:
        """Learns the combined measurement of the earliest iteration not learned yet; equal on all ranks."""
        if not self._ended:
            return
        limits, previous_alone = self._ended.popleft()
        if limits.open:
            self._collocated(measured, limits)
        elif previous_alone:
            self._block.append(measured.seconds)

    def _collocated(self, measured: ForegroundIteration, limits: BackgroundLimits) -> None:
        known = self._baseline
        self._take_block()
        if not known:
            return
        slowdown = measured.seconds / known.mean - 1
        self._slowdown.collocated(slowdown - (0.0 if self._controller is None else self._controller.drift))
        # Operators on trial are handled by the feedback.
        if self._controller is not None and not measured.trying:
            if measured.unsettled:
                self._controller_bans = limits.banned
                self._controller.forget()
            self._controller.collocated(limits.share, slowdown, len(known), known.noise)

    def _take_block(self) -> None:
        """Adds a finished block of iterations alone to the baseline."""
        if self._block and self._controller is not None:
            self._controller.alone(fmean(self._block) / self._baseline.mean - 1 if self._baseline else 0.0)
        for seconds in self._block:
            self._baseline.add(seconds)
            self._slowdown.alone(self._baseline)
        self._block.clear()

    @property
    def slowdown(self) -> Estimate | None:
        """Slowdown of collocated iterations against those alone; None until two of each are known."""
        return self._slowdown.estimate
