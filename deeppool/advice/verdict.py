"""Which technique helps on one workload, and why: what was predicted beside what was measured."""

import math
from dataclasses import dataclass

from deeppool.advice.record import Advice
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.baselines import Verdict
from deeppool.records.confidence_interval import format_with_interval
from deeppool.records.measured_ways import Lead, MeasuredWays, shown
from deeppool.records.run_record import RunRecord
from deeppool.units import format_seconds

COLLOCATION = "collocation"


@dataclass(frozen=True, slots=True)
class TechniqueVerdict:
    """Whether one technique helps here."""

    technique: str
    predicted: float | None
    """Gain over DDP where it is fastest; None: no profile shows it."""
    measured: float | None
    """Gain in samples per second over the fastest control; None: not measured.

    Of collocation: the sum of the throughputs of both jobs, each over that of the job alone on all GPUs.
    """
    low: float | None
    """Ends of the 95 % interval of the measured gain."""
    high: float | None
    verdict: Verdict
    why: str
    next_step: str

    def __str__(self) -> str:
        predicted = "no prediction" if self.predicted is None else f"predicted {self.predicted:.2f}"
        measured = "" if self.measured is None else "measured "
        return f"{self.technique:<20} {self.verdict:<8} {predicted}, {measured}{self.why}"


def verdicts(
    predicted: Advice, measured: MeasuredWays | None = None, collocated: RunRecord | None = None
) -> tuple[TechniqueVerdict, ...]:
    """Returns a verdict on each technique of the advice.

    A measured lead over all controls decides if its interval leaves out 1 (:class:`Lead`); otherwise it is unknown, as
    no difference was shown. So is what was not measured, with the prediction and the call that measures it.

    Args:
        predicted: the advice.
        measured: ways of training the same job, measured by turns.
        collocated: a run of the plan of ``measured`` with a background job.
    """
    found = []
    for finding in predicted.findings:
        technique, leads = finding.technique, [] if measured is None else _leads(measured, finding.technique)
        decided: tuple[float | None, float | None, float | None, Verdict] = (None, None, None, "unknown")
        why = "not measured here"
        if technique == COLLOCATION and collocated is not None and collocated.background is not None:
            both = _collocated(measured, collocated)
            decided, why = (both.total, both.low, both.high, both.verdict), both.why
        elif leads:
            lead, note = max(leads, key=lambda each: each[0].ratio)
            decided = (lead.ratio, lead.low, lead.high, lead.verdict)
            why = f"{lead} ({note})" if note else str(lead)
        found.append(
            TechniqueVerdict(technique, finding.gain, *decided, f"{why}; {finding.evidence}", finding.next_step)
        )
    return tuple(found)


def _leads(measured: MeasuredWays, technique: str) -> list[tuple[Lead, str]]:
    """Returns the lead and the note of every way that performs a technique."""
    found = [(measured.lead(way.name), way.note) for way in measured.ways if way.technique == technique]
    return [(lead, note) for lead, note in found if lead is not None]


def _collocated(measured: MeasuredWays | None, run: RunRecord) -> "CollocationGain":
    """Judges both jobs together: the sum of their throughputs, each over that with all GPUs to itself.

    That is 1 for jobs that take turns, and more where a control leaves ranks to the second job, which then has them to
    itself. The foreground alone is the fastest control of ``measured`` where the plan is one of its ways, else the
    plan.
    """
    leads = [] if measured is None else _leads(measured, "burst parallelism")
    if measured is None or not leads:
        return collocation_of(run)
    lead = leads[0][0]
    rival = Rival()
    for way in measured.controls(""):
        alone = measured.gain(way.name, lead.over)
        total = alone[0] + way.idle_ranks / measured.ranks
        if way.idle_ranks and total > rival.total:
            rival = Rival(f"{way.name} with the second job on the others", total, _half_width(*alone))
    error = _half_width(lead.ratio, lead.low, lead.high)
    return collocation_of(run, speed=lead.ratio, error=error, over=lead.over, rival=rival)


def _half_width(ratio: float, low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else max(high - ratio, ratio - low)


@dataclass(frozen=True, slots=True)
class Rival:
    """What two jobs train by what collocation has to beat, each relative to that with all GPUs to itself."""

    name: str = "jobs that take turns"
    total: float = 1.0
    half_width: float | None = 0.0
    """Half of its 95 % interval; None: unknown."""


@dataclass(frozen=True, slots=True)
class CollocationGain:
    """What both jobs of a run train together, each relative to that with all GPUs to itself."""

    total: float
    """Sum of both throughputs; 1 for jobs that take turns."""
    low: float | None
    """Ends of its 95 % interval."""
    high: float | None
    verdict: Verdict
    why: str


def collocation_of(
    run: RunRecord,
    *,
    speed: float = 1.0,
    error: float | None = 0.0,
    over: str = "the plan alone",
    rival: Rival | None = None,
) -> CollocationGain:
    """Judges a run with a background job by the sum of both throughputs.

    It has to beat jobs that take turns, the second job on ranks that the plan never uses, and what is given.

    Args:
        run: the run.
        speed: of the plan alone, relative to the baseline.
        error: half of the 95 % interval of the speed; None: unknown.
        over: name of the baseline.
        rival: what else it has to beat.
    """
    background, front = run.background, run.foreground
    if background is None:
        raise InvalidValueError("the run has no background (run it with one: background=)")
    share = speed / (1 + front.slowdown)
    left = 1 - len({gpu for stage in run.stages for gpu in stage.gpus}) / run.ranks
    rivals = [Rival()] if rival is None else [Rival(), rival]
    if left > 0 and run.stages and run.emulated_rank is None:
        rivals.append(Rival("the plan with the second job on the ranks that it never uses", speed + left, error))
    margins = (error, front.slowdown_margin, background.harvest_margin)
    total, half_width = share + background.harvest, None
    if all(margin is not None for margin in margins):
        own, slowed, harvested = (margin or 0.0 for margin in margins)
        half_width = math.hypot(share * own / speed, share * slowed / (1 + front.slowdown), harvested)
    judged = [(each, *_beside(total, half_width, each)) for each in rivals]
    # A loss to one is a loss, also where another one, whose prediction is too uncertain to tell, may be better still.
    best, verdict, words = max(judged, key=lambda each: (each[1] == "no", each[0].total))
    low, high = None, None
    if half_width is not None and best.half_width is not None:
        low, high = total - half_width, total + half_width
    why = (
        f"{format_with_interval(total, low, high)} jobs' worth of training, beside {best.total:.2f} by {best.name}"
        f"{words}: the foreground at {share:.2f} of {over} (mean {format_seconds(front.iteration_time.mean)} an "
        f"iteration, {front.slowdown:+.0%} by the background), the background at {background.harvest:.2f} of itself "
        f"alone at its batch of {background.batch}"
    )
    return CollocationGain(total, low, high, verdict, why)


def _beside(total: float, half_width: float | None, rival: Rival) -> tuple[Verdict, str]:
    """Judges a sum of throughputs, with half of its 95 % interval, beside one rival."""
    if half_width is None or rival.half_width is None:
        return shown(None, None)
    both = math.hypot(half_width, rival.half_width)
    return shown((total - both) / rival.total, (total + both) / rival.total)
