"""Which technique helps on one workload, and why: what was predicted beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.advice.record import Advice, Finding, Verdict
from deeppool.records.confidence_interval import format_ratio
from deeppool.records.measured_ways import MeasuredWays


@dataclass(frozen=True, slots=True)
class TechniqueVerdict:
    """Whether one technique helps here."""

    technique: str
    predicted: float | None
    """Gain over DDP where it is fastest; None: no profile shows it."""
    measured: float | None
    """Gain in samples per second over the strongest baseline; None: not measured."""
    half_width: float | None
    """Half of the 95 % interval of the measured gain."""
    verdict: Verdict
    why: str
    next_step: str

    def __str__(self) -> str:
        predicted = "no prediction" if self.predicted is None else f"predicted {self.predicted:.2f}"
        measured = "not measured"
        if self.measured is not None:
            measured = f"measured {format_ratio(self.measured, self.half_width)}"
        return f"{self.technique:<20} {self.verdict:<8} {predicted}, {measured}: {self.why}"


def verdicts(predicted: Advice, measured: MeasuredWays | None = None) -> tuple[TechniqueVerdict, ...]:
    """Returns a verdict on each technique of the advice.

    A measured gain decides if its interval leaves out 1; otherwise no gain was shown. What was not measured is unknown,
    with the prediction and the call that measures it.
    """
    ways = {} if measured is None else {way.name: way.technique for way in measured.ways}
    found = []
    for finding in predicted.findings:
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
    verdict: Verdict = "unknown"
    why = f"{format_ratio(gain, half_width)} times the samples per second of {over}"
    if half_width is None:
        why += "; one repetition has no interval"
    elif gain - half_width > 1:
        verdict = "yes"
    elif gain + half_width < 1:
        verdict, why = "no", f"{why}, a loss"
    else:
        verdict, why = "no", f"{why}, which shows no gain"
    if note := measured.way(name).note:
        why += f" ({note})"
    return TechniqueVerdict(
        finding.technique, finding.gain, gain, half_width, verdict, f"{why}; {finding.evidence}", finding.next_step
    )


def _baseline(name: str, measured: MeasuredWays) -> str:
    """Returns the faster one of the baseline and the way's own control, if that was measured."""
    first, control = measured.ways[0], measured.way(name).control
    rivals = [way for way in measured.ways if way is first or way.name == control]
    return max(rivals, key=lambda way: way.throughput).name
