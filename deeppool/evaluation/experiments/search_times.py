"""Measures search times of planners, for DeepPool's table 3."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.planning.plan import Search
from deeppool.planning.planner import plan
from deeppool.profiling.table import Profile

SEARCHES: tuple[Search, ...] = ("published", "exact")


@dataclass(frozen=True, slots=True)
class SearchTime:
    """Search times for one plan, on one thread, computation of the costs included."""

    model: str
    gpus: int
    search: Search
    median: float
    spread: float
    """Half the interquartile range."""
    iteration_time: float
    """Iteration time of the plan that was found."""


def search_times(
    profiles: Mapping[str, Profile],
    gpu_counts: Sequence[int],
    samples_per_gpu: int,
    amplification_limit: float | None,
    repeats: int,
) -> tuple[SearchTime, ...]:
    """Measures both searches of every model at every GPU count, interleaved.

    Args:
        profiles: name of a model → its layer times.
        gpu_counts: GPU counts of a DGX A100.
        samples_per_gpu: the global batch is as many times larger.
        amplification_limit: as for :func:`deeppool.plan`.
        repeats: searches of each kind; at least 2.

    Raises:
        InvalidValueError: too few repeats for a spread.
    """
    if repeats < 2:
        raise InvalidValueError(f"repeats must be at least 2 for a median and a spread, got {repeats}")
    found = []
    for model, profile in profiles.items():
        for gpus in gpu_counts:
            times: dict[Search, list[float]] = {search: [] for search in SEARCHES}
            iteration = dict.fromkeys(SEARCHES, 0.0)
            # What is found once and kept, a model's tree of branches, is no part of a search.
            for turn in range(1 + repeats):
                for search in SEARCHES:
                    made = plan(
                        profile,
                        Cluster(gpus=gpus),
                        global_batch=samples_per_gpu * gpus,
                        amplification_limit=amplification_limit,
                        search=search,
                    )
                    if turn:
                        times[search].append(made.search_time)
                    iteration[search] = made.iteration_time
            found += [_summary(model, gpus, search, times[search], iteration[search]) for search in SEARCHES]
    return tuple(found)


def _summary(model: str, gpus: int, search: Search, times: Sequence[float], iteration: float) -> SearchTime:
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return SearchTime(model, gpus, search, statistics.median(times), (upper - lower) / 2, iteration)
