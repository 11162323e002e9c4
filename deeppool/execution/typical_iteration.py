"""Chooses the iteration of a run whose timeline is drawn: the one nearest to the median.

Every iteration of a run is a candidate, not those of its last round alone, which may be a single one that something
else disturbed. Its time is what the timeline shows: from the first start to the last end on any rank. The time that
one rank measured may be shorter: a rank that has received its last gradients is done, while another one still waits
for its core.
"""

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from deeppool.base.timeline import Span, Timeline
from deeppool.execution.measurements import RankSpan, iteration_spans
from deeppool.planning.plan import Plan
from deeppool.processes.managed_process import Message

KEPT = 16
"""Iterations whose spans are kept: the nearest to the median so far, as one of them will be to that of the run."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    seconds: float
    spans: list[RankSpan]
    background: list[Span]


@dataclass(slots=True)
class TypicalIteration:
    """The iteration nearest to the median of those added so far."""

    _times: list[float] = field(default_factory=list)
    """In ascending order: what is sorted already is sorted again for the next median in one pass."""
    _kept: list[_Candidate] = field(default_factory=list)
    """Of the iterations so far, in order of their distance to the median."""

    def add(self, answers: Sequence[Message], iteration: int, background: Sequence[Span] = ()) -> None:
        """Adds an iteration.

        Args:
            answers: of all ranks to the command of which it was part.
            iteration: its index in them.
            background: what the background computed meanwhile, on the ranks' clock; may be longer.
        """
        spans = iteration_spans(answers, iteration)
        # An emulated rank may have nothing to compute.
        start, end = min((span[4] for span in spans), default=0.0), max((span[5] for span in spans), default=0.0)
        cut = [
            Span(piece.gpu, piece.kind, piece.name, max(piece.start, start), min(piece.end, end))
            for piece in background
            if piece.start < end and piece.end > start
        ]
        bisect.insort(self._times, end - start)
        median = statistics.median(self._times)
        candidates = [*self._kept, _Candidate(end - start, spans, cut)]
        self._kept = sorted(candidates, key=lambda one: abs(one.seconds - median))[:KEPT]

    def timeline(self, plan: Plan) -> Timeline:
        """Returns it, from the start of its first span; at least one iteration was added."""
        chosen = self._kept[0]
        foreground = [Span(rank, kind, name, start, end) for rank, kind, _, name, start, end in chosen.spans]
        origin = min((span.start for span in foreground), default=0.0)
        spans = [
            Span(span.gpu, span.kind, span.name, span.start - origin, span.end - origin)
            for span in sorted([*foreground, *chosen.background], key=lambda span: (span.gpu, span.start))
        ]
        return Timeline(f"{plan.model}, measured, an iteration near the median", "measured", plan.gpus, tuple(spans))
