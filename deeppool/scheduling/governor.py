"""What the background may do in each iteration of the foreground; one beside every rank of the foreground.

Two loops, each by itself: feedback bans operators that suffer, a controller holds the bound on the mean slowdown.
Both compare with iterations alone: the controller with those of a run's phase alone, too. Which are made so
depends on the number of the iteration and on the share, so they coincide on all ranks: a rank waits for the others, and
is alone only when all are.

Feedback is each rank's own matter, the share is not. A rank that gives its background less of the time still waits for
the others', and would find its own background innocent. So every rank's controller learns the same (see
X
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from deeppool.base.sharing import Sharing
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.controller import Controller
from deeppool.scheduling.feedback import Feedback
from deeppool.scheduling.slowdown import Baseline, Estimate, Slowdown

__all__ = ["BackgroundLimits", "Estimate", "ForegroundIteration", "Governor", "Operator", "combine", "is_alone"]

BLOCK = 4
"""Iterations alone in a row, of which the first one is not measured."""
DENSE = 24
"""Iterations at the start, of which every other block is alone: what is learned there must last for a while."""
SPARSE = 288
"""Iterations of which one block is alone later: 1.4 %."""
CLOSE = 48
"""The same where it is worth more: while the controller is not at ease."""


def is_alone(iteration: int, *, closely: bool = False) -> bool:
    """Whether an iteration is without background.

    Closely: a share that is held is as good as what it was compared with, and a training becomes faster while it warms
    up, so what was learned of its first iterations would hold the bound too loosely. A background that is free need not
    pay for that.
    """
    return iteration % (2 * BLOCK if iteration < DENSE else CLOSE if closely else SPARSE) < BLOCK


class ForegroundIteration(NamedTuple):
    """Of an iteration on one rank, what the share depends on."""

    seconds: float
    trying: bool = False
    """Whether an operator is on trial, at the start or after a ban: how slow it was says little of what comes."""
    unsettled: bool = False
    """Whether other operators are banned than when the controller last learned."""


def combine(seen: Sequence[ForegroundIteration]) -> ForegroundIteration:
    """What several ranks saw of one iteration."""
    return ForegroundIteration(
        fmean(one.seconds for one in seen), any(one.trying for one in seen), any(one.unsettled for one in seen)
    )


class Governor:
    """Decides for one rank; it learns after each iteration: :meth:`observe`, :meth:`learn`, or :meth:`end` for both."""

    def __init__(self, sharing: Sharing) -> None:
        """Without feedback and a bound it forbids nothing and measures nothing."""
        self._feedback = None if sharing.feedback is None else Feedback(sharing.feedback)
        self._cautious = sharing.priority == "normal" and sharing.share is None
        self._controller = self._make_controller(sharing.max_slowdown)
        self._baseline = Baseline()
        self._block: deque[float] = deque(maxlen=Baseline.KEPT)
        """Seconds of the latest iterations alone, until the next one beside a background."""
        self._slowdown = Slowdown()
        self._controller_bans = frozenset[Operator]()
        """Bans at which the controller's evidence was found."""
        self._iteration = 0
        self._previous_alone = False
        """Whether the iteration before was alone, so that this one finds no pieces in flight and no cold cache."""
        self._limits = FREE
        self._ended: deque[tuple[BackgroundLimits, bool]] = deque()
        """Iterations that nothing was learned of yet: orders, and whether the one before was alone."""

    def change_bound(self, bound: float) -> None:
        """Holds another bound from the next iteration on; :attr:`slowdown` is then of what comes.

        Iterations alone, and what a share of the time costs, are what they were.
        """
        if self._controller is None:
            self._controller = self._make_controller(bound)
        else:
            self._controller.change_bound(bound)
        self._slowdown = self._slowdown.without_collocated()

    def _make_controller(self, bound: float | None) -> Controller | None:
        return None if bound is None else Controller(bound, cautious=self._cautious)

    def begin(self, iteration: int) -> BackgroundLimits:
        """Orders for an iteration; its number counts from the start of the run and is the same on every rank."""
        self._iteration = iteration
        if self._feedback is None and self._controller is None:
            return FREE
        banned = frozenset[Operator]() if self._feedback is None else self._feedback.banned(iteration)
        share = 1.0 if self._controller is None else self._controller.share
        self._previous_alone = not self._limits.open
        self._limits = BackgroundLimits(not is_alone(iteration, closely=self._needs_baseline), share, banned)
        return self._limits

    @property
    def _needs_baseline(self) -> bool:
        return self._controller is not None and self._controller.needs_baseline

    @property
    def is_settled(self) -> bool:
        """Whether enough is known and nothing speaks against the background: what is learned may come late."""
        return self._iteration >= DENSE and (self._controller is None or self._controller.is_settled)

    def end(self, seconds: float, operators: Mapping[Operator, float]) -> None:
        """The iteration is over: what it took, and each operator in it; of a rank by itself."""
        self.learn(self.observe(seconds, operators))

    def alone(self, seconds: Sequence[float]) -> None:
        """So long iterations took while there was no background to govern, its cores awake: the same on all ranks."""
        self._block += seconds

    def observe(self, seconds: float, operators: Mapping[Operator, float]) -> ForegroundIteration:
        """The iteration is over on this rank; returns what all ranks should :meth:`learn` :func:`combine`."""
        if self._limits is FREE:
            return ForegroundIteration(seconds)
        self._ended.append((self._limits, self._previous_alone))
        if self._feedback is None:
            return ForegroundIteration(seconds)
        if self._limits.open:
            self._feedback.collocated(self._iteration, operators)
        elif self._previous_alone:
            self._feedback.alone(operators)
        return ForegroundIteration(
            seconds, self._feedback.trying(self._iteration), self._limits.banned != self._controller_bans
        )

    def learn(self, seen: ForegroundIteration) -> None:
        """The earliest iteration of which nothing was learned is over on every rank; all ranks learn the same."""
        if not self._ended:
            return
        limits, previous_alone = self._ended.popleft()
        if limits.open:
            self._collocated(seen, limits)
        elif previous_alone:
            self._block.append(seen.seconds)

    def _collocated(self, seen: ForegroundIteration, limits: BackgroundLimits) -> None:
        known = self._baseline
        self._take_block()
        if not known:
            return
        slowdown = seen.seconds / known.mean - 1
        self._slowdown.collocated(slowdown - (0.0 if self._controller is None else self._controller.drift))
        # An operator on trial is left to the feedback.
        if self._controller is not None and not seen.trying:
            if seen.unsettled:
                self._controller_bans = limits.banned
                self._controller.forget()
            self._controller.collocated(limits.share, slowdown, len(known), known.noise)

    def _take_block(self) -> None:
        """The iterations alone that have just ended, if some have."""
        if self._block and self._controller is not None:
            self._controller.alone(fmean(self._block) / self._baseline.mean - 1 if self._baseline else 0.0)
        for seconds in self._block:
            self._baseline.add(seconds)
            self._slowdown.alone(self._baseline)
        self._block.clear()

    @property
    def slowdown(self) -> Estimate | None:
        """Of the collocated iterations so far against those alone; None until two of each are known."""
        return self._slowdown.estimate
