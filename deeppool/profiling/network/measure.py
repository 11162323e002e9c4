"""Measurement of a cluster's links and all-reduces between ranks.

On one machine the ranks are started here; on several nodes torchrun starts them, and each calls
:func:`join_measurement`.
"""

import datetime
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.base.run_registry import registered
from deeppool.cluster.cluster import Cluster, Link
from deeppool.cluster.measured_network import AllReduce, Curve, MeasuredNetwork, ScheduleTimes
from deeppool.collectives.patterns import LIBRARY
from deeppool.collectives.perform.process_group import LOOPBACK_INTERFACE, init_process_group, use_interface
from deeppool.device.environment import package_versions
from deeppool.device.find import find_device
from deeppool.device.kinds import KINDS, find_kind
from deeppool.device.protocol import Device
from deeppool.errors import InvalidValueError, RunError
from deeppool.job import Progress
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder, report_start
from deeppool.profiling.network.gradient_copies import copy_seconds_per_byte
from deeppool.profiling.network.patterns import (
    ELEMENT_BYTES,
    METHOD,
    Pattern,
    RankContext,
    group_sizes,
    measure_patterns,
)
from deeppool.units import format_bytes

SIZES = tuple(2**exponent for exponent in range(2, 27))
"""Message sizes in bytes: 4 bytes to 64 MiB."""
SECONDS = 30.0
START_TIMEOUT = 300.0
"""Seconds for importing torch and the rendezvous."""
SILENCE_TIMEOUT = 180.0
"""Seconds without progress after which a rank counts as hung."""
RANK_BYTES = 300 * 2**20
"""Memory of a rank without its buffers, for the interpreter and torch."""

Backend = Literal["auto", "gloo", "nccl"]


@interruptible
@typed
@registered
def measure_network(
    ranks: int | None = None,
    *,
    backend: Backend = "auto",
    sizes: Sequence[int] = SIZES,
    seconds: float = SECONDS,
    schedules: bool = False,
    name: str = "measured",
    on_progress: Progress | None = None,
) -> Cluster:
    """Starts ranks on this machine and measures transfers and all-reduces between them.

    Args:
        ranks: number of processes; by default that of GPUs or cores, at least two.
        backend: ``gloo`` measures CPU ranks, each pinned to a core, ``nccl`` ranks with a GPU each; ``auto`` chooses
            NCCL where there are GPUs.
        sizes: message sizes in bytes, multiples of four.
        seconds: time limit over all patterns, without start-up.
        schedules: whether to measure the all-reduce by every schedule, too, so that trainings choose the fastest by
            measurement; else they choose by what the transfers of each schedule cost.
        name: name of the cluster.
        on_progress: called with a description of what is being measured and the completed fraction.

    Raises:
        DeviceUnavailableError: NCCL was asked for where there is no GPU.
        InvalidValueError: fewer than two ranks, or sizes that cannot be measured.
        RunError: this machine has too few GPUs or too little memory; or no bandwidth shows at these sizes.
        RankFailedError: a rank died or hung; every process has ended by then.
    """
    device = _device(backend)
    wanted = _checked(sizes, seconds)
    count = max(2, device.count) if ranks is None else ranks
    _check_capacity(count, device, wanted[-1])
    report = on_progress or (lambda what, share: None)
    # The folder is kept to the end: each pattern's group has its rendezvous in it.
    with private_folder() as folder, RankGroup(LocalLauncher(device.kind, count)) as group:
        report("starting", 0.0)
        for rank in range(count):
            group.start("deeppool.profiling.network.rank").send(
                "setup",
                rank=rank,
                ranks=count,
                device=device.kind,
                sizes=wanted,
                seconds=seconds,
                schedules=schedules,
                rendezvous=str(folder / "rendezvous"),
            )
        group.collect("ready", START_TIMEOUT, "while it started", on_wait=report_start(report))
        answers = group.collect(
            "done",
            SILENCE_TIMEOUT,
            "while the network was measured",
            lambda message: report(message["what"], message["share"]),
        )
    return _cluster(_curves(answers[0]["curves"]), answers[0]["copying"], RankContext(0, count, count), device, name)


def join_measurement(
    *,
    backend: Backend = "auto",
    sizes: Sequence[int] = SIZES,
    seconds: float = SECONDS,
    schedules: bool = False,
    name: str = "measured",
    on_progress: Progress | None = None,
) -> Cluster | None:
    """Measures like :func:`measure_network`; called by every rank that torchrun started, on one node or several.

    Returns:
        The cluster on rank 0, None on the others.
    """
    import torch
    import torch.distributed as dist

    device = _device(backend)
    wanted = _checked(sizes, seconds)
    context = RankContext(*(int(os.environ[variable]) for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
    _check_capacity(context.ranks, device, wanted[-1], context.per_node)
    device.select(context.local)
    if context.ranks == context.per_node:
        use_interface(LOOPBACK_INTERFACE)
    init_process_group(device, timeout=timedelta(seconds=120 + seconds))
    try:
        per_node = torch.tensor([context.per_node, -context.per_node], device=device.torch_device(context.local))
        dist.all_reduce(per_node, dist.ReduceOp.MAX)
        most, fewest = int(per_node[0]), -int(per_node[1])
        if most != fewest:
            raise RunError(f"nodes have {fewest} to {most} ranks, a cluster's nodes are equal (start as many on each)")
        report = on_progress or (lambda what, share: None)
        return measure_joined(context, device, sizes, seconds=seconds, schedules=schedules, name=name, report=report)
    finally:
        dist.destroy_process_group()


def measure_joined(
    context: RankContext,
    device: Device,
    sizes: Sequence[int] = SIZES,
    *,
    seconds: float = SECONDS,
    schedules: bool = False,
    name: str = "measured",
    report: Progress = lambda what, share: None,
) -> Cluster | None:
    """Measures like :func:`measure_network` between ranks that have initialised torch.distributed; all call it.

    Returns:
        The cluster on rank 0, None on the others.
    """
    rounds = context.rounds(schedules=schedules)
    curves = measure_patterns(rounds, context, device, _checked(sizes, seconds), seconds, report)
    copying = copy_seconds_per_byte(device)
    return _cluster(curves, copying, context, device, name) if curves else None


def _device(backend: str) -> Device:
    kinds = {"auto": "auto"} | {kind.backend: kind.name for kind in KINDS.values() if not kind.emulated}
    if backend not in kinds:
        raise InvalidValueError(f"backend must be one of {', '.join(kinds)}, got '{backend}'")
    return find_device(kinds[backend], instead="--backend gloo")


def _checked(sizes: Sequence[int], seconds: float) -> tuple[int, ...]:
    sizes = [whole_number("sizes", size, None) for size in sizes]
    wanted = tuple(sorted(set(sizes)))
    if len(wanted) < 2 or wanted[0] < 1 or any(size % ELEMENT_BYTES for size in wanted):
        raise InvalidValueError(
            f"sizes must be at least two multiples of {ELEMENT_BYTES} bytes, got {list(sizes)} "
            "(for example 4,4096,1048576,67108864)"
        )
    positive_number("seconds", seconds)
    return wanted


def _check_capacity(ranks: int, device: Device, largest: int, here: int | None = None) -> None:
    """Raises if the ranks, or those of them on this machine, cannot start."""
    import psutil

    here = here or ranks
    whole_number("ranks", ranks, 2, note="a network is between ranks")
    if find_kind(device.kind).on_gpus and here > device.count:
        raise RunError(
            f"{here} NCCL ranks need {here} GPUs, this machine has {device.count} "
            "(fewer ranks, or backend gloo for the CPU)"
        )
    needed, available = here * (RANK_BYTES + 2 * largest), psutil.virtual_memory().available
    if needed > available:
        raise RunError(
            f"{here} ranks with buffers of {format_bytes(largest)} need about {format_bytes(needed)} of memory, "
            f"{format_bytes(available)} are available (fewer ranks, or smaller sizes)"
        )


def _curves(found: Any) -> list[Curve]:
    from pydantic import TypeAdapter

    return TypeAdapter(list[Curve]).validate_python(found)


def _cluster(curves: list[Curve], copying: float, context: RankContext, device: Device, name: str) -> Cluster:
    """Builds the cluster from the curves, which are in the order of :meth:`RankContext.rounds`."""
    count = len(context.patterns())
    found = dict(zip(context.patterns(), curves[:count], strict=True))
    candidates = [pattern for alike in context.candidates() for pattern in alike] if curves[count:] else []
    near = (0, 1) if context.per_node > 1 else None
    far = (0, context.per_node) if context.ranks > context.per_node else None

    def pair(kind: str, ranks: tuple[int, int] | None) -> Curve | None:
        return None if ranks is None else found[Pattern(kind, ranks)]

    inside_curve, between_curve = pair("transfer", near), pair("transfer", far)
    groups = [curve for pattern, curve in found.items() if pattern.kind == "all-reduce"]
    date = datetime.date.today().isoformat()
    how = f"{device.backend} on {device.name}, {date}"
    inside = None if inside_curve is None else _link(inside_curve, f"measured between two ranks of a node: {how}")
    between = None if between_curve is None else _link(between_curve, f"measured between ranks of two nodes: {how}")
    one = inside or between
    assert one is not None, "two ranks are in one node or in two"
    return Cluster(
        gpus=context.ranks,
        name=name,
        gpus_per_node=context.per_node,
        inside=inside or one,
        between=between or Link(one.bandwidth, one.latency, f"not measured, there was one node: as inside it ({how})"),
        memory=device.memory,
        measured=MeasuredNetwork(
            backend=device.backend,
            device_name=device.name,
            ranks=context.ranks,
            ranks_per_node=context.per_node,
            inside=inside_curve,
            between=between_curve,
            exchange_inside=pair("exchange", near),
            exchange_between=pair("exchange", far),
            copy_seconds_per_byte=copying,
            all_reduce=tuple(map(AllReduce, group_sizes(context.ranks, context.per_node), groups)),
            schedules=tuple(
                ScheduleTimes(LIBRARY if pattern.schedule is None else pattern.kind, len(pattern.ranks), curve)
                for pattern, curve in zip(candidates, curves[count:], strict=True)
            ),
            method=METHOD,
            date=date,
            versions=package_versions("deeppool", "torch"),
        ),
    )


def _link(curve: Curve, source: str) -> Link:
    line = curve.line
    if not line.seconds_per_byte > 0:
        raise RunError(
            f"transfers of {format_bytes(curve.sizes[0])} to {format_bytes(curve.sizes[-1])} take the same time, which "
            "shows no bandwidth (measure larger sizes too, or where less else runs)"
        )
    return Link(1 / line.seconds_per_byte, line.latency, f"{source}; the line is {line.errors}")
