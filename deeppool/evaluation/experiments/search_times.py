"""Measures how long a user waits for a plan, part by part, for DeepPool's table 3."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.errors import InvalidValueError
from deeppool.graph import series_parallel
from deeppool.graph.capture.capture import capture
from deeppool.planning.planner import plan_from_costs
from deeppool.planning.request import cost_table
from deeppool.profiling.table import Profile

SearchKind = Literal["published", "exact", "as run"]
"""``published`` and ``exact`` search the paper's cost model; ``as run`` is the exact search of the default one."""
SEARCHES: tuple[SearchKind, ...] = get_args(SearchKind)


@dataclass(frozen=True, slots=True)
class CaptureTime:
    """Seconds that a model takes once, whatever the cluster: median of the repeats."""

    model: str
    capture: float
    """Conversion of the torch module to a graph of layers."""
    tree: float
    """Decomposition of the graph into chains and branches."""


@dataclass(frozen=True, slots=True)
class SearchTime:
    """Seconds for one plan, on one thread: median of the repeats."""

    model: str
    gpus: int
    search: SearchKind
    pricing: float
    """Cost table of all layers and GPU counts."""
    median: float
    """The search."""
    spread: float
    """Half the interquartile range of the search."""
    explanation: float
    """Costs of all other GPU counts of every layer, computed when they are read."""
    iteration_time: float
    """Iteration time of the plan that was found."""


def capture_times(profiles: Mapping[str, Profile], repeats: int) -> tuple[CaptureTime, ...]:
    """Measures capture and decomposition of models.

    Args:
        profiles: name of a model, as ``deeppool.capture`` takes it → its profile, for the shape of its input.
        repeats: captures of each model.
    """
    found = []
    for model, profile in profiles.items():
        edges = tuple(layer.predecessors for layer in profile.graph.layers)
        captures, trees = [], []
        for _ in range(repeats):
            captures.append(_timed(lambda: capture(model, profile.graph.input_shape))[0])  # noqa: B023
            # Not the kept one.
            trees.append(_timed(lambda: series_parallel._decompose.__wrapped__(edges))[0])  # noqa: B023
        found.append(CaptureTime(model, statistics.median(captures), statistics.median(trees)))
    return tuple(found)


def search_times(
    profiles: Mapping[str, Profile],
    gpu_counts: Sequence[int],
    samples_per_gpu: int,
    amplification_limit: float | None,
    repeats: int,
) -> tuple[SearchTime, ...]:
    """Measures all searches of every model at every GPU count, interleaved.

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
            turns: dict[SearchKind, list[tuple[float, float, float, float]]] = {search: [] for search in SEARCHES}
            # What is found once and kept, a model's tree of branches, is no part of a search.
            for _ in range(1 + repeats):
                for search in SEARCHES:
                    turns[search].append(_parts(profile, gpus, samples_per_gpu * gpus, amplification_limit, search))
            found += [_summary(model, gpus, search, turns[search][1:]) for search in SEARCHES]
    return tuple(found)


def _parts(
    profile: Profile, gpus: int, batch: int, limit: float | None, kind: SearchKind
) -> tuple[float, float, float, float]:
    """Returns seconds of pricing, search and explanation, and the plan's iteration time."""
    model: NetworkModel | None = None if kind == "as run" else "paper"
    pricing, costs = _timed(lambda: cost_table(profile, Cluster(gpus=gpus), batch, model=model))
    made = plan_from_costs(profile, costs, limit, "layer", search="published" if kind == "published" else "exact")
    explanation, _ = _timed(lambda: [layer.alternatives for layer in made.layers])
    return pricing, made.search_time, explanation, made.iteration_time


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds that a call takes, and its result."""
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def _summary(
    model: str, gpus: int, search: SearchKind, turns: Sequence[tuple[float, float, float, float]]
) -> SearchTime:
    pricing, times, explanation, iteration = zip(*turns, strict=True)
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return SearchTime(
        model,
        gpus,
        search,
        statistics.median(pricing),
        statistics.median(times),
        (upper - lower) / 2,
        statistics.median(explanation),
        iteration[0],
    )
