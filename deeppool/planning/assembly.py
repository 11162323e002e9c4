"""Assembles a Plan from the GPUs that a search chose for each layer."""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from deeppool.costs.amplification import TOLERANCE, amplification
from deeppool.planning.evaluate.alternatives import alternative_costs
from deeppool.planning.evaluate.baselines import DataParallelComparison, data_parallel_times
from deeppool.planning.evaluate.memory import MemoryModel
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.layer_assignment import LayerAssignment, deferred
from deeppool.planning.plan import LimitScope, Plan
from deeppool.profiling.table import Profile


def assemble_plan(
    profile: Profile,
    placement: Placement,
    memory: MemoryModel,
    *,
    iteration_time: float,
    optimality: str,
    search_time: float = 0.0,
    amplification_limit: float | None = None,
    limit_scope: LimitScope = "layer",
    explained: bool = False,
) -> Plan:
    """Returns the plan that runs every layer where ``placement`` has it.

    Args:
        profile: profile that the costs were made of.
        placement: GPUs and costs of each layer.
        memory: model of what each GPU holds.
        iteration_time: seconds of the plan, as the search found them.
        optimality: see :attr:`Plan.optimality`.
        search_time: seconds.
        amplification_limit: limit of the request.
        limit_scope: scope of that limit.
        explained: adds the cost of every layer's other GPU counts, computed when it is first read.
    """
    costs, graph = placement.costs, profile.graph
    cluster = costs.network.cluster
    layers = _layers(placement)
    if explained:
        layers = _with_alternatives(layers, placement, amplification_limit, limit_scope)
    gpu_seconds = placement.gpu_seconds
    far = costs.extrapolated[:, 0] | costs.extrapolated[np.arange(len(layers)), placement.options]
    extrapolated = tuple(layer.name for layer, beyond in zip(layers, far, strict=True) if beyond)
    over_limit: tuple[str, ...] = ()
    if amplification_limit is not None and limit_scope == "layer":
        most = amplification_limit * (1 + TOLERANCE)
        over_limit = tuple(layer.name for layer in layers if layer.amplification > most)
    *fewer, everywhere = data_parallel_times(profile, costs, memory)
    caveats = profile.caveats(extrapolated)
    compared = DataParallelComparison(iteration_time, (*fewer, everywhere), profile.error, capacity=cluster.memory)
    if compared.within_error:
        caveats += (
            f"the gain over data parallelism{compared.where}, {100 * (compared.gain - 1):.1f} %, is within the "
            f"median error of estimates, {100 * (profile.error or 0.0):.0f} % (measure a profile to decide)",
        )
    return Plan(
        model=graph.model,
        input_shape=graph.input_shape,
        inputs=graph.inputs,
        granularity=graph.granularity,
        parameter_bytes=graph.parameter_bytes,
        graph_fingerprint=graph.fingerprint,
        profile_fingerprint=profile.fingerprint,
        device=profile.device,
        device_name=profile.device_name,
        precision=profile.precision,
        provenance=profile.provenance,
        extrapolated_layers=extrapolated,
        cluster=cluster,
        network_model=costs.network.model,
        gpu_counts=costs.gpu_counts,
        gpus=cluster.gpus,
        global_batch=costs.global_batch,
        amplification_limit=amplification_limit,
        limit_scope=limit_scope,
        layers=layers,
        iteration_time=iteration_time,
        data_parallel_iteration_time=everywhere.seconds,
        data_parallel_on_fewer=tuple(fewer),
        data_parallel_memory=everywhere.memory,
        data_parallel_micro_steps=everywhere.micro_steps,
        single_gpu_iteration_time=costs.single_gpu_time,
        gpu_seconds=gpu_seconds,
        amplification=amplification(gpu_seconds, 1, costs.single_gpu_time),
        exempt_layers=(),
        optimality=optimality,
        search_time=search_time,
        over_limit=over_limit,
        overlap_sync=costs.overlap,
        buckets=costs.buckets,
        sync_computing=costs.network.sync_computing,
        optimizer=memory.optimizer,
        memory=memory.use([layer.gpus for layer in layers], cluster.gpus) if memory.known else (),
        caveats=caveats,
        error=profile.error,
        origin=profile.origin,
    )


def _layers(placement: Placement) -> tuple[LayerAssignment, ...]:
    costs = placement.costs
    found = []
    for index, (layer, choice) in enumerate(zip(costs.graph.layers, placement.options, strict=True)):
        times = placement.layer_times[index]
        gpus, single = placement.gpus[index], float(costs.compute[index, 0])
        total = times.reshard + float(costs.compute[index, choice]) + times.sync
        found.append(
            LayerAssignment(
                name=layer.name,
                predecessors=layer.predecessors,
                gpu_count=len(gpus),
                gpus=tuple(gpus),
                time=total,
                amplification=amplification(total, len(gpus), single),
                reshard=times.reshard,
                forward=times.forward,
                backward=times.backward,
                sync=times.sync,
                all_reduce=times.all_reduce,
                update=times.update,
                later_users=times.later_users,
                single_gpu_time=single,
            )
        )
    return tuple(found)


def _with_alternatives(
    layers: tuple[LayerAssignment, ...], placement: Placement, limit: float | None, scope: LimitScope
) -> tuple[LayerAssignment, ...]:
    spare = math.inf
    if scope == "iteration" and limit is not None:
        spare = max(0.0, limit * placement.costs.single_gpu_time - placement.gpu_seconds)
        limit = None
    return tuple(
        replace(layer, alternatives=deferred(partial(alternative_costs, placement, index, limit, spare)))
        for index, layer in enumerate(layers)
    )
