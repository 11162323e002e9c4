"""Plan of the transfers of one training iteration: which gradients, by which pattern, sent when and needed when."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.timeline import Span, Timeline, union
from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_seconds

MOST_RANKS = 65_536
"""Of a job: a timeline has a row for each."""


def _check_ranks(of: str, ranks: tuple[int, ...]) -> None:
    if not all(0 <= rank < MOST_RANKS for rank in ranks):
        raise InvalidValueError(f"the ranks of {of} must be within 0…{MOST_RANKS - 1}, got {ranks}")


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Measured compute of a part of a model: the layers up to the next one that has parameters."""

    name: str
    forward: float
    """Seconds; mean over the ranks that compute it."""
    backward: float
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_ranks(self.name, self.ranks)


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """Gradients that travel together; all times are seconds from the start of the backward pass."""

    gradients: tuple[str, ...]
    """Names of the parameters."""
    size: int
    """Bytes."""
    ranks: tuple[int, ...]
    pattern: str
    """Pattern of the all-reduce; ``library``: that of torch.distributed's own."""
    part: int
    """Position of the first part that uses the parameters."""
    ready: float
    """When the last of the gradients is complete."""
    sent: float
    done: float
    needed: float
    """When the next forward would use the first of the parameters if it waited for no transfer."""

    def __post_init__(self) -> None:
        _check_ranks("a transfer", self.ranks)


@dataclass(frozen=True, slots=True)
class TriedPlan:
    """A plan of transfers that was tried during training."""

    transfers: int
    patterns: tuple[str, ...]
    size_bound: float | None
    """As in the plan."""
    predicted: float
    """Seconds of an iteration."""
    seconds: tuple[float, ...]
    """Of each iteration by it but the first of each turn; mean over the ranks."""

    def __post_init__(self) -> None:
        if not self.seconds:
            raise InvalidValueError("a plan that was tried has measured iterations, got none")

    @property
    def typical(self) -> float:
        """Lower median of the iterations: others on the machine only lengthen them."""
        return statistics.median_low(self.seconds)

    def __str__(self) -> str:
        size = "any size" if self.size_bound is None else f"up to {format_bytes(self.size_bound)}"
        return (
            f"{format_seconds(self.typical):>9s} an iteration ({len(self.seconds)} measured, predicted "
            f"{format_seconds(self.predicted)}): {self.transfers} transfers {size} by {', '.join(self.patterns)}"
        )


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Transfers of an iteration in the order in which every rank sends them, with the predicted times.

    An iteration is taken from the start of a backward pass to the end of the next forward, parts one after the other;
    updates count for nothing.
    """

    KIND: ClassVar[str] = "transfer-plan"

    parts: tuple[PartTimes, ...]
    transfers: tuple[PlannedTransfer, ...]
    size_bound: float | None
    """Largest of the bounds on a batch of small gradients, in bytes; None: no bound."""
    gap_bound: float | None
    """Largest of the bounds on the time between its first and its last gradient, in seconds; None: no bound."""
    tried: tuple[TriedPlan, ...] = ()
    """Plans that were tried on live ranks before this one was kept; its own is first."""

    def __post_init__(self) -> None:
        if not self.compute_time > 0 or not all(0 <= each.part < len(self.parts) for each in self.transfers):
            raise InvalidValueError(
                f"a plan of transfers has parts that compute, which its transfers name, got {len(self.parts)} parts of "
                f"{self.compute_time:g} s, used by {sorted({each.part for each in self.transfers})}"
            )

    @property
    def compute_time(self) -> float:
        """Seconds of the forward and backward pass."""
        return sum(part.forward + part.backward for part in self.parts)

    @property
    def transfer_time(self) -> float:
        """Seconds during which a transfer is under way, or several at once over other ranks."""
        return sum(end - start for start, end in union((each.sent, each.done) for each in self.transfers))

    @property
    def iteration_time(self) -> float:
        """Predicted seconds of an iteration."""
        return self.forward_starts()[-1] + self.parts[-1].forward

    @property
    def utilisation(self) -> float:
        """Predicted share of an iteration in which a rank computes."""
        return self.compute_time / self.iteration_time

    @property
    def hidden_share(self) -> float:
        """Predicted share of the transfers' time behind which something computes."""
        if not self.transfer_time:
            return 1.0
        starts = self.forward_starts()
        computing = [(0.0, sum(part.backward for part in self.parts))]
        computing += [(start, start + part.forward) for start, part in zip(starts, self.parts, strict=True)]
        hidden = sum(
            max(0.0, min(end, done) - max(start, sent))
            for sent, done in union((each.sent, each.done) for each in self.transfers)
            for start, end in computing
        )
        return hidden / self.transfer_time

    def forward_starts(self) -> list[float]:
        """Returns when each part starts in the next forward, after its transfers."""
        now, starts = sum(part.backward for part in self.parts), []
        for index, part in enumerate(self.parts):
            now = max([now, *(transfer.done for transfer in self.transfers if transfer.part == index)])
            starts.append(now)
            now += part.forward
        return starts

    def timeline(self, title: str = "backward and the next forward") -> Timeline:
        """Returns the predicted iteration: compute of every rank, and its transfers beside it."""
        spans: list[Span] = []
        now = 0.0
        for part in reversed(self.parts):
            spans += [Span(rank, "backward", part.name, now, now + part.backward) for rank in part.ranks]
            now += part.backward
        for part, start in zip(self.parts, self.forward_starts(), strict=True):
            spans += [Span(rank, "forward", part.name, start, start + part.forward) for rank in part.ranks]
        for transfer in self.transfers:
            spans += [Span(rank, "sync", self.label(transfer), transfer.sent, transfer.done) for rank in transfer.ranks]
        ranks = 1 + max((span.gpu for span in spans), default=0)
        ordered = sorted(spans, key=lambda span: (span.gpu, span.start))
        return Timeline(title, "predicted", ranks, tuple(ordered))

    def label(self, transfer: PlannedTransfer) -> str:
        """Returns the name of a transfer in a timeline."""
        return f"{self.parts[transfer.part].name} by {transfer.pattern}"

    @property
    def patterns(self) -> tuple[str, ...]:
        """Different patterns of the transfers."""
        return tuple(dict.fromkeys(transfer.pattern for transfer in self.transfers))

    def table(self) -> str:
        """Formats a line per transfer, and one per plan that was tried."""
        rows = [f"{'needed by':24s}{'gradients':>10s}{'bytes':>10s}  {'pattern':24s}" + _columns(*_TIMES)]
        starts = self.forward_starts()
        for transfer in self.transfers:
            times = [getattr(transfer, name) for name in _TIMES[:-1]] + [starts[transfer.part]]
            rows.append(
                f"{self.parts[transfer.part].name:24.23s}{len(transfer.gradients):10d}"
                f"{format_bytes(transfer.size):>10s}  {transfer.pattern:24s}" + _columns(*map(format_seconds, times))
            )
        rows += [f"{'tried' if number else 'kept'}  {each}" for number, each in enumerate(self.tried)]
        return "\n".join(rows)

    def __str__(self) -> str:
        patterns = ", ".join(self.patterns)
        size = "any size" if self.size_bound is None else format_bytes(self.size_bound)
        gap = "any time" if self.gap_bound is None else format_seconds(self.gap_bound)
        return (
            f"{sum(len(transfer.gradients) for transfer in self.transfers)} gradients in {len(self.transfers)} "
            f"transfers by {patterns or 'none'} (together up to {size}, within {gap}); "
            f"predicted {format_seconds(self.iteration_time)} an iteration, {self.hidden_share:.0%} of "
            f"{format_seconds(self.transfer_time)} of transfers hidden"
            f"{f'; the fastest of {len(self.tried)} tried' if self.tried else ''}"
        )


_TIMES = ("ready", "sent", "done", "needed", "used")


def _columns(*cells: str) -> str:
    return "".join(f"{cell:>10s}" for cell in cells)
