"""Advice: for each technique a verdict, the evidence, and the next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from deeppool.errors import InvalidValueError
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier
from deeppool.units import format_count, format_seconds

Verdict = Literal["yes", "no", "unknown"]
"""Whether a technique is worth it; unknown where that takes a measurement."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict on one technique."""

    technique: str
    verdict: Verdict
    gain: float | None
    """Predicted speed or throughput in times that of the baseline; None where unknown."""
    evidence: str
    """Facts behind the verdict, with their values."""
    next_step: str
    """Command or call that makes use of the technique, or that measures whether to."""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise InvalidValueError(f"verdict must be one of {', '.join(get_args(Verdict))}, got {self.verdict!r}")


@dataclass(frozen=True, slots=True)
class DataParallelTime:
    """DDP on a number of GPUs."""

    gpus: int
    seconds: float
    """Seconds of an iteration."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise InvalidValueError(f"DDP takes some time on {format_count(self.gpus, 'GPU')}, got {self.seconds:g} s")

    def __str__(self) -> str:
        return f"{format_seconds(self.seconds)} on {self.gpus}"


@dataclass(frozen=True, slots=True)
class Advice:
    """Techniques that are worth it for a model on a cluster, and those that are not."""

    KIND: ClassVar[str] = "advice"

    plan: Plan
    """The fastest plan; data parallelism where no other is faster."""
    frontier: Frontier
    """All efficient plans."""
    data_parallel: tuple[DataParallelTime, ...]
    """DDP on each number of GPUs."""
    findings: tuple[Finding, ...]
    """One per technique."""
    profile_command: str | None = None
    """Command that makes the profile which the next steps name; None where there is one already."""

    def __post_init__(self) -> None:
        if not self.data_parallel or not self.findings:
            raise InvalidValueError(
                f"advice has times of DDP and findings, got {len(self.data_parallel)} and {len(self.findings)}"
            )

    def check_totals(self) -> None:
        """Compares the totals of the plan with its layers, as the reader of files does."""
        self.plan.check_totals()

    @property
    def baseline(self) -> DataParallelTime:
        """DDP on the number of GPUs on which it is fastest."""
        return fastest_of(self.data_parallel)

    @property
    def recommended(self) -> tuple[Finding, ...]:
        """Findings with the verdict yes."""
        return tuple(finding for finding in self.findings if finding.verdict == "yes")

    def __str__(self) -> str:
        where = f"{self.plan.model}, batch {self.plan.global_batch} on {_gpus(self.plan.gpus)}"
        if self.recommended:
            names = ", ".join(f"{finding.technique} ({finding.gain:.2f}x)" for finding in self.recommended)
            return f"{where}: worth it over DDP: {names}"
        if self.baseline.gpus == 1:
            return f"{where}: train on one GPU ({format_seconds(self.baseline.seconds)})"
        return f"{where}: keep DDP ({self.baseline})"

    def explain(self) -> str:
        """Returns the verdicts with their evidence, and what to do next."""
        plan, best = self.plan, self.baseline
        more = f"{plan.single_gpu_iteration_time / best.seconds:.2f} times as fast as on one"
        if best.gpus == 1:
            more = "more make it slower"
        steps = self.recommended or tuple(each for each in self.findings if each.verdict == "unknown")
        heading = "Next:"
        if not self.recommended:
            kept = "Keep DDP" if best.gpus == plan.gpus else f"Keep DDP on {format_count(best.gpus, 'GPU')}"
            kept = "Train on one GPU" if best.gpus == 1 else kept
            heading = f"{kept}, unless a measurement says otherwise:" if steps else f"{kept}."
        return "\n".join(
            [
                f"{plan.model}, global batch {plan.global_batch}, {_gpus(plan.gpus)} ({plan.cluster.name}); layer "
                f"times {plan.provenance} for {plan.device_name}",
                f"DDP takes {', '.join(map(str, self.data_parallel))} GPUs: fastest on {best.gpus}, {more}"
                if plan.gpus > 1
                else f"One GPU takes {format_seconds(best.seconds)}",
                *card_lines(
                    self.findings,
                    [self.profile_command or "", *(each.next_step for each in steps)] if steps else [],
                    heading,
                ),
                *([] if steps else [heading]),
            ]
        )


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def card_lines(findings: Sequence[Finding], next_steps: Sequence[str], heading: str = "Next:") -> list[str]:
    """Returns a line per finding with its verdict and evidence, and below the heading the next steps, each once."""
    width = max(len(finding.technique) for finding in findings)
    steps = [f"  {step}" for step in dict.fromkeys(next_steps) if step]
    return [
        *(f"  {each.technique:<{width}}  {each.verdict:<7}  {each.evidence}" for each in findings),
        *([heading] * bool(steps)),
        *steps,
    ]


def fastest_of(data_parallel: Sequence[DataParallelTime]) -> DataParallelTime:
    """Returns the fastest, of equal ones that on the fewest GPUs."""
    return min(data_parallel, key=lambda one: (one.seconds, one.gpus))
