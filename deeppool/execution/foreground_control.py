"""A foreground rank's side of sharing its device: it says what it does, and what the background beside it may do."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from deeppool.base.sharing import Sharing
from deeppool.execution.communicator import Communicator, PendingWork
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import RawSpan, Trainer, Watcher
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.governor import ForegroundIteration, Governor, combine
from deeppool.scheduling.slowdown import Baseline


class TimedWatcher(Watcher, Protocol):
    """A watcher that knows when the parts of an iteration ran on the device, which may be long after their launch."""

    def times(self) -> Mapping[Operator, float]:
        """Seconds of each operator since the last call; waits for the device."""
        ...


CPU = torch.device("cpu")
GROUP = 4
"""Iterations of which ranks tell each other at once while their governors are at ease: telling costs as much as the
rest of a governor."""
RankReport = tuple[ForegroundIteration, int, float | None]
"""By a rank: what it saw, and the newest bound that it has heard of, with its number."""


class ForegroundControl:
    """The governor of one rank, and the board on which its orders stand."""

    def __init__(
        self, sharing: Sharing, folder: Path, position: int, communicator: Communicator, place: torch.device = CPU
    ) -> None:
        """Opens the rank's board, and wipes off what a rank before this one, that was lost, left on it.

        Args:
            sharing: the mechanisms.
            folder: of the boards; the background opens them there.
            position: of this rank's place in the run; its number, but for one that runs for all.
            communicator: all ranks of the foreground, each with a governing of its own.
            place: of a tensor that they can sum up.

        What all ranks saw of an iteration is learned when a later one has ended, the next one or, while there is no
        hurry, up to the fourth: to wait for it at once would have all begin together, and cost a rank that leaves
        another one behind what it is ahead.
        """
        self._sharing = sharing
        self._communicator, self._place = communicator, place
        self.number = 0
        """Of the bound that is held, counted from the start."""
        self._requested_bound = (0, sharing.max_slowdown)
        """Number of the newest bound that this rank has heard of, and the bound."""
        self._agreed_bound = self._requested_bound
        """Of the newest one that all ranks have heard of; it is held from the next iteration on."""
        self._page = SharedPage(folder, position)
        self._unsent: list[ForegroundIteration] = []
        """By this rank, of the latest iterations, until it tells the others."""
        self._pending: tuple[torch.Tensor, PendingWork] | None = None
        """What all ranks saw of those before, until it was learned."""
        self._clocked: TimedWatcher | None = None
        self._page.clear()
        self.reset()

    def use_device_times(self, clocked: TimedWatcher) -> None:
        """From now on the parts of an iteration are timed by this watcher, and told to it alone."""
        self._clocked = clocked

    def reset(self) -> None:
        """What was learned holds no longer: the stages are others now. All ranks do it together, and had a rest."""
        self._governor = Governor(self._sharing)
        self._limits = FREE
        self._published: BackgroundLimits | None = None
        """What stands on the board."""
        self._iterations = 0
        """Governed ones, on every rank the same: those alone coincide."""

    def change_bound(self, bound: float, number: int) -> None:
        """From the first iteration on before which all ranks were told; what was learned of the cost is kept."""
        self._requested_bound = number, bound

    def told(self) -> dict[str, Any]:
        """Of the present iteration: the bound, and the background's share of the time."""
        if not self._sharing.learns:
            return {"bound": None, "share": None}
        return {"bound": self._sharing.max_slowdown, "share": self._limits.share if self._limits.open else 0.0}

    def begin(self, trainer: Trainer) -> None:
        """An iteration of the trainer begins, beside the background."""
        trainer.watcher = self._clocked or self._page
        if self._published is None and self._clocked is not None:
            # Iterations that nobody governed, since the last one here, were timed, too.
            self._clocked.times()
        self._apply_bound(*self._agreed_bound)
        self._limits = self._governor.begin(self._iterations)
        self._iterations += 1
        if self._limits != self._published:
            self._page.set_limits(open=self._limits.open, share=self._limits.share, banned=self._limits.banned)
            self._published = self._limits

    def _apply_bound(self, number: int, bound: float | None) -> None:
        if number > self.number and bound is not None:
            self._sharing, self.number = replace(self._sharing, max_slowdown=bound), number
            self._governor.change_bound(bound)

    def end(self, seconds: float, spans: Sequence[RawSpan]) -> None:
        """It took so long, and so did its parts; on all ranks."""
        if not self._sharing.learns:
            return
        self._learn()
        self._unsent.append(self._governor.observe(seconds, self._operators(spans)))
        # What it depends on is the same on all ranks.
        if len(self._unsent) >= GROUP or not self._governor.is_settled or self._communicator.ranks == 1:
            self._send()
        if self._communicator.ranks == 1:
            self._learn()

    def _learn(self) -> None:
        """What all ranks saw of the latest iterations that they told each other of, if there are any."""
        if self._pending is None:
            return
        rows, work = self._pending
        work.wait()
        self._pending = None
        for iteration in rows.tolist():
            told = _rank_reports(iteration)
            self._governor.learn(combine([seen for seen, _, _ in told]))
            # A rank may hear of a bound later than another.
            _, number, bound = min(told, key=_number)
            self._agreed_bound = number, bound

    def _operators(self, spans: Sequence[RawSpan]) -> Mapping[Operator, float]:
        if self._clocked is not None:
            return self._clocked.times()
        operators: dict[Operator, float] = defaultdict(float)
        for kind, stage, _, started, ended in spans:
            operators[kind, stage] += ended - started
        return operators

    def _send(self) -> None:
        """For each iteration a row for each rank, of which this one fills its own."""
        number, bound = self._requested_bound
        known = [[*seen, number, math.nan if bound is None else bound] for seen in self._unsent]
        self._unsent.clear()
        rows = torch.zeros(len(known), self._communicator.ranks, len(known[0]), dtype=torch.float64)
        rows[:, self._communicator.rank] = torch.tensor(known, dtype=rows.dtype)
        rows = rows.to(self._place)
        self._pending = rows, self._communicator.all_reduce(rows)

    def rest(self, trainer: Trainer) -> None:
        """For now that was the last: the background may do as it likes. All ranks rest together."""
        self._learn()
        if self._unsent:
            self._send()
            self._learn()
        trainer.watcher = None
        self._page.clear()
        self._published = None

    def alone(self, seconds: Sequence[float]) -> None:
        """So long the iterations took that have ended on all ranks without a background, on cores kept awake.

        On cores that sleep in its gaps a foreground is up to a tenth slower: nothing to compare with.
        """
        # The first one finds no warm caches.
        latest = torch.tensor(seconds[1:][-Baseline.KEPT :], dtype=torch.float64)
        if not self._sharing.learns or not len(latest):
            return
        rows = torch.zeros(self._communicator.ranks, len(latest), dtype=latest.dtype, device=self._place)
        rows[self._communicator.rank] = latest
        self._communicator.all_reduce(rows).wait()
        there = rows[:, 0] > 0
        self._governor.alone(rows[there].mean(dim=0).tolist())

    def found(self, stages: Sequence[Stage]) -> dict[str, Any]:
        """What is known by now: fields of :class:`deeppool.records.run_record.GovernorResult`."""
        estimate = self._governor.slowdown
        return {
            "slowdown": None if estimate is None else estimate.mean,
            "error": None if estimate is None else estimate.error,
            "alone": 0 if estimate is None else estimate.alone,
            "collocated": 0 if estimate is None else estimate.collocated,
            "share": self._limits.share,
            "banned": [f"{kind} of {stages[stage].name}" for kind, stage in sorted(self._limits.banned)],
        }


def _rank_reports(rows: Sequence[Sequence[float]]) -> list[RankReport]:
    """By each rank that is there: where the others are emulated, by this one alone."""
    return [
        (ForegroundIteration(seconds, trying > 0, unsettled > 0), int(number), None if math.isnan(bound) else bound)
        for seconds, trying, unsettled, number, bound in rows
        if seconds > 0
    ]


def _number(told: RankReport) -> int:
    return told[1]
