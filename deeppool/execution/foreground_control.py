"""Publishes a foreground rank's current phase and the limits of the background that shares its device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from deeppool.base.sharing import Sharing
from deeppool.device.transfer import PendingWork
from deeppool.execution.communicator import Communicator
from deeppool.execution.iteration_record import IterationRecord
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.processes.shared_page import SharedPage
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.governor import ForegroundIteration, Governor, combine
from deeppool.scheduling.slowdown import Baseline

CPU = torch.device("cpu")
GROUP = 4
"""Iterations whose reports ranks exchange at once while their governors are settled: an exchange costs as much as the
rest of a governor."""
RankReport = tuple[ForegroundIteration, int, float | None]
"""A rank's measurement of an iteration, and the number and value of the newest bound that it has received."""


class ForegroundControl:
    """The governor of one rank, and the shared page with the background's limits."""

    def __init__(
        self,
        sharing: Sharing,
        folder: Path,
        position: int,
        communicator: Communicator,
        device: torch.device = CPU,
        *,
        by_events: bool = False,
    ) -> None:
        """Opens the rank's shared page, and clears what a lost rank left on it.

        Args:
            sharing: the mechanisms.
            folder: folder of the shared pages; the background opens them there.
            position: index of this rank's process in the run; the rank itself, unless the other ranks are emulated.
            communicator: all ranks of the foreground, each with its own foreground control.
            device: device of the tensors that the ranks all-reduce.
            by_events: whether events of the device time the operators, and not the host's clock.

        The ranks' measurements of an iteration are combined when a later one has ended: the next one or, while the
        governors are settled, up to the fourth. Waiting at once would synchronise all ranks, and a rank that is ahead
        of another would lose its lead.
        """
        self._sharing = sharing
        self._communicator, self._device = communicator, device
        self.computes = True
        """Whether this rank computes layers. Else its iterations end at once or with an exchange, and do not count."""
        self.number = 0
        """Number of the bound that is held, counted from the start."""
        self._requested_bound = (0, sharing.max_slowdown)
        """Number and value of the newest bound that this rank has received."""
        self._agreed_bound = self._requested_bound
        """The same of the newest bound that all ranks have received; it is held from the next iteration on."""
        self._page = SharedPage(folder, position)
        self._unsent: list[ForegroundIteration] = []
        """This rank's latest measurements, until they are exchanged."""
        self._pending: tuple[torch.Tensor, PendingWork] | None = None
        """The exchange in progress: a row per iteration and rank."""
        self._by_events = by_events
        self.publishes = True
        """Whether the background reads the rank's current operator on the shared page, from another process."""
        self._page.clear()
        self.reset()

    def reset(self) -> None:
        """Discards what was learned, as the stages have changed; all ranks call it together after :meth:`pause`."""
        self._governor = Governor(self._sharing, by_events=self._by_events)
        self._limits = FREE
        self._published: BackgroundLimits | None = None
        """Limits on the shared page."""
        self._iterations = 0
        """Controlled iterations; equal on every rank, so that iterations alone coincide."""

    def change_bound(self, bound: float, number: int) -> None:
        """Holds another bound as soon as all ranks have received it; keeps what was learned of the cost."""
        self._requested_bound = number, bound

    def step_fields(self) -> dict[str, Any]:
        """Returns the bound and the background's share of the time in the present iteration."""
        if not self._sharing.learns:
            return {"bound": None, "share": None}
        return {"bound": self._sharing.max_slowdown, "share": self._limits.share if self._limits.open else 0.0}

    def begin(self, trainer: Trainer) -> None:
        """Starts an iteration of the trainer beside the background."""
        trainer.watcher = self._page if self.publishes else None
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

    def end(self, record: IterationRecord) -> None:
        """Learns from the next iteration of those under control whose times are known; all ranks call it."""
        if not self._sharing.learns:
            return
        self._finish_exchange()
        if (measured := record.next_times()) is not None:
            self._record(*measured)

    def _record(self, seconds: float, operators: Mapping[Operator, float]) -> None:
        """Records the earliest iteration that is not, and starts an exchange when it is time; all ranks call it."""
        measured = self._governor.observe(seconds, operators)
        self._unsent.append(measured if self.computes else measured._replace(seconds=0.0))
        # The condition has the same value on all ranks.
        if len(self._unsent) >= GROUP or not self._governor.is_settled or self._communicator.ranks == 1:
            self._start_exchange()
        if self._communicator.ranks == 1:
            self._finish_exchange()

    def _finish_exchange(self) -> None:
        """Waits for the exchange in progress, if any, and learns from it."""
        if self._pending is None:
            return
        rows, work = self._pending
        work.wait()
        self._pending = None
        for iteration in rows.tolist():
            reports = _rank_reports(iteration)
            self._governor.learn(combine([measured for measured, _, _ in reports]))
            # A rank may receive a bound later than another.
            self._agreed_bound = min(((number, bound) for _, number, bound in reports), key=itemgetter(0))

    def _start_exchange(self) -> None:
        """Starts an all-reduce of a row per iteration and rank, of which this rank fills its own."""
        number, bound = self._requested_bound
        known = [[*measured, number, math.nan if bound is None else bound] for measured in self._unsent]
        self._unsent.clear()
        rows = torch.zeros(len(known), self._communicator.ranks, len(known[0]), dtype=torch.float64)
        rows[:, self._communicator.rank] = torch.tensor(known, dtype=rows.dtype)
        rows = rows.to(self._device)
        self._pending = rows, self._communicator.all_reduce(rows)

    def pause(self, trainer: Trainer, record: IterationRecord) -> None:
        """Ends control for now and lifts all limits; all ranks call it together."""
        self._finish_exchange()
        if self._sharing.learns and (measured := record.next_times(last=True)) is not None:
            self._record(*measured)
            self._finish_exchange()
        if self._unsent:
            self._start_exchange()
            self._finish_exchange()
        trainer.watcher = None
        self._page.clear()
        self._published = None

    def record_alone(self, seconds: Sequence[float]) -> None:
        """Records the times of iterations without a background, with cores kept awake; all ranks call it.

        On cores that sleep in its gaps a foreground is up to a tenth slower and no baseline for collocated iterations.
        """
        # The first one has cold caches.
        latest = torch.tensor(seconds[1:][-Baseline.KEPT :], dtype=torch.float64)
        if not self._sharing.learns or not len(latest):
            return
        rows = torch.zeros(self._communicator.ranks, len(latest), dtype=latest.dtype, device=self._device)
        if self.computes:
            rows[self._communicator.rank] = latest
        self._communicator.all_reduce(rows).wait()
        present = rows[:, 0] > 0
        self._governor.alone(rows[present].mean(dim=0).tolist())

    def results(self, stages: Sequence[Stage]) -> dict[str, Any]:
        """Returns the fields of :class:`deeppool.records.run_record.GovernorResult`."""
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
    """Decodes the reports of all ranks that are present and compute layers; others leave zeros."""
    return [
        (ForegroundIteration(seconds, trying > 0, unsettled > 0), int(number), None if math.isnan(bound) else bound)
        for seconds, trying, unsettled, number, bound in rows
        if seconds > 0
    ]
