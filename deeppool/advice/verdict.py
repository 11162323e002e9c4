"""Which technique helps on one workload, and why: what was predicted beside what was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.advice.record import Advice, Finding
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.baselines import Verdict
from deeppool.records.confidence_interval import format_ratio
from deeppool.records.measured_ways import MeasuredWays
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
    """Gain in samples per second over the strongest baseline; None: not measured.

    Of collocation: the sum of the throughputs of both jobs, each over that of the job alone on all GPUs.
    """
    half_width: float | None
    """Half of the 95 % interval of the measured gain."""
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

    A measured gain decides if its interval leaves out 1; otherwise it is unknown, as no difference was shown. So is
    what was not measured, with the prediction and the call that measures it.

    Args:
        predicted: the advice.
        measured: ways of training the same job, measured by turns.
        collocated: a run of the plan of ``measured`` with a background job.
    """
    ways = {} if measured is None else {way.name: way.technique for way in measured.ways}
    found = []
    for finding in predicted.findings:
        if finding.technique == COLLOCATION and collocated is not None and collocated.background is not None:
            found.append(_collocated(finding, measured, collocated))
            continue
        names = [name for name, technique in ways.items() if technique == finding.technique]
        found.append(_unmeasured(finding) if measured is None or not names else _judged(finding, measured, names))
    return tuple(found)


def _unmeasured(finding: Finding) -> TechniqueVerdict:
    why = f"not measured here; {finding.evidence}"
    return TechniqueVerdict(finding.technique, finding.gain, None, None, "unknown", why, finding.next_step)


def _judged(finding: Finding, measured: MeasuredWays, names: Sequence[str]) -> TechniqueVerdict:
    name = max(names, key=lambda each: measured.gain(each)[0])
    over = _baseline(name, measured)
    gain, half_width = measured.gain(name, over)
    verdict, shown = _shown(gain, half_width)
    why = f"{format_ratio(gain, half_width)} times the samples per second of {over}{shown}"
    if note := measured.way(name).note:
        why += f" ({note})"
    return TechniqueVerdict(
        finding.technique, finding.gain, gain, half_width, verdict, f"{why}; {finding.evidence}", finding.next_step
    )


def _shown(gain: float, half_width: float | None) -> tuple[Verdict, str]:
    """Returns the verdict on a measured gain, and what the interval says where that is not yes."""
    if half_width is None:
        return "unknown", "; one repetition has no interval"
    if gain - half_width > 1:
        return "yes", ""
    if gain + half_width < 1:
        return "no", ", a loss"
    return "unknown", ": no difference shown (more repetitions narrow the interval)"


def _collocated(finding: Finding, measured: MeasuredWays | None, run: RunRecord) -> TechniqueVerdict:
    """Judges both jobs together: the sum of their throughputs, each over that with all GPUs to itself.

    That is 1 for jobs that take turns. The foreground alone is the baseline of ``measured`` where the plan is one of
    its ways, else the plan.
    """
    plan = next((way.name for way in measured.ways if way.technique == "burst parallelism"), None) if measured else None
    if measured is None or plan is None:
        found = collocation_of(run)
    else:
        over = _baseline(plan, measured)
        speed, error = measured.gain(plan, over)
        found = collocation_of(run, speed=speed, error=error, over=over)
    why = f"{found.why}; {finding.evidence}"
    return TechniqueVerdict(
        finding.technique, finding.gain, found.total, found.half_width, found.verdict, why, finding.next_step
    )


@dataclass(frozen=True, slots=True)
class CollocationGain:
    """What both jobs of a run train together, each relative to that with all GPUs to itself."""

    total: float
    """Sum of both throughputs; 1 for jobs that take turns."""
    half_width: float | None
    """Half of its 95 % interval."""
    verdict: Verdict
    why: str


def collocation_of(
    run: RunRecord, *, speed: float = 1.0, error: float | None = 0.0, over: str = "the plan alone"
) -> CollocationGain:
    """Judges a run with a background job by the sum of both throughputs.

    Args:
        run: the run.
        speed: of the plan alone, relative to the baseline.
        error: half of the 95 % interval of the speed; None: unknown.
        over: name of the baseline.
    """
    background, front = run.background, run.foreground
    if background is None:
        raise InvalidValueError("the run has no background (run it with one: background=)")
    share = speed / (1 + front.slowdown)
    margins = (error, front.slowdown_margin, background.harvest_margin)
    half_width = None
    if all(margin is not None for margin in margins):
        own, slowed, harvested = (margin or 0.0 for margin in margins)
        half_width = math.hypot(share * own / speed, share * slowed / (1 + front.slowdown), harvested)
    total = share + background.harvest
    verdict, shown = _shown(total, half_width)
    why = (
        f"{format_ratio(total, half_width)} jobs' worth of training{shown}: the foreground at {share:.2f} of {over} "
        f"(mean {format_seconds(front.iteration_time.mean)} an iteration, {front.slowdown:+.0%} by the background), "
        f"the background at {background.harvest:.2f} of itself alone"
    )
    return CollocationGain(total, half_width, verdict, why)


def _baseline(name: str, measured: MeasuredWays) -> str:
    """Returns the fastest one of the baseline and the way's own controls that were measured."""
    first, controls = measured.ways[0], measured.way(name).controls
    rivals = [way for way in measured.ways if way is first or way.name in controls]
    return max(rivals, key=lambda way: way.throughput).name
