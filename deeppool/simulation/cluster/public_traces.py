"""Published traces of GPU clusters as workloads: Philly, Helios and Alibaba PAI.

A published trace has a job's GPUs, submission and duration, but no model. Each job gets a model's profile, drawn at
random from those given, a fixed per-GPU batch, and as many iterations as data-parallel training on its GPUs does in
its recorded duration. What other strategies gain or lose shows against that.

    philly  cluster_job_log: Jeon et al., USENIX ATC 2019
    helios  cluster_log.csv: Hu et al., SC 2021
    pai     pai_task_table.csv: Weng et al., NSDI 2022
"""

import csv
import datetime
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from deeppool.cluster.cluster import Cluster
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.planning.evaluate.baselines import data_parallel_times
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.request import cost_table
from deeppool.profiling.table import Profile
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace, cluster_of_jobs

TraceFormat = Literal["philly", "helios", "pai"]
MAXIMUM_BYTES = 4 * 2**30
PAI_COLUMNS = tuple("job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu".split())
"""Columns of pai_task_table.csv, which has no header; ``gpu_type`` follows."""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job of a published trace."""

    name: str
    gpus: int
    submitted: float
    """Seconds on the trace's own clock."""
    duration: float
    """Seconds that it held its GPUs."""


def import_trace(
    path: str | Path,
    trace_format: TraceFormat,
    profiles: Mapping[str, Profile],
    cluster: Cluster,
    *,
    per_gpu_batch: int = 32,
    background_gpus: int = 0,
    jobs: int | None = None,
    seed: int = 0,
) -> WorkloadTrace:
    """Makes a workload of a published trace.

    Args:
        path: the trace's file.
        trace_format: the trace that it is of.
        profiles: profiles to draw from, by the name or file that the workload gives as a job's source.
        cluster: what the workload will run on; jobs that need more GPUs are left out.
        per_gpu_batch: samples per GPU and iteration of every job; of a background at most its profile's largest.
        background_gpus: jobs of at most so many GPUs become backgrounds.
        jobs: the first jobs of the trace that fit; None: all.
        seed: of the draw of the profiles.

    Raises:
        DocumentError: the file cannot be read, or is not of the format.
        InvalidValueError: no profile is given, an argument is out of its bounds, no job fits, or profiles are of
            different devices.
    """
    if not profiles:
        raise InvalidValueError("a published trace names no models: give at least one profile for its jobs")
    if per_gpu_batch < 1 or background_gpus < 0 or (jobs is not None and jobs < 1):
        raise InvalidValueError(
            f"per_gpu_batch and jobs must be at least 1 and background_gpus at least 0, got {per_gpu_batch}, {jobs} "
            f"and {background_gpus}"
        )
    recorded = sorted(_read(Path(path), trace_format), key=lambda job: job.submitted)
    fitting = [job for job in recorded if job.gpus <= cluster.gpus][:jobs]
    if not fitting:
        used = f"it has {len(recorded)} jobs that used a GPU"
        raise InvalidValueError(f"no job of {path} fits on {cluster.gpus} GPUs ({used})")
    start, draw, names = fitting[0].submitted, random.Random(seed), sorted(profiles)

    @cache
    def time_of(source: str, gpus: int, batch: int) -> float:
        profile, samples = profiles[source], batch * gpus
        costs = cost_table(profile, replace(cluster, gpus=gpus), samples)
        return data_parallel_times(profile, costs, memory_model(profile, samples))[-1].seconds

    made = []
    for job in fitting:
        source, background = draw.choice(names), job.gpus <= background_gpus
        # Simulations refuse a background at a batch of which it is not known whether it fits the device.
        batch = min(per_gpu_batch, profiles[source].batch_sizes[-1]) if background else per_gpu_batch
        made.append(_trace_job(job, source, start, time_of, batch=batch, background=background))
    left_out = len(recorded) - sum(job.gpus <= cluster.gpus for job in recorded)
    capped = "" if background_gpus == 0 else " (a background: at most its profile's largest)"
    method = (
        f"{trace_format} trace {Path(path).name}: {len(made)} of {len(recorded)} jobs that used a GPU ({left_out} "
        f"larger than {cluster.gpus} GPUs); models drawn from {', '.join(names)}, {per_gpu_batch} samples a GPU"
        f"{capped}, iterations from the recorded durations under data parallelism"
    )
    found = WorkloadTrace(Path(path).stem, method, tuple(made))
    # Jobs that no simulation takes together.
    cluster_of_jobs(found, profiles, cluster)
    return found


def _trace_job(
    job: RecordedJob,
    source: str,
    start: float,
    time_of: Callable[[str, int, int], float],
    *,
    batch: int,
    background: bool,
) -> TraceJob:
    computing = 1 if background else job.gpus
    return TraceJob(
        name=job.name,
        role="background" if background else "foreground",
        source=source,
        arrival=job.submitted - start,
        iterations=max(1, round(job.duration / time_of(source, computing, batch))),
        gpus=job.gpus,
        batch=batch * computing,
    )


def _read(path: Path, trace_format: TraceFormat) -> list[RecordedJob]:
    if trace_format not in _READERS:
        raise InvalidValueError(f"the format must be one of {', '.join(_READERS)}, got '{trace_format}'")
    try:
        if not path.is_file():
            raise DocumentError(f"cannot read {path}: there is no such file")
        if path.stat().st_size > MAXIMUM_BYTES:
            raise DocumentError(f"cannot read {path}: it is larger than {MAXIMUM_BYTES // 2**30} GiB (cut it)")
        found = list(_READERS[trace_format](path))
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        raise DocumentError(
            f"{path}: not the file of a {trace_format} trace: {type(error).__name__}: {error} (see the schema that "
            "was published with it)"
        ) from error
    return [job for job in found if job.gpus > 0 and 0 < job.duration < math.inf and math.isfinite(job.submitted)]


def _philly(path: Path) -> Iterator[RecordedJob]:
    """The GPUs of the last attempt, and the time of all attempts; jobs without a complete attempt are left out."""
    for job in json.loads(path.read_text(encoding="utf-8")):
        attempts = [x for x in job["attempts"] if x["start_time"] and x["end_time"]]
        if attempts:
            duration = sum(_seconds(x["end_time"]) - _seconds(x["start_time"]) for x in attempts)
            gpus = sum(len(server["gpus"]) for server in attempts[-1]["detail"])
            yield RecordedJob(str(job["jobid"]), gpus, _seconds(job["submitted_time"]), duration)


def _helios(path: Path) -> Iterator[RecordedJob]:
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            submitted = _seconds(row["submit_time"])
            yield RecordedJob(row["job_id"], int(row["gpu_num"]), submitted, float(row["duration"]))


def _pai(path: Path) -> Iterator[RecordedJob]:
    """The whole GPUs that hold a job's fractions; from its first task's launch, since this table has no submissions."""
    tasks: dict[str, list[Mapping[str, Any]]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream, PAI_COLUMNS):
            if row["job_name"] != "job_name" and row["start_time"] and row["end_time"]:
                tasks.setdefault(row["job_name"], []).append(row)
    for name, rows in tasks.items():
        start = min(float(row["start_time"]) for row in rows)
        end = max(float(row["end_time"]) for row in rows)
        shares = sum(float(row["inst_num"] or 0) * float(row["plan_gpu"] or 0) for row in rows)
        yield RecordedJob(name, math.ceil(shares / 100), start, end - start)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


_READERS: dict[str, Callable[[Path], Iterable[RecordedJob]]] = {"philly": _philly, "helios": _helios, "pai": _pai}
