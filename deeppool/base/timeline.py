"""Timeline of an iteration, measured or predicted: the record that every timeline figure draws."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

SpanKind = Literal["forward", "backward", "reshard", "sync", "update", "idle", "background"]
COMPUTING: frozenset[SpanKind] = frozenset({"forward", "backward", "update"})
"""Kinds in which a rank computes; in its other kinds it mostly waits for other ranks."""
Provenance = Literal["predicted", "measured"]


@dataclass(frozen=True, slots=True)
class Span:
    """Uninterrupted activity of one GPU."""

    gpu: int
    kind: SpanKind
    name: str
    """Name of the layer, stage or job."""
    start: float
    """Seconds from the start of the iteration."""
    end: float

    @property
    def duration(self) -> float:
        """Duration in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of one iteration on every GPU; spans of one GPU and one job do not overlap."""

    KIND: ClassVar[str] = "timeline"

    title: str
    provenance: Provenance
    """Whether the times are predicted or measured; a figure that mixes the two is labelled as such."""
    gpus: int
    spans: tuple[Span, ...]
    rows: tuple[str, ...] = ()
    """Names of the rows, where they are not those of GPUs: several of one rank, for example."""

    @property
    def duration(self) -> float:
        """Seconds from the first start to the last end."""
        return max((span.end for span in self.spans), default=0.0)

    def __str__(self) -> str:
        return f"{self.title} ({self.provenance}): {self.gpus} GPUs, {len(self.spans)} spans, {self.duration:.4g} s"


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the moments that at least one interval covers, as intervals that do not overlap."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
