"""Advice: for each technique a verdict, the evidence, and the next step."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from deeppool.errors import InvalidValueError
from deeppool.planning.plan import Plan
from deeppool.planning.search.frontier import Frontier
from deeppool.units import format_seconds

Verdict = Literal["yes", "no", "unknown"]
"""Whether a technique is worth it; unknown where that takes a measurement."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict on one technique."""

    technique: str
    verdict: Verdict
    gain: float | None
    """Predicted speed or throughput in times that of DDP; None where unknown."""
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
    data_parallel: tuple[tuple[int, float], ...]
    """GPU counts, and seconds of an iteration of DDP on as many."""
    findings: tuple[Finding, ...]
    """One per technique."""

    @property
    def recommended(self) -> tuple[Finding, ...]:
        """Findings with the verdict yes, the largest gain first."""
        worth = [finding for finding in self.findings if finding.verdict == "yes"]
        return tuple(sorted(worth, key=lambda finding: -(finding.gain or 0.0)))

    def __str__(self) -> str:
        best = self.recommended
        where = f"{self.plan.model}, batch {self.plan.global_batch} on {self.plan.gpus} GPUs"
        if not best:
            return f"{where}: keep DDP ({format_seconds(self.plan.data_parallel_iteration_time)} an iteration)"
        names = ", ".join(f"{finding.technique} ({finding.gain:.2f}x)" for finding in best)
        return f"{where}: worth it over DDP: {names}"

    def explain(self) -> str:
        """Returns the verdicts with their evidence, and what to do next."""
        plan = self.plan
        ddp = plan.data_parallel_iteration_time
        speedup = plan.single_gpu_iteration_time / ddp
        counts = ", ".join(f"{format_seconds(seconds)} on {gpus}" for gpus, seconds in self.data_parallel)
        lines = [
            f"{plan.model}, global batch {plan.global_batch}, {plan.gpus} GPUs ({plan.cluster.name}); layer times "
            f"{plan.provenance} for {plan.device_name}",
            f"DDP: {speedup:.2f} times as fast as one GPU, {speedup / plan.gpus:.0%} of {plan.gpus}; {counts}",
        ]
        width = max(len(finding.technique) for finding in self.findings)
        lines += [f"  {each.technique:<{width}}  {each.verdict:<7}  {each.evidence}" for each in self.findings]
        steps = self.recommended or tuple(each for each in self.findings if each.verdict == "unknown")
        heading = "Next:" if self.recommended else "Keep DDP, unless a measurement says otherwise:"
        lines += [heading, *(f"  {each.next_step}" for each in steps)]
        return "\n".join(lines)
