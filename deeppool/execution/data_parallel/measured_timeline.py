"""A measured iteration as a timeline: a backward, its transfers, and the next forward of one rank."""

from collections.abc import Sequence

from torch import nn

from deeppool.base.timeline import Span, Timeline
from deeppool.execution.data_parallel.iteration_times import IterationTimes, Moments
from deeppool.execution.data_parallel.planned_run import SentTransfer
from deeppool.records.transfer_plan import TransferPlan


def measured_timeline(
    plan: TransferPlan,
    times: IterationTimes,
    parts: Sequence[nn.Module],
    owned: Sequence[Sequence[nn.Parameter]],
    iterations: tuple[Moments, Moments],
    transfers: Sequence[SentTransfer],
) -> Timeline:
    """Returns the timeline of one rank, which is GPU 0 in it.

    Args:
        plan: the plan that was performed.
        times: clock of the moments.
        parts: modules of the plan's parts.
        owned: parameters of each part.
        iterations: moments of an iteration, whose backward is shown, and of the next, whose forward is.
        transfers: those of the gradients of that backward.
    """
    before, after = iterations
    backward = times.backwards(before, owned)
    forward = times.forwards(after, parts)
    origin = min(start for start, _ in backward)
    spans = [
        *(
            Span(0, "backward", part.name, start - origin, end - origin)
            for part, (start, end) in zip(plan.parts, backward, strict=True)
        ),
        *(
            Span(0, "forward", part.name, start - origin, end - origin)
            for part, (start, end) in zip(plan.parts, forward, strict=True)
        ),
        *(
            Span(0, "sync", plan.label(plan.transfers[position]), began - origin, ended - origin)
            for position, began, ended in transfers
        ),
    ]
    ordered = sorted((span for span in spans if span.duration > 0), key=lambda span: span.start)
    return Timeline("backward and the next forward of a rank", "measured", 1, tuple(ordered))
