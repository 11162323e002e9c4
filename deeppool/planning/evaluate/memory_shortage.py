"""The error of a plan that does not fit into the memory of a GPU: why, and what would."""

import math
from dataclasses import replace

from deeppool.costs.amplification import TOLERANCE
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement, data_parallel
from deeppool.planning.plan import LimitScope
from deeppool.units import format_bytes, format_count


def shortage_text(
    smallest: Placement,
    memory: MemoryModel,
    capacity: int,
    limit: float | None,
    scope: LimitScope,
    *,
    certain: bool,
    side_by_side: bool,
) -> str:
    """Returns the error text: why nothing fits, and what would.

    Args:
        smallest: plan of the least memory that was found.
        memory: memory model of its layers.
        capacity: bytes of each GPU.
        limit: limit on the amplification of ``scope``.
        scope: what the limit counts.
        certain: whether no plan at all fits; else none was found to.
        side_by_side: whether branches may run on GPUs of their own.
    """
    (fullest, *_) = memory.use(smallest.gpus, smallest.costs.network.cluster.gpus)
    state = fullest.parameters + fullest.gradients + fullest.optimizer_state
    heaviest = fullest.heaviest[0]
    within = "" if limit is None else f" within amplification limit {limit:g}"
    next_step = _next_step(smallest, memory, capacity, scope, side_by_side=side_by_side)
    return (
        f"no plan of {smallest.costs.graph.model}{within} {'fits' if certain else 'was found to fit'}: in the smallest "
        f"one found GPU {fullest.gpus[0]} needs {format_bytes(fullest.total)}, "
        f"{format_bytes(fullest.total - capacity)} more than its {format_bytes(capacity)}; {format_bytes(state)} are "
        f"parameters, gradients and optimizer ({memory.optimizer}), "
        f"{format_bytes(fullest.activations + fullest.received)} activations, and layer '{heaviest.name}' takes the "
        f"most, {format_bytes(heaviest.total)} at per-GPU batch {heaviest.batch} ({next_step})"
    )


def _next_step(
    smallest: Placement, memory: MemoryModel, capacity: int, scope: LimitScope, *, side_by_side: bool
) -> str:
    """Returns a change that makes data parallelism fit, which takes the least memory of all plans in sequence."""
    costs = smallest.costs
    gpus, batch = costs.gpu_counts[-1], memory.global_batch
    everywhere = data_parallel(costs, len(costs.gpu_counts) - 1)
    if memory.peak(everywhere.gpus) <= capacity:
        of_layers = (costs.compute + costs.sync)[:, -1] * gpus / costs.compute[:, 0]
        spent = float(of_layers.max()) if scope == "layer" else everywhere.gpu_seconds / costs.single_gpu_time
        return (
            f"data parallelism on {format_count(gpus, 'GPU')} fits: an amplification limit of {_up(spent)} permits it"
        )
    if samples := memory.samples_in(capacity):
        more = format_count(-(-batch // samples), "GPU")
        steps = -(-batch // (samples * gpus))
        return (
            f"data parallelism fits from {more}, or on {gpus} up to a global batch of {samples * gpus}, such as "
            f"{-(-batch // steps)} with accumulation={steps} of the job"
        )
    too_much = "even one sample a GPU is too much for data parallelism"
    if samples := replace(memory, optimizer="sgd").samples_in(capacity):
        more = format_count(-(-batch // samples), "GPU")
        return f"{too_much}; with optimizer sgd data parallelism fits from {more}"
    # Branches on GPUs of their own divide the parameters, so a plan with them may still fit.
    certainty = "no plan was found that holds this model" if side_by_side else "only larger GPUs hold this model"
    return f"{too_much}, whatever the optimizer: {certainty}"


def _up(value: float) -> str:
    """Rounds up to hundredths, but for a limit's tolerance."""
    return f"{math.ceil(100 * value * (1 - TOLERANCE)) / 100:.10g}"
