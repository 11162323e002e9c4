"""Runs the same background in the rank's process and in a process of its own, by dp.launch.

One rank of a burst-parallel plan runs while the others are emulated, so one GPU is enough. Each row reports the
placement of the background from the record; a separate process uses MPS if its daemon is already running. An emulated
device is one process's, so the rows of a separate process are errors there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.sharing import POLICIES, Sharing
from deeppool.device.kinds import find_kind
from deeppool.errors import DeeppoolError
from deeppool.profiling.default_cluster import cluster_for
from deeppool.profiling.table import Profile

EXAMPLE = "examples.two_branch:two_branch"
PLACEMENTS: dict[str, Sharing] = {
    "thread, naive": Sharing(priority="normal", home="thread"),
    "thread, priority": Sharing(home="thread"),
    "thread, paced": replace(POLICIES["paced"], home="thread"),
    "thread, feedback, bound 1 %": replace(POLICIES["feedback"], max_slowdown=0.01, home="thread"),
    "process, naive": Sharing(priority="normal", home="process"),
    "process, priority": Sharing(home="process"),
    "process, paced": replace(POLICIES["paced"], home="process"),
    "process, feedback, bound 1 %": replace(POLICIES["feedback"], max_slowdown=0.01, home="process"),
}


@dataclass(frozen=True)
class Setting:
    """A plan, the rank of it that runs, and a background."""

    foreground: str = "vgg16"
    background: str = "resnet50"
    gpus: int = 8
    global_batch: int = 32
    rank: int = 1
    """Not rank 0, which computes every layer."""
    background_batch: int = 32
    seconds: float = 8.0


QUICK = Setting(EXAMPLE, EXAMPLE, gpus=2, global_batch=4, background_batch=2, seconds=1.0)
ON_CPU = {
    "thread, paced": replace(POLICIES["paced"], priority="normal", home="thread"),
    "process, paced": replace(POLICIES["paced"], home="process"),
}
"""A thread has no priority of its own there, and needs no device to try the script."""


def rows_for(device: str) -> dict[str, Sharing]:
    return ON_CPU if find_kind(device).on_cores else PLACEMENTS


def measure(setting: Setting, profile: Profile, placements: dict[str, Sharing]) -> Iterator[dict[str, Any]]:
    """A row for each home; one that cannot be had is a row too."""
    cluster = cluster_for(profile, setting.gpus)
    plan = dp.plan(profile, cluster, setting.global_batch, amplification_limit=2.0)
    for name, sharing in placements.items():
        try:
            run = dp.launch(
                plan,
                background=setting.background,
                policy=sharing,
                background_batch=setting.background_batch,
                seconds=setting.seconds,
                emulate_rank=setting.rank,
            )
        except (DeeppoolError, RuntimeError) as error:
            yield {"row": name, "error": str(error).splitlines()[0]}
            continue
        front, back = run.foreground, run.background
        assert back is not None
        yield {
            "row": name,
            "home": back.home,
            "priority": back.priority,
            "slowdown": front.slowdown,
            "p99_inflation": front.iteration_time.p99 / front.alone.iteration_time.p99 - 1,
            "harvest": back.harvest,
            "harvest_of_idle": back.harvest_of_idle,
            "ended": back.ended,
            "record": serialization.to_json(run),
        }
