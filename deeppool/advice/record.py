"""Advice: for each technique a verdict, the evidence, and the next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.baselines import Verdict
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier
from deeppool.units import format_count, format_seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict on one technique."""

    technique: str
    verdict: Verdict
    gain: float | None
    """Predicted speed or throughput in times that of the baseline; None where unknown, or where DDP does not fit."""
    evidence: str
    """Facts behind the verdict, with their values."""
    next_step: str
    """Command or call that makes use of the technique, or that measures whether to."""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise InvalidValueError(f"verdict must be one of {', '.join(get_args(Verdict))}, got {self.verdict!r}")


@dataclass(frozen=True, slots=True)
class Advice:
    """Techniques that are worth it for a model on a cluster, and those that are not."""

    KIND: ClassVar[str] = "advice"

    plan: Plan
    """The fastest plan; data parallelism where no other is faster."""
    frontier: Frontier
    """All efficient plans."""
    findings: tuple[Finding, ...]
    """One per technique."""
    profile_command: str | None = None
    """Command that makes the profile which the next steps name; None where there is one already."""

    def __post_init__(self) -> None:
        if not self.findings:
            raise InvalidValueError("advice has findings, got none")

    def check_totals(self) -> None:
        """Compares the totals of the plan with its layers, as the reader of files does."""
        self.plan.check_totals()

    @property
    def recommended(self) -> tuple[Finding, ...]:
        """Findings with the verdict yes."""
        return tuple(finding for finding in self.findings if finding.verdict == "yes")

    def __str__(self) -> str:
        where = f"{self.plan.model}, batch {self.plan.global_batch} on {format_count(self.plan.gpus, 'GPU')}"
        compared = self.plan.comparison
        if self.recommended:
            names = ", ".join(
                each.technique if each.gain is None else f"{each.technique} ({each.gain:.2f}x)"
                for each in self.recommended
            )
            return f"{where}: worth it over DDP: {names}"
        if compared.fastest.gpus == 1:
            return f"{where}: train on one GPU ({format_seconds(compared.fastest.seconds)})"
        return f"{where}: keep DDP ({compared.fastest})"

    def explain(self) -> str:
        """Returns the verdicts with their evidence, and what to do next."""
        plan, compared = self.plan, self.plan.comparison
        best, where = compared.fastest, f"{format_count(plan.gpus, 'GPU')} ({plan.cluster.name})"
        steps = self.recommended or tuple(each for each in self.findings if each.verdict == "unknown")
        heading = "Next:"
        if not self.recommended:
            kept = "Train on one GPU" if best.gpus == 1 else f"Keep DDP{compared.where}"
            heading = f"{kept}, unless a measurement says otherwise:" if steps else f"{kept}."
        return "\n".join(
            [
                f"{plan.model}, global batch {plan.global_batch}, {where}; layer times {plan.provenance} for "
                f"{plan.device_name}",
                self._baseline() if plan.gpus > 1 else f"One GPU takes {format_seconds(best.seconds)}",
                *(f"Caution: {text}" for text in self.frontier.caveats),
                *card_lines(
                    self.findings,
                    [self.profile_command or "", *(each.next_step for each in steps)] if steps else [],
                    heading,
                ),
                *([] if steps else [heading]),
            ]
        )

    def _baseline(self) -> str:
        """Returns what DDP takes on each number of GPUs on which it fits, and where it is fastest."""
        compared, alone = self.plan.comparison, self.plan.single_gpu_iteration_time
        best = compared.fastest
        times = f"{', '.join(map(str, compared.fitting or compared.data_parallel))} GPUs"
        if not compared.fitting:
            return f"DDP would take {times}, but {compared.too_large}"
        more = f", {alone / best.seconds:.2f} times as fast as on one"
        if compared.accumulation or compared.too_large:
            more = "".join(f"; {text}" for text in (compared.accumulation, compared.too_large) if text)
        elif best.gpus == 1:
            more = ", more make it slower"
        return f"DDP takes {times}: fastest on {best.gpus}{more}"


def card_lines(findings: Sequence[Finding], next_steps: Sequence[str], heading: str = "Next:") -> list[str]:
    """Returns a line per finding with its verdict and evidence, and below the heading the next steps, each once."""
    width = max(len(finding.technique) for finding in findings)
    steps = [f"  {step}" for step in dict.fromkeys(next_steps) if step]
    return [
        *(f"  {each.technique:<{width}}  {each.verdict:<7}  {each.evidence}" for each in findings),
        *([heading] * bool(steps)),
        *steps,
    ]
