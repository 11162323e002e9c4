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
from deeppool.scheduling.governor import ForegroundIteration, Governor, together
from deeppool.scheduling.slowdown import Baseline


class Clocked(Watcher, Protocol):
    """A watcher that knows when the parts of an iteration ran on the device, which may be long after their launch."""

    def times(self) -> Mapping[Operator, float]:
        """Seconds of each operator since the last call; waits for the device."""
        ...


CPU = torch.device("cpu")
GROUP = 4
"""Iterations of which ranks tell each other at once while their governors are at ease: telling costs as much as the
rest of a governor."""
Told = tuple[ForegroundIteration, int, float | None]
"""By a rank: what it saw, and the newest bound that it has heard of, with its number."""


class ForegroundControl:
    """The governor of one rank, and the board on which its orders stand."""

    def __init__(
        self, sharing: Sharing, folder: Path, position: int, peers: Communicator, place: torch.device = CPU
    ) -> None:
        """Opens the rank's board, and wipes off what a rank before this one, that was lost, left on it.

        Args:
            sharing: the mechanisms.
            folder: of the boards; the background opens them there.
            position: of this rank's place in the run; its number, but for one that runs for all.
            peers: all ranks of the foreground, each with a governing of its own.
            place: of a tensor that they can sum up.

        What all ranks saw of an iteration is learned when a later one has ended, the next one or, while there is no
        hurry, up to the fourth: to wait for it at once would have all begin together, and cost a rank that leaves
        another one behind what it is ahead.
        """
        self._sharing = sharing
        self._peers, self._place = peers, place
        self.number = 0
        """Of the bound that is held, counted from the start."""
        self._wanted = (0, sharing.max_slowdown)
        """Number of the newest bound that this rank has heard of, and the bound."""
        self._agreed = self._wanted
        """Of the newest one that all ranks have heard of; it is held from the next iteration on."""
        self._board = SharedPage(folder, position)
        self._seen: list[ForegroundIteration] = []
        """By this rank, of the latest iterations, until it tells the others."""
        self._arriving: tuple[torch.Tensor, PendingWork] | None = None
        """What all ranks saw of those before, until it was learned."""
        self._clocked: Clocked | None = None
        self._board.clear()
        self.start_over()

    def trust(self, clocked: Clocked) -> None:
        """From now on the parts of an iteration are timed by this watcher, and told to it alone."""
        self._clocked = clocked

    def start_over(self) -> None:
        """What was learned holds no longer: the stages are others now. All ranks do it together, and had a rest."""
        self._governor = Governor(self._sharing)
        self._orders = FREE
        self._ordered: BackgroundLimits | None = None
        """What stands on the board."""
        self._iterations = 0
        """Governed ones, on every rank the same: those alone coincide."""

    def change_bound(self, bound: float, number: int) -> None:
        """From the first iteration on before which all ranks were told; what was learned of the cost is kept."""
        self._wanted = number, bound

    def told(self) -> dict[str, Any]:
        """Of the present iteration: the bound, and the background's share of the time."""
        if not self._sharing.learns:
            return {"bound": None, "share": None}
        return {"bound": self._sharing.max_slowdown, "share": self._orders.share if self._orders.open else 0.0}

    def begin(self, trainer: Trainer) -> None:
        """An iteration of the trainer begins, beside the background."""
        trainer.watcher = self._clocked or self._board
        if self._ordered is None and self._clocked is not None:
            # Iterations that nobody governed, since the last one here, were timed, too.
            self._clocked.times()
        self._hold(*self._agreed)
        self._orders = self._governor.begin(self._iterations)
        self._iterations += 1
        if self._orders != self._ordered:
            self._board.set_limits(open=self._orders.open, share=self._orders.share, banned=self._orders.banned)
            self._ordered = self._orders

    def _hold(self, number: int, bound: float | None) -> None:
        if number > self.number and bound is not None:
            self._sharing, self.number = replace(self._sharing, max_slowdown=bound), number
            self._governor.change_bound(bound)

    def end(self, seconds: float, spans: Sequence[RawSpan]) -> None:
        """It took so long, and so did its parts; on all ranks."""
        if not self._sharing.learns:
            return
        self._learn()
        self._seen.append(self._governor.observe(seconds, self._operators(spans)))
        # What it depends on is the same on all ranks.
        if len(self._seen) >= GROUP or not self._governor.at_ease or self._peers.ranks == 1:
            self._send()
        if self._peers.ranks == 1:
            self._learn()

    def _learn(self) -> None:
        """What all ranks saw of the latest iterations that they told each other of, if there are any."""
        if self._arriving is None:
            return
        rows, work = self._arriving
        work.wait()
        self._arriving = None
        for iteration in rows.tolist():
            told = _told(iteration)
            self._governor.learn(together([seen for seen, _, _ in told]))
            # A rank may hear of a bound later than another.
            _, number, bound = min(told, key=_number)
            self._agreed = number, bound

    def _operators(self, spans: Sequence[RawSpan]) -> Mapping[Operator, float]:
        if self._clocked is not None:
            return self._clocked.times()
        operators: dict[Operator, float] = defaultdict(float)
        for kind, stage, _, started, ended in spans:
            operators[kind, stage] += ended - started
        return operators

    def _send(self) -> None:
        """For each iteration a row for each rank, of which this one fills its own."""
        number, bound = self._wanted
        known = [[*seen, number, math.nan if bound is None else bound] for seen in self._seen]
        self._seen.clear()
        rows = torch.zeros(len(known), self._peers.ranks, len(known[0]), dtype=torch.float64)
        rows[:, self._peers.rank] = torch.tensor(known, dtype=rows.dtype)
        rows = rows.to(self._place)
        self._arriving = rows, self._peers.all_reduce(rows)

    def rest(self, trainer: Trainer) -> None:
        """For now that was the last: the background may do as it likes. All ranks rest together."""
        self._learn()
        if self._seen:
            self._send()
            self._learn()
        trainer.watcher = None
        self._board.clear()
        self._ordered = None

    def alone(self, seconds: Sequence[float]) -> None:
        """So long the iterations took that have ended on all ranks without a background, on cores kept awake.

        On cores that sleep in its gaps a foreground is up to a tenth slower: nothing to compare with.
        """
        # The first one finds no warm caches.
        latest = torch.tensor(seconds[1:][-Baseline.KEPT :], dtype=torch.float64)
        if not self._sharing.learns or not len(latest):
            return
        rows = torch.zeros(self._peers.ranks, len(latest), dtype=latest.dtype, device=self._place)
        rows[self._peers.rank] = latest
        self._peers.all_reduce(rows).wait()
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
            "share": self._orders.share,
            "banned": [f"{kind} of {stages[stage].name}" for kind, stage in sorted(self._orders.banned)],
        }


def _told(rows: Sequence[Sequence[float]]) -> list[Told]:
    """By each rank that is there: where the others are emulated, by this one alone."""
    return [
        (ForegroundIteration(seconds, trying > 0, unsettled > 0), int(number), None if math.isnan(bound) else bound)
        for seconds, trying, unsettled, number, bound in rows
        if seconds > 0
    ]


def _number(told: Told) -> int:
    return told[1]
