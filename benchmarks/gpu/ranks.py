"""Ranks of plans for eight GPUs on one: the others are emulated; alone, and beside a background on every rung.

The first rank computes most and the last one least: between them lie the gaps that a plan leaves. The backgrounds are
made once for all ranks.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import deeppool as dp
from benchmarks.gpu.placements import EXAMPLE
from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.errors import DeeppoolError
from deeppool.evaluation.experiments.stream_foreground import StreamForeground
from deeppool.evaluation.experiments.stream_ladder import StreamLadder, TwoJobs
from deeppool.execution.stages import stages_of
from deeppool.planning.plan import Plan
from deeppool.profiling.default_cluster import cluster_for
from deeppool.profiling.shipped import find_profile, shipped_names
from deeppool.profiling.table import Profile
from deeppool.scheduling.mechanism_ladder import Rung, mechanism_ladder

BY_TIME = "1 ms in flight"
"""As pacing, however many pieces that are."""


JOBS = TwoJobs("a rank of a plan", precision="fp16", probes=50)


@dataclass(frozen=True, slots=True)
class Setting:
    """Plans, and the jobs of the ladder, whose foregrounds are ranks of these plans."""

    models: tuple[str, ...] = ("vgg16", "wide_resnet101_2", "inception_v3")
    jobs: TwoJobs = JOBS
    background_batches: tuple[int, int] = (32, 8)
    """Ordinary and smaller."""
    gpus: int = 8
    global_batch: int = 32
    amplification_limit: float = 2.0
    seconds: float = 0.5
    """Of each round, alone and beside each rung."""


QUICK = Setting(
    (EXAMPLE,),
    replace(JOBS, background=EXAMPLE, precision="fp32", rounds=1, alone_seconds=0.05, probes=3),
    background_batches=(2, 1),
    gpus=2,
    global_batch=4,
    seconds=0.1,
)


def measure(
    setting: Setting, device: Device, find_profile: Callable[[str], Profile], may_start: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """The rows so far, after each rank; nothing starts once ``may_start`` returns False."""
    rows = list[dict[str, Any]]()
    found: dict[str, Any] = {"setting": asdict(setting), "rows": rows, "failed": {}}
    rungs = mechanism_ladder(*setting.background_batches)
    rungs[BY_TIME] = Rung(Sharing(in_flight=1e-3), setting.background_batches[0])
    started = time.monotonic()
    with StreamLadder(setting.jobs, rungs, device, may_start) as ladder:
        found["failed"], found["seconds"] = ladder.failed, time.monotonic() - started
        yield found
        for model in setting.models:
            for row in _ranks(model, setting, ladder, device, find_profile, may_start):
                rows.append(row)
                yield found


def _ranks(
    model: str,
    setting: Setting,
    ladder: StreamLadder,
    device: Device,
    find_profile: Callable[[str], Profile],
    may_start: Callable[[], bool],
) -> Iterator[dict[str, Any]]:
    if not may_start():
        yield {"model": model, "left_out": True}
        return
    try:
        plan = make_plan(setting, find_profile(model))
    except (DeeppoolError, RuntimeError) as error:
        yield {"model": model, "error": str(error).splitlines()[0]}
        return
    for rank in first_and_last(plan):
        row = {"model": model, "rank": rank, "predicted": plan.iteration_time}
        if not may_start():
            yield row | {"left_out": True}
            continue
        started = time.monotonic()
        try:
            foreground = StreamForeground.of_rank(plan, rank, device)
            iterations = max(20, round(setting.seconds / plan.iteration_time))
            row["ladder"] = asdict(ladder.measure(foreground, iterations=iterations))
        except (DeeppoolError, RuntimeError) as error:
            row["error"] = str(error).splitlines()[0]
        yield row | {"seconds": time.monotonic() - started}


def make_plan(setting: Setting, profile: Profile) -> Plan:
    """For a cluster of such devices."""
    cluster = cluster_for(profile, setting.gpus)
    return dp.plan(profile, cluster, setting.global_batch, amplification_limit=setting.amplification_limit)


def first_and_last(plan: Plan) -> list[int]:
    """The ranks, of those that compute."""
    used = sorted({rank for stage in stages_of(plan) for rank in stage.layout.gpus})
    return sorted({used[0], used[-1]})


def saved_or_measured(folder: Path, device: str, *, quick: bool) -> Callable[[str], Profile]:
    """Profiles in fp16: of the part ``profiles``, of this GPU as shipped, or measured now; dry runs in fp32."""
    setting = QUICK if quick else Setting()
    precision, here = setting.jobs.precision, find_device(device).name

    def find(model: str) -> Profile:
        for path in sorted(folder.glob("*.json")):
            if path.name.startswith(f"{model}-") and path.name.endswith(f"{precision}-graphs.json"):
                return serialization.read(path, Profile)
        for name in shipped_names():
            profile = find_profile(name)
            if name.startswith(f"{model}-") and (profile.device_name, profile.precision) == (here, precision):
                return profile
        sizes = sorted({max(1, setting.global_batch // setting.gpus), setting.global_batch})
        shape = (3, 32, 32) if model == EXAMPLE else None
        return dp.profile(model, shape, device=device, batch_sizes=sizes, precision=precision, seconds=1.0)

    return find
