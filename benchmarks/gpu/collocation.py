"""Two jobs on one device, a mechanism more at a time, as in figure 11 of DeepPool's paper: settings and JSON."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from deeppool.device.protocol import Device
from deeppool.evaluation.experiments.stream_foreground import StreamForeground
from deeppool.evaluation.experiments.stream_ladder import StreamLadder, TwoJobs
from deeppool.scheduling.mechanism_ladder import mechanism_ladder

SHARE = 0.25


@dataclass(frozen=True)
class Setting:
    """Two jobs, and the foregrounds between which nothing else changes."""

    jobs: TwoJobs
    background_batches: tuple[int, int] = (32, 8)
    """Ordinary and smaller."""
    gaps: tuple[float, ...] = (0.0, 0.01)
    """Seconds without foreground after each iteration: what a burst-parallel plan leaves."""


SETTINGS = tuple(Setting(TwoJobs(model)) for model in ("vgg16", "wide_resnet101_2", "inception_v3"))
TINY = "benchmarks.gpu.collocation:tiny"
QUICK = (
    Setting(TwoJobs(TINY, TINY, 2, precision="fp32", iterations=20, rounds=1, alone_seconds=0.05), (2, 1), gaps=(0.0,)),
)


def tiny() -> nn.Module:
    """A model for a dry run."""
    return nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(6)))


tiny.input_shape = (64,)


def measure(setting: Setting, device: Device, ends: float) -> Iterator[dict[str, Any]]:
    """The entry of the summary, again after each gap; nothing starts after ``ends`` on the monotonic clock."""
    gaps = list[dict[str, Any]]()
    result: dict[str, Any] = {"setting": asdict(setting), "gaps": gaps, "failed": {}}
    yield result
    rungs = mechanism_ladder(*setting.background_batches, share=SHARE)
    with (
        device.times_only(),
        StreamLadder(setting.jobs, rungs, device, may_start=lambda: time.monotonic() < ends) as ladder,
    ):
        result["failed"] = ladder.failed
        jobs = setting.jobs
        foreground = StreamForeground.of_model(jobs.foreground, jobs.foreground_batch, jobs.precision, device)
        for gap in setting.gaps:
            if time.monotonic() < ends:
                gaps.append(asdict(ladder.measure(foreground, gap)))
                yield result
